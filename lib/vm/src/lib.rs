//! One VM as its host knows it: its state and record, the turns to change it, its guest's commands,
//! files and ports.
//!
//! ```text
//! Registry --> Vm --> Life --> RunningVm --> machine (engine)
//!               |                 `---> guest (agent)
//!               `--> Turn: one change at a time
//! ```
//!
//! Knows of no other VM: forks, snapshots and networks are built on this, and keep what they know of a VM
//! with it ([`Vm::attached`], [`Turn::leave`]).

mod alive;
mod attached;
mod error;
pub mod events;
mod exec;
mod files;
mod life;
mod pause;
mod ports;
mod registry;
mod sessions;
mod stuck;
mod turn;
mod under_way;
mod uses;
mod vm;

pub use error::{VmError, engine_hint, engine_kind, link_kind, records_hint, records_kind};
pub use exec::Following;
pub use files::{FilesIn, FilesOut};
pub use life::{Life, RunningVm};
pub use ports::{PortError, PortIn, PortOut};
pub use registry::{Registry, Uid, gid};
pub use sessions::{SessionError, listed};
pub use turn::Turn;
pub use under_way::{Begun, UnderWay};
pub use uses::{InUse, Used, Uses};
pub use vm::{Vm, address, lock};

use attached::Attached;
