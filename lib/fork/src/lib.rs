//! A host of VMs that fork: their lives from boot to end, tickets, families,
//! and the fork itself.
//!
//! Policy and order of steps live here; every mechanism is a crate of its own
//! (engine, capture, pager, disk, network, guest link, records). Knows nothing
//! of HTTP.

mod adopt;
mod again;
mod baseline;
mod bases;
mod blocking;
mod boot;
mod bounds;
mod calls;
mod checkpoint;
mod clone;
mod commit;
mod console;
mod dirty_tracking;
mod doctor;
mod egress;
mod end;
mod error;
mod events;
mod fold;
mod folders;
mod fork;
mod fork_priority;
mod friendly;
mod generation;
mod host;
mod idle;
mod images;
mod independence;
mod joining;
mod migrate;
mod options;
mod own_folders;
mod pager_process;
mod parts;
mod pause;
mod progress;
mod publish;
mod quota;
mod relink;
mod remote;
mod rename;
mod requests;
mod restart;
mod room;
mod secrets;
mod shares;
mod snapshot;
mod substrate;
pub mod telemetry;
mod terms;
mod ticket;
mod usage;
mod volumes;
mod wall;

pub use bounds::{BoundReached, GuestBounds, Rated};
pub use console::Said;
pub use error::HostError;
pub use folders::Folders;
pub use forkyard_agent_link::{Duplex, Piece, Visitors};
pub use forkyard_blockd::Counts as VolumeCounts;
pub use forkyard_guest_image::Reach;
pub use forkyard_network::Closed;
pub use forkyard_objects::Address as StoreAddress;
pub use forkyard_pager::{Got, Link, LinkUse, Push};
pub use forkyard_records::FamilyNo;
pub use forkyard_vm::{
    FilesIn, FilesOut, Following, PortError, PortIn, PortOut, SessionError, Used, VmError,
};
pub use friendly::FriendlyError;
pub use host::{Host, MakeEngine, qemu};
pub use images::{Incoming, Outgoing};
pub use migrate::IncomingVolume;
pub use options::Options;
pub use quota::QuotaReached;
pub use remote::{HERE, Neighbours, Peer, SettleFirst, Trusted, UnknownOrder};
pub use room::{Granted, Lot, Room};
pub use snapshot::OtherAgent;
pub use substrate::{Stores, SubstrateError};
pub use ticket::{Denied, Promise, Share, Tickets, lay_out};
pub use volumes::SupplyLine;
pub use volumes::VolumeError;
pub use volumes::{Home, Homes};

pub use forkyard_vmm::{AccelChoice, Engine, VmmError};

use forkyard_network::Subnet;
use forkyard_vmm::Accel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Seconds since 1970.
fn now() -> u64 {
    since_1970().as_secs()
}

/// The network of a family follows from its number.
fn network_of(number: FamilyNo) -> Result<Subnet, HostError> {
    Subnet::of(number.0)
        .ok_or_else(|| HostError::Invalid(format!("family number {} has no network", number.0)))
}

/// A value as the store keeps it.
fn to_text(value: &impl serde::Serialize) -> Result<String, HostError> {
    serde_json::to_string(value).map_err(|e| HostError::Invalid(format!("cannot be recorded: {e}")))
}

/// The accelerator of a record. One that is unknown is the safe one.
fn accel_of(text: &str) -> Accel {
    match text == Accel::Kvm.to_string() {
        true => Accel::Kvm,
        false => Accel::Tcg,
    }
}
