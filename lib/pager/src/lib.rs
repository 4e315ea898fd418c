//! Page images as files: `<mount>/<image id>`.
//!
//! ```text
//! daemon --control socket--> catalog of images <--FUSE-- kernel <-- VMs
//! ```
//!
//! A VM maps the file of an image privately and so sees its pages, written or
//! not yet. Promises kept here:
//!
//! - **An image never changes.** A process that can open its file cannot change what
//!   any other sees: not by writing, truncating, punching holes or mapping it
//!   shared. How, and what that costs, is said in `filesystem.rs`.
//! - **A page is right or it is an error**: damage is EIO, never other bytes.
//! - **Reads of a promised image wait** until it is published or fails, and keep
//!   no one else waiting.
//! - **A retired image lives while it is used**, by an open file or by an image
//!   over it, and not longer.
//! - **The pager outlives its clients**: which images exist does not depend on
//!   any connection.
//! - **An image on its way from another host is read like any other**: reads wait
//!   for the pages they need, and fail when these cannot come any more.
//! - **VMs outlive the pager**: when it dies, or makes way for another version,
//!   its [keeper](keep) starts another that goes on with all it served.
//!
//! Names are capabilities among VMs: an image's id is drawn from 122 random bits, the
//! directory lists nothing, and a user of a VM that knows the id may open the file. Other users of
//! the host may open none.
//!
//! Which images there are is the daemon's decision; how they are stored, and what
//! the kernel is given before it asks, the pager's own. The kernel reads
//! what a clone touches and nothing around it ([`READ_AHEAD`]); the pager reads ahead where a clone
//! reads page after page, and where it has seen the clones of a similar image.

mod catalog;
mod client;
mod compaction;
mod compactor;
mod control;
mod error;
mod filesystem;
mod journal;
mod keeper;
mod keeper_client;
mod mount;
mod pager;
mod peers;
mod pool;
mod protocol;
mod pusher;
mod service;
mod similar;
mod stacks;
mod streams;
mod successor_state;
mod touched;

pub use client::PagerClient;
pub use error::{PagerError, StartError};
pub use filesystem::READ_AHEAD;
pub use forkyard_transfer::{CountedLink, Push, Received, Run, Sent};
pub use keeper::{ProgramRole, Programs, keep, other_half};
pub use mount::is_ours as is_mounted;
pub use pager::{Ender, Pager, PagerSetup};
pub use peers::{Arrival, Got, LinkUse};
pub use protocol::{Fetching, Offering, Over, PagerRefusal, PeerKey, Shutdown};
pub use service::{PagerOptions, Prefetch};
pub use successor_state::InheritError;

use forkyard_types::ImageId;
use std::path::{Path, PathBuf};

/// The file of `image` in a pager mounted at `mount`.
pub fn image_path(mount: &Path, image: ImageId) -> PathBuf {
    mount.join(image.to_string())
}
