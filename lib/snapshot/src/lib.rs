//! A VM at one instant: memory, disk, devices, and what its clones take after.
//!
//! ```text
//! take(VM) -----------.                  .--> instantiate: a VM here
//! open(checkpoint) ---+--> Snapshot -----+--> (layer above) clones on other hosts
//! receive(handout) ---'                  `--> persist: a checkpoint
//! ```
//!
//! Fork, checkpoint, wake, migration and a fork to another host are these, in another order. What is
//! known before the instant is its [`Layout`]: shells are made over that, so that the parent stands
//! still for no longer than it takes to copy what differs.
//!
//! Order of steps, and of those in each:
//!
//! | step | in this order |
//! |---|---|
//! | [`prepare`](Snapshots::prepare) | fold a disk that is too deep, make a slice to copy, open the next overlay, promise the image |
//! | [`fill`](Snapshots::fill) | of each shell: record, folders, slice, branches, QEMU, record of the QEMU, link to its agent |
//! | [`take`](Snapshots::take) | admit members, copy ahead, quiesce, record the chain, stop, freeze disks and copy pages, go on, publish |
//! | [`instantiate`](Snapshots::instantiate) | identity, which waits on the link; load: the vCPUs run |
//! | [`persist`](Snapshots::persist) | devices, memory and disk on the host's disk, then the record |
//! | [`open`](Snapshots::open) | version of the agent, devices, memory in the pager |
//! | [`tidy`](Snapshots::tidy) | fold slices; the machine, then the record, then the files |
//! | [`erase`](Snapshots::erase) | process, port, files, record, images, volumes, the family |
//!
//! If taking fails, the parent goes on as it was and the layout's image is retired. A snapshot that was
//! taken is held by its clones' records: its image goes with the last of them
//! ([`Snapshots::retire`]), its slices with the last disk that lies over them.
//!
//! No step may be dropped halfway, unless its docs say so: run them on tasks of their own. A daemon that
//! dies in one of them leaves records, of which the next daemon erases those that are no VM's yet.
//!
//! Knows of no ticket, no name of a clone, no substrate and no other host. What it must ask or tell of
//! those it asks and tells [`Above`].

mod above;
mod dirty_tracking;
mod disjoint;
mod erase;
mod error;
mod fold;
mod fork_priority;
mod generation;
mod instantiate;
mod machine;
mod persist;
mod retire;
mod shells;
mod snapshot;
mod snapshots;
mod take;

pub use above::Above;
pub use dirty_tracking::{CopyStats, Take, forget_image, kept_image};
pub use disjoint::Disjoint;
pub use error::SnapshotError;
pub use generation::{Generation, Next, Rest, warm_shells};
pub use persist::files;
pub use shells::{AT_ONCE, CALLS, Vessel, WarmShell};
pub use snapshot::{Disk, Layout, Original, Snapshot};
pub use snapshots::Snapshots;
pub use take::Taken;

/// Target of the spans of a fork's phases: one filter of the log shows all of them, whichever crate they
/// are in.
const TRACES: &str = "forkyard_fork";
