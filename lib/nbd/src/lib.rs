//! Server side of the NBD protocol, as state machines.
//!
//! ```text
//! Handshake --GO, EXPORT_NAME--> Transmission --DISC--> end
//!    |  ^ options, refused or answered   |  ^ requests, refused here or handed out
//!    +--+                                +--+
//!    +--ABORT, nonsense--> end           +--nonsense--> end
//! ```
//!
//! Fixed newstyle negotiation, simple and structured replies, one metadata context
//! (`base:allocation`). Each step takes the bytes received so far and says how many it used.
//! Payloads are borrowed from those bytes, never copied.
//!
//! Opens no socket and keeps no buffer. Every length that a client states is bounded
//! ([`MAX_OPTION`], [`MAX_PAYLOAD`]) before room for it is asked for. Clients are hostile: what
//! breaks the protocol is [`Broken`], and the connection is to be closed. TLS is left to the
//! layer below.

mod export;
mod handshake;
mod options;
mod reply;
mod transmission;
mod wire;

#[cfg(test)]
mod tests;

pub use export::{Export, ExportAccess, ExportDenied, Exports, Sharing};
pub use handshake::{Agreed, Handshake, HandshakeStep, Replies};
pub use reply::{Extent, ReplyEncoder};
pub use transmission::{
    ByteRange, Cookie, DecodeOutcome, Durability, Extents, Fragments, NbdCommand, Request,
    Transmission, Zeroing,
};
pub use wire::{MAX_OPTION, MAX_PAYLOAD, NbdError};

/// Violation of the protocol that leaves no way to go on: the connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// Bytes that should be a magic number are not.
    #[error(
        "client sent no magic number where one is due (it does not speak NBD, or is out of step)"
    )]
    Magic,
    /// Client flags unknown to the protocol.
    #[error("client sent handshake flags {0:#x}, of which some are unknown")]
    ClientFlags(u32),
    /// Option longer than any the protocol has.
    #[error("client announced an option of {0} bytes, more than {MAX_PAYLOAD}")]
    OptionTooLong(u32),
    /// More options than a client has use for.
    #[error("client sent {0} options without opening an export")]
    TooManyOptions(u32),
    /// `EXPORT_NAME` of an export that cannot be opened: the option has no error reply.
    #[error(
        "client asked for an export that cannot be opened, by an option that has no error reply"
    )]
    NoSuchExport,
    /// Payload longer than the maximum.
    #[error("client announced a payload of {0} bytes, more than {MAX_PAYLOAD}")]
    PayloadTooLong(u32),
}
