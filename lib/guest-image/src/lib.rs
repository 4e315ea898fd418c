//! Parts that a VM boots from: a disk image made from a recipe, Debian's kernel, and
//! an initramfs that carries the guest agent.
//!
//! ```text
//! images/tiny.toml --Recipe::load--> Recipe --Cache::image-----> ext4 disk
//! a disk, a container image -----------------Cache::import----> ext4 disk
//! Debian's archive ---------------------------Cache::kernel----> vmlinuz, modules
//!                          modules, agent ----Cache::initramfs-> cpio
//! ```
//!
//! Everything made is kept in a [`Cache`] under a name that follows from what
//! it was made of, so that a second request costs a hash. Any number of
//! processes may share one cache; whatever is interrupted leaves nothing but
//! temporary files, which the next build removes.
//!
//! All of it blocks, some of it for minutes, and runs programs: apt, dpkg-deb,
//! mmdebstrap, e2fsprogs, qemu-img, skopeo, buildah. It installs nothing on the host, and
//! mounts nothing that the host can see.

mod apt;
mod cache;
mod cpio;
mod error;
mod image;
mod import;
mod initramfs;
mod kernel;
mod key;
mod modules;
mod progress;
mod recipe;
mod run;

pub use cache::{Cache, ImageFile};
pub use error::{BuildError, RecipeError};
pub use forkyard_confine::FetchReach;
pub use import::{
    ArchiveError, Cancel, DiskImportError, Dockerfile, EXPORT, ImportError, Imported,
    InvalidDockerfile, Provenance, Scrub, Source, unpack_as_told,
};
pub use initramfs::{GuestFiles, Reseed};
pub use kernel::{GuestKernel, KernelChoice};
pub use key::{CacheKey, NotAKey};
pub use modules::ModuleError;
pub use progress::BuildEvent;
pub use recipe::Recipe;
