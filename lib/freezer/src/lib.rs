//! Freezing single threads by control groups, and a process that undoes it.
//!
//! ```text
//! program --> mounts: where hierarchies are mounted
//!         --> Group:  makes a group, puts threads into it, stops them, lets them go
//!         --> Guard:  told of each step before it is taken
//!   X (killed)  \--end of file--> the guard's process: thaw, release, put back
//! ```
//!
//! Cgroup v2 lets a thread be frozen in a *threaded* group below the group its process is
//! in, even where v2 has no other controller. Where that cannot be made, the v1 freezer
//! takes threads one by one anywhere.
//!
//! Failure paths: a group that could be made in part only is removed by [`Group::make`];
//! one that a program and its guard both left behind is removed by the next program that
//! wants its place, with [`release`]. Decides nothing, and logs nothing: errors are the
//! caller's to tell of.

mod error;
mod group;
pub mod guard;
mod mount;

pub use error::FreezerError;
pub use group::{Frozen, Group, release, thaw};
pub use mount::{CgroupVersion, Mount, freezer, group_of, mounts, parse};
