//! Protocol between host and agent.
//!
//! ```text
//! forkyardd                      QEMU                  forkyard-guest          program
//!   Guest ── task ── unix socket ── virtio-serial port ── agent ── agent.sock ── AgentClient
//!            frames of ToGuest and ToHost                      frames of Request and
//!                                                              Result<Answer, ApiError>
//! ```
//!
//! Messages and their framing are shared by both ends. The host's side is
//! async; the guest's blocks, and is free of tokio. Permission to ask is
//! decided by the receiver of a call, not here.

mod ask;
mod client;
mod frame;
mod frames;
mod growth;
mod message;
mod parts;
mod sync;

#[cfg(feature = "host")]
mod host;

pub use ask::*;
pub use client::{
    AgentClient, CallError, Checkpointing, Cloning, IDENTITY_FILE, SOCKET, SOCKET_ENV,
};
pub use frame::{
    Around, Decoder, EncodeError, FrameError, MAX_PAYLOAD, OVERHEAD, around, encode,
    encode_with_data,
};
pub use frames::{Frames, MOST_FRAMES, joined};
pub use growth::Growth;
#[cfg(feature = "host")]
pub use host::{Duplex, Exec, ExecControls, ExecOut, Guest, Hello, LinkError, Visitors};
pub use message::*;
pub use parts::{CONNECTED, END, StreamPiece, StreamReceiver, part};
pub use sync::{FrameReader, ReadError, send};
