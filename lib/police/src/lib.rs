//! Police of a host's friendly guests: a task that samples what VMs use, has the policy judge
//! it, and caps those that it names.
//!
//! ```text
//! begin -> Station --orders--> task: Hands::usage -> forkyard_friendly::Police -> finding
//! state <-   |     <--state---   |                                 Hands::cap <----'
//! end   -> waits for it          +--> record: order and caps, for the next daemon
//! ```
//!
//! The policy is [`forkyard_friendly::Police`]. What samples and caps is [`Hands`]: this crate
//! knows neither `/proc` nor the dispatcher.
//!
//! Failure paths:
//!
//! - The police is ended, or its time is over: all that it capped are let go, and the record is
//!   removed.
//! - The daemon is told to end ([`Station::close`]): all are let go; the order stays in the
//!   record, and the next daemon begins it again.
//! - The daemon dies: caps stay, for the dispatcher outlives it. [`Station::resume`] of the next
//!   daemon finds them in the record, written before each cap is set, and goes on.
//! - A VM ends: its cap ended with its process, and is forgotten at the next sample.
//! - A VM cannot be capped: the finding says why, and the police goes on.

mod error;
mod record;
mod sample;
mod station;
mod task;
mod term;

pub use error::PoliceError;
pub use station::Station;

use forkyard_types::{SchedPolicy, Usage, VmId};
use std::{error::Error, future::Future};

/// A VM's process, as long as it is that VM's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Id of the VM.
    pub vm: VmId,
    /// Name of the VM.
    pub name: String,
    /// Process of its QEMU.
    pub pid: u32,
}

/// Outcome of capping a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capped {
    /// The VM is capped.
    Yes,
    /// The VM has ended since it was looked at.
    Gone,
}

/// Means to look at VMs, to cap them and to let them go.
pub trait Hands: Send + Sync + 'static {
    /// Error of the host.
    type Error: Error + Send + Sync + 'static;

    /// Reads what VMs have used so far.
    fn usage(&self) -> impl Future<Output = Result<Usage, Self::Error>> + Send;

    /// Returns the policy under which VMs are scheduled, if any are.
    fn scheduled(&self) -> impl Future<Output = Result<Option<SchedPolicy>, Self::Error>> + Send;

    /// Caps a VM to so many per cent of a CPU. Carried out to its end if it is dropped.
    fn cap(
        &self,
        suspect: &Suspect,
        percent: u32,
    ) -> impl Future<Output = Result<Capped, Self::Error>> + Send;

    /// Lets a VM go; of one that is not capped, nothing. Carried out to its end if it is
    /// dropped.
    fn release(&self, pid: u32) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
