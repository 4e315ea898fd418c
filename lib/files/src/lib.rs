//! Files and folders as a tar stream, and back.
//!
//! ```text
//! path --pack--> tar (pax) --unpack--> Destination
//! ```
//!
//! Both ends of a copy between a host and a guest use it, so neither needs a
//! `tar` or a shell. `pack` reads a tree that may change meanwhile; `unpack` takes
//! its stream for hostile. All of it blocks, and takes memory that does not
//! depend on the size of the tree.

mod entry;
mod error;
mod fields;
mod half;
pub mod inside;
mod pack;
mod place;
mod reader;
mod special;
mod unpack;
mod writer;

pub use entry::{Entry, EntryKind};
pub use error::FilesError;
pub use half::Half;
pub use pack::{Noted, pack};
pub use place::{CopyTarget, WantedMembers};
pub use reader::Reader;
pub use special::cannot_be_replaced;
pub use unpack::{Unpacked, unpack};
pub use writer::TarWriter;

/// Bytes of a record of a tar stream.
pub(crate) const BLOCK: usize = 512;
/// Bytes copied at once.
pub(crate) const PIECE: usize = 128 << 10;

#[cfg(test)]
mod tests;
