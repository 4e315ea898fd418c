//! The words every part of Forkyard shares: identifiers, units and the
//! messages of the API. No I/O, no policy.

mod access;
mod api;
mod entry;
mod error;
mod event;
mod exec;
mod files;
mod id;
mod identity;
mod image;
mod network;
mod node;
mod progress;
mod remote;
mod report;
mod selection;
mod substrate;
mod ticket;
mod unit;
mod usage;
mod users;
mod volume;

pub use access::*;
pub use api::*;
pub use entry::*;
pub use error::*;
pub use event::*;
pub use exec::*;
pub use files::*;
pub use id::*;
pub use identity::*;
pub use image::*;
pub use network::*;
pub use node::*;
pub use progress::*;
pub use remote::*;
pub use report::*;
pub use selection::*;
pub use substrate::*;
pub use ticket::*;
pub use unit::*;
pub use usage::*;
pub use users::*;
pub use volume::*;
