//! vCPU scheduling: policies, and a simulator that runs them.
//!
//! ```text
//!            World (read)            Orders, Pick (data)
//! engine ----------------> policy ----------------------> engine
//!   |                        = rule + filter + hook, perhaps wrapped
//!   +-- the simulator here, or a dispatcher of real threads
//! ```
//!
//! A policy is a [`Scheduler`]; [`build`] makes one by name. It decides
//! and does nothing: it opens no file, reads no clock, and answers the same to
//! the same calls. Engines own time and carry decisions out.

pub mod composite;
pub mod dice;
pub mod hooks;
mod params;
pub mod parts;
mod policy;
pub mod queues;
pub mod rules;
mod scheduler;
pub mod sim;
pub mod speed;
pub mod tree;
mod units;
mod world;

pub use forkyard_types::{Parallel, SchedPolicy as Policy};
pub use params::{CpuReservation, Extra, InvalidParams, Params, USUAL_WEIGHT, Warp};
pub use policy::{Migration, PolicyError, PolicySettings, build};
pub use scheduler::{Dump, Move, Orders, Pick, QueueDump, Ran, Scheduler, TICK, Then};
pub use units::{CpuId, CpuSet, DomainId, Nanos, NoTime, VcpuId, round};
pub use world::{CpuView, DomainView, State, VcpuView, World};
