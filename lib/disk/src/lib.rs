//! A VM's disk: a chain of slices, each a qcow2 file that holds what changed
//! since the one below it was frozen.
//!
//! ```text
//! base <- slice <- slice <- parent's active slice
//!                     ^---- clone's active slice
//! ```
//!
//! Slices have clusters of 4 KiB, so that overwriting a block fetches nothing
//! from below. Larger ones of parts (`extended_l2`) would do so, too; but QEMU
//! before 8.2 aborts, and the VM with it, as soon as it copies from below into
//! one whose first part it has. Their files are made and shared here;
//! others decide which are frozen and when, and tell [`Chains`] which VM needs
//! which slice. It deletes nothing itself.

mod backing;
mod chain;
mod changes;
mod error;
mod file;
mod qemu_img;

pub use backing::{Backing, Format};
pub use chain::{ChainError, Chains};
pub use changes::{ChangedRange, SliceContent};
pub use error::DiskError;
pub use file::{SliceAccess, copy_template, seal, set_access};
pub use qemu_img::QemuImg;
