//! Decision to fork servers, and to retire them.
//!
//! ```text
//!             fork              first check passes          load has fallen
//! Empty ----------> Forking --> Joining ----------> Serving ---------------> Draining
//!   ^                  |            | too late         | sick for too long      | no open request
//!   |   it failed      |            v                  v                        v
//!   +------------------+------- Removing <-------------+------------------------+
//! ```
//!
//! Every server has one of [`ScalerConfig::most`] slots from before its fork is asked for until its
//! removal is confirmed, and there are no other slots: whatever is measured, whatever fails, there
//! are never more servers. One fork is under way at a time, of no more clones than there are
//! healthy servers; forks that fail are asked for again after a time that doubles.
//!
//! Does no I/O and reads no clock: the caller passes the time and what it has measured, carries
//! out the [`Action`]s, and reports what became of them as [`ActionOutcome`].

mod config;
mod gate;
mod scaler;
mod signal;
mod slot;
mod window;

pub use config::{InvalidConfig, ScalerConfig};
pub use scaler::{Action, ActionOutcome, RemovalCause, Scaler, ServerSource};
pub use signal::{Cpu, Latency, LoadSignal, LoadView, Queue, ServerHealth, ServerSample};
pub use slot::{SlotNo, Stage};

#[cfg(test)]
mod tests;
