//! HTTP for servers in VMs: a request's destination, its permission, and how it is passed on.
//!
//! ```text
//! request --target--> VM and port --share--> allowed --pass, exchange--> server in the guest
//! ```
//!
//! Shared by programs that strangers reach: the gateway and the front-end, and the daemon's endpoint for
//! E2B. Nothing here asks a daemon: what is connected to a guest is given.

pub mod certificate;
mod exchange;
pub mod headers;
mod pass;
mod places;
mod pool;
mod reply;
mod scrape;
mod share;
mod stall;
mod target;
mod unreached;

pub use exchange::{Exchanged, OwnHeaders, exchange, opened, strip, upgrades};
pub use pass::{ForwardedRequest, ServerWay, may_be_repeated, once, repeatedly};
pub use places::{ConnectionCounts, Places, TakenPlace, raise_descriptors};
pub use pool::Pool;
pub use reply::{Giver, ProxyRefusal, ReplyBody, body};
pub use scrape::scraped;
pub use share::{KeyError, PortPermission, ShareError, ShareKey};
pub use stall::Stalls;
pub use target::{Form, Target};
pub use unreached::Unreached;
