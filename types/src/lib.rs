//! The words every part of Forkyard shares: identifiers, units and the
//! messages of the API. No I/O, no policy.

mod api;
mod id;
mod identity;
mod network;
mod unit;

pub use api::*;
pub use id::*;
pub use identity::*;
pub use network::*;
pub use unit::*;
