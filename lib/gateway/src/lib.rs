//! HTTP for servers in VMs: a request's destination, its permission, and how it is passed on.
//!
//! ```text
//! request --target--> VM and port --share--> allowed --exchange--> server in the guest
//! ```
//!
//! Nothing here knows a daemon: what is connected to a guest is given.

mod exchange;
mod pool;
mod share;
mod target;

pub use exchange::{Exchanged, OwnHeaders, exchange, opened, strip, upgrades};
pub use pool::Pool;
pub use share::{Key, KeyError, Share, ShareError};
pub use target::{Form, Target};
