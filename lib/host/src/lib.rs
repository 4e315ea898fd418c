//! The parts of one host, opened and wired: folders, records, engine, network, pager, guest images,
//! and which VMs there are.
//!
//! ```text
//! Parts --+--> Folders, Options          where things lie, and an operator's choices
//!         +--> Store, Registry, events   which VMs there are
//!         +--> Engine, Networks, pager   what they run on
//!         `--> QemuImg, Bases            disks, and what those lie over
//! ```
//!
//! Everything else of a host is built on these, and none of it is known here: no fork, no volume, no
//! other host.

mod bases;
mod blocking;
mod error;
mod folders;
mod full;
mod options;
mod own_folders;
mod pager;
mod pager_process;
mod parts;
mod slices;

pub use bases::{Base, Bases};
pub use blocking::blocking;
pub use error::{BROKEN, PartsError};
pub use folders::Folders;
pub use full::{FULL, is_full};
pub use options::{GuestBounds, Options, SettleFirst, UnknownOrder};
pub use own_folders::OwnedFolders;
pub use parts::{MakeEngine, Parts, qemu};
pub use slices::{allocated, backing_of, slices_of};

use forkyard_network::Subnet;
use forkyard_records::FamilyNo;
use forkyard_vmm::Accel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since 1970.
pub fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    since_1970().as_secs()
}

/// Returns a time in whole microseconds, as reports have it.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the network of a family, which follows from its number.
pub fn network_of(number: FamilyNo) -> Result<Subnet, PartsError> {
    Subnet::of(number.0)
        .ok_or_else(|| PartsError::Broken(format!("family number {} has no network", number.0)))
}

/// Returns a value as the store keeps it.
pub fn to_text(value: &impl serde::Serialize) -> Result<String, PartsError> {
    serde_json::to_string(value).map_err(|e| PartsError::Broken(format!("cannot be recorded: {e}")))
}

/// Returns the accelerator of a record. One that is unknown is the safe one.
pub fn accel_of(text: &str) -> Accel {
    match text == Accel::Kvm.to_string() {
        true => Accel::Kvm,
        false => Accel::Tcg,
    }
}
