//! Hosts for whole-system tests: real daemons, pagers and guests, driven
//! through the command line alone, as a user would.
//!
//! ```text
//! Slot    so many hosts at once as the machine bears
//! Place   network, mounts and cgroup tree of a host's own
//! Host    commands in a place, and folders that go with it
//! Cluster several hosts on one network, which can be cut or die
//! faults  what can be done to that network
//! switch  what that network is made of
//! Links   what a host counts of its links to others
//! outside the rest of the world, at the other end of a cable
//! remains what is left in a place
//! frontend front-ends, and a name server for them
//! guest   C programs for guests, compiled here
//! websocket commands over WebSockets
//! pypi    Python environments with packages of others
//! Steps   a daemon that dies before the Nth thing it does
//! sweep   the same for every N, and what must be sound after it
//! ```
//!
//! Nothing here knows how the system works inside: it knows its commands, the
//! types of its answers, and what it promises to leave behind (nothing).

mod cache;
mod cluster;
mod faults;
pub mod frontend;
pub mod guest;
mod host;
mod links;
mod outcome;
pub mod outside;
mod place;
mod programs;
pub mod pypi;
pub mod remains;
mod slot;
pub mod steps;
mod sweep;
mod switch;
mod waiting;
pub mod websocket;

pub use cluster::Cluster;
pub use forkyard_fake_engine::faults::{Fault, Faults};
pub use forkyard_testnet::LinkFaults;
pub use host::Host;
pub use links::Links;
pub use outcome::{Outcome, Running};
pub use outside::Outside;
pub use place::{Place, Process};
pub use steps::Steps;
pub use sweep::{is_sound, nothing_left_over, sweep, sweep_of};
pub use waiting::{eventually, in_the_end};
