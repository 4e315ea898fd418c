//! Volumes as disks of the VMs of one host: their server, found or started, and what a VM's life and its
//! forks do with them.
//!
//! ```text
//! VM that booted on a volume --writes--> volume --snapshot--> d@fork-IMAGE
//!                                                                  ^ reads
//! clone --writes--> slice --over--> frozen slices --over-----------'
//!
//! VM writes --> data disk d --snapshot--> d@fork-A <-- branch that a clone writes
//! ```
//!
//! Knows of no other host: how volumes get there and back is `forkyard-fork`'s matter.

mod blockd;
mod disks;
mod error;
mod names;
mod settle;

pub use blockd::Blockd;
pub use disks::VolumeDisks;
pub use error::VolumeError;
pub use names::{
    FORK, branched, data_disk, frozen, frozen_at, has_volume, is_private, is_private_name, over,
    private_name, uses, writer_of,
};
pub use settle::{remove_branch, settle};

/// Counter of the bytes of volumes sent to other hosts, by volume, and by why: all of it, or what had changed.
pub const SENT_BYTES: &str = "forkyard_volume_sent_bytes_total";
