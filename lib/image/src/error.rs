//! Faults of a layer or an image.

use crate::{Checksum, Slot};
use forkyard_types::{ImageId, PageCount, PageNo};
use std::io;

/// Reason why a layer could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The host refused to read the file, or it ended early.
    #[error("cannot read layer file")]
    Read {
        /// Error of the host.
        source: io::Error,
    },
    /// The host refused to write the file.
    #[error("cannot write layer file")]
    Write {
        /// Error of the host.
        source: io::Error,
    },
    /// The file is no intact layer.
    #[error("not an intact layer")]
    Format(#[from] Flaw),
    /// A page does not have the contents it was written with.
    #[error("{page} of image {image} is damaged")]
    Damaged {
        /// Image whose layer holds it.
        image: ImageId,
        /// The page.
        page: PageNo,
    },
    /// A layer was laid over another image than the one it was made from.
    #[error("layer lies over {wants:?}, not over {got:?}")]
    WrongParent {
        /// Parent it names.
        wants: Option<ImageId>,
        /// Parent it was given.
        got: Option<ImageId>,
    },
    /// A layer borrows a page its parent does not have.
    #[error("{page} of image {image} is borrowed from {from}, which is not there")]
    Borrowed {
        /// Image the layer makes.
        image: ImageId,
        /// The page.
        page: PageNo,
        /// The page of the parent.
        from: PageNo,
    },
    /// Pages asked for lie outside the image.
    #[error("{first} and the {pages} from there are not all inside {size}")]
    OutOfRange {
        /// First page asked for.
        first: PageNo,
        /// Pages asked for.
        pages: PageCount,
        /// Size of the image.
        size: PageCount,
    },
    /// A buffer does not hold a whole number of pages.
    #[error("{bytes} bytes are not a whole number of pages")]
    NotPages {
        /// Length of the file.
        bytes: usize,
    },
}

/// Reason why a file is no layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// The file does not start like one.
    #[error("does not start with a layer's mark")]
    Magic,
    /// The file was written by another version of this program.
    #[error("layer format version {0} is not known here")]
    Version(u32),
    /// The header's checksum is wrong.
    #[error("header is damaged")]
    Header,
    /// A header field has a value no writer gives it.
    #[error("header field {0} is invalid")]
    Field(&'static str),
    /// The file ends before its contents do.
    #[error("file has {have} bytes of {want}")]
    Truncated {
        /// Bytes it has.
        have: u64,
        /// Bytes its header promises.
        want: u64,
    },
    /// The index's checksum is wrong.
    #[error("index has checksum {have:?}, not {want:?}")]
    Index {
        /// Checksum of what is there.
        have: Checksum,
        /// Checksum in the header.
        want: Checksum,
    },
    /// An extent is empty, starts before the one before it ends, or lies
    /// outside the image.
    #[error("extent at {first} is out of place")]
    Extent {
        /// First page of the extent.
        first: PageNo,
    },
    /// An extent's data lies outside the file's slots.
    #[error("data of extent at {first} is outside the file: {slot:?}")]
    Slot {
        /// First page of the extent.
        first: PageNo,
        /// First slot of the chunk.
        slot: Slot,
    },
    /// A chunk is empty, too large, or outside the file.
    #[error("chunk {number} is out of place")]
    Chunk {
        /// Number of the chunk.
        number: u32,
    },
    /// An extent's data lies outside its chunk.
    #[error("data of extent at {first} is outside its chunk")]
    Packed {
        /// First page of the extent.
        first: PageNo,
    },
    /// An extent borrows from a parent, and there is none.
    #[error("extent at {first} borrows from a parent that the layer has not")]
    Borrowed {
        /// First page of the extent.
        first: PageNo,
    },
    /// An extent's data is at a place of a kind not known here.
    #[error("data of extent at {first} is at no place known here")]
    Place {
        /// First page of the extent.
        first: PageNo,
    },
    /// The extents hold another number of pages than there are checksums.
    #[error("extents hold {have}, checksums are for {want}")]
    DataPages {
        /// Pages in the extents.
        have: PageCount,
        /// Checksums.
        want: PageCount,
    },
}
