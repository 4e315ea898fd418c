//! The simulator: an engine of discrete events that runs a policy over physical
//! CPUs that do not exist and guests that only compute, wait and sleep.
//!
//! ```text
//! guest --works, waits, sleeps--> engine --do_schedule, wake, tick--> policy
//!   ^                               |  ^---------- picks, kicks ---------+
//!   +------ next act, released -----+--> measures: stacked, distance, lag, switches
//! ```
//!
//! The same [`Setup`] gives the same [`Outcome`] to the last bit, on any
//! machine: time is in whole nanoseconds, and chance comes from the seed.

mod engine;
mod guests;
mod measure;
mod setup;

pub use engine::{Simulation, simulate};
pub use guests::{Load, SimGuest, VcpuAct};
pub use measure::{AnswerTimes, Away, DomainOutcome, Lag, Outcome};
pub use setup::{Costs, DomainSetup, Setup, SetupError};
