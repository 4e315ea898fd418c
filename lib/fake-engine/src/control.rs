//! Messages between the engine and the process of a machine: one JSON text a line.

use forkyard_vmm::{Cause, RunState};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name of the socket in a machine's directory.
pub const CONTROL: &str = "fake.sock";

/// Order of the engine to a machine. Answered by one [`Word::Reply`] each, in
/// order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineOrder {
    /// Stop the vCPUs.
    Stop,
    /// Let the vCPUs go on.
    Cont,
    /// Say what it is doing.
    State,
    /// Name the slice that is written to.
    Slice,
    /// Open a slice over the active one.
    Prepare(PathBuf),
    /// Make a slice that is open the active one.
    Freeze {
        /// Number of the slice.
        number: u64,
        /// The slice it was opened over.
        over: u64,
    },
    /// Close a slice that is not in use.
    Close(u64),
    /// Save the state of CPUs and devices.
    Save,
    /// Say where the memory lies.
    Ram,
    /// Take a state and run.
    Load(Vec<u8>),
    /// End in good order.
    Quit,
}

/// Result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The order was carried out.
    Done,
    /// Run state of the machine.
    State(RunState),
    /// The slice that is written to.
    Slice(Option<PathBuf>),
    /// A slice that was opened: its number, and that of the one below.
    Opened(u64, u64),
    /// State of CPUs and devices.
    Saved(Vec<u8>),
    /// Address of the first byte of its memory.
    Ram(u64),
    /// The order was not carried out.
    Refused(OrderRefusal),
}

/// Reason why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderRefusal {
    /// Not in this state.
    State(RunState),
    /// There is no disk.
    NoDisk,
    /// The overlay does not lie over the active slice.
    Stale,
    /// For this reason.
    Other(String),
}

/// Event that happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineEvent {
    /// The vCPUs stand still.
    Stopped,
    /// The machine ends now.
    Ends(Cause),
}

/// From the process of a machine to the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// Answer to the oldest order that has none.
    Reply(Reply),
    /// Something happened.
    Event(MachineEvent),
}
