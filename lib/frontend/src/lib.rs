//! Policy of front-ends: public addresses that lead to a VM wherever it is.
//!
//! ```text
//! hosts' answers --sights--> where the VM is --routes--> which hosts are asked for a connection
//!                                    |
//!                                    +--role--> active | forwarding | drained --publication--> DNS
//! ```
//!
//! Opens no socket and reads no clock: the caller passes what it saw, and `now` as time since it began.

mod choice;
mod health;
mod publication;
mod role;
mod sight;

pub use choice::{Candidate, NoTarget, choose};
pub use health::{Health, ProbeOutcome};
pub use publication::{Publication, Record, Update};
pub use role::{Nearest, Role, Traffic};
pub use sight::{HostName, Sighting, Sights, VmStanding};
