//! Scheduling of real vCPU threads from user space.
//!
//! ```text
//! Service --request--> Dispatcher --World--> policy --picks--> Dispatcher
//!                     |  observe: reads /proc
//!                     |  place:   affinity, niceness, SCHED_DEADLINE
//!                     |  enforce: freezes those that are not to run
//!                     +--groups--> guard: thaws all when the dispatcher dies
//! ```
//!
//! The policies are those of the simulator. Only vCPU threads are ever frozen:
//! QEMU's main thread and its I/O threads are not touched. The dispatcher may be
//! killed at any time; the [`guard`] then lets everything go.

mod dispatcher;
mod error;
pub mod freezer;
pub mod guard;
mod mechanism;
mod place;
pub mod protocol;
#[cfg_attr(not(feature = "sched-ext"), path = "sched_ext/absent.rs")]
mod sched_ext;
mod service;
pub mod socket;
mod step;
pub mod threads;

pub use dispatcher::Dispatcher;
pub use error::DispatchError;
pub use mechanism::Mechanism;
pub use sched_ext::SchedExt;
pub use service::{Service, ServiceError};
pub use step::{Habits, Step, Steps};
