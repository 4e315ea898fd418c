//! Messages of E2B's clients: wire types of its REST API and of the RPC of its daemon in
//! sandboxes, envelopes of Connect streams, host names and signatures.
//!
//! Beside the key that it keeps in a file it is pure: it opens no socket and reads no clock.

mod address;
mod envelope;
mod filesystem;
mod key;
mod metrics;
mod process;
mod request;
mod rest;
mod signature;
mod terms;
mod time;

pub use address::{Sandbox as SandboxAddress, of_host};
pub use envelope::{EnvelopeDecoder, EnvelopeError, LONGEST, end, error_end, frame};
pub use filesystem::*;
pub use key::{SandboxKey, is_token};
pub use metrics::{Metric, Series, TimeRange};
pub use process::*;
pub use request::{absolute, target, user};
pub use rest::*;
pub use signature::{Operation, is_signed, sign};
pub use terms::*;
pub use time::rfc3339;

/// Version of the daemon in sandboxes that is spoken. Clients do what that one can: upload as an
/// octet stream, close standard input; not keep metadata of files.
pub const ENVD_VERSION: &str = "0.5.8";
/// Port of that daemon.
pub const ENVD_PORT: u16 = 49983;
