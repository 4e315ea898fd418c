//! A host of VMs that fork: their lives from boot to end, tickets, families,
//! and the fork itself, which is written on snapshots.
//!
//! Policy and order of steps live here; every mechanism is a crate of its own
//! (engine, capture, pager, disk, network, guest link, records). Knows nothing
//! of HTTP.

mod above;
mod adopt;
mod again;
mod baseline;
mod boot;
mod bounds;
mod calls;
mod checkpoint;
mod clone;
mod commit;
mod console;
mod doctor;
mod egress;
mod emulation;
mod end;
mod error;
mod events;
mod families;
mod fork;
mod friendly;
mod host;
mod idle;
mod images;
mod independence;
mod instantiate;
mod joining;
mod knock;
mod lives;
mod lost_pager;
mod migrate;
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
mod substrate;
pub mod telemetry;
mod terms;
mod ticket;
mod usage;
mod volumes;
mod wall;
mod warm;

pub use bounds::{BoundReached, Rated};
pub use console::ConsoleText;
pub use error::HostError;
pub use forkyard_agent_link::{Duplex, StreamPiece, Visitors};
pub use forkyard_blockd::Counts as VolumeCounts;
pub use forkyard_guest_image::FetchReach;
pub use forkyard_host::{
    Folders, GuestBounds, MakeEngine, Options, PartsError, SettleFirst, UnknownOrder, qemu,
};
pub use forkyard_network::Closed;
pub use forkyard_objects::StoreAddress;
pub use forkyard_pager::{CountedLink, Got, LinkUse, Push};
pub use forkyard_records::FamilyNo;
pub use forkyard_vm::{
    FilesIn, FilesOut, Following, PortError, PortIn, PortOut, SessionError, Used, VmError,
};
pub use friendly::FriendlyError;
pub use host::Host;
pub use images::{Incoming, Outgoing};
pub use migrate::IncomingVolume;
pub use quota::QuotaReached;
pub use remote::{HERE, Neighbours, Peer, Trusted};
pub use room::{CloneRoom, Granted, Lot};
pub use substrate::{Stores, SubstrateError};
pub use ticket::{Denied, Promise, Share, Tickets, lay_out};
pub use volumes::SupplyLine;
pub use volumes::VolumeError;
pub use volumes::{Home, Homes};

pub use forkyard_vmm::{AccelChoice, Engine, VmmError};

use forkyard_host::{accel_of, blocking, micros, network_of, now, since_1970, to_text};
