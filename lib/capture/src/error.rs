//! Reasons why a capture failed. None of these touches the process captured.

use forkyard_image::ImageError;
use forkyard_types::PageNo;
use std::io;

/// Reason why memory could not be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such process, or it ended meanwhile.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The region does not start at a page, or does not fit into an address space.
    #[error("region at {start:#x} is not one of whole pages")]
    Region {
        /// First address of the region.
        start: u64,
    },
    /// The process's page map cannot be read.
    #[error("cannot read the page map of process {pid}")]
    PageMap {
        /// The process.
        pid: u32,
        /// Error of the host.
        source: io::Error,
    },
    /// A page the process has cannot be read: it was unmapped meanwhile.
    #[error("cannot read {page} of process {pid}")]
    Memory {
        /// The process.
        pid: u32,
        /// The page, counted from the start of the region.
        page: PageNo,
        /// Error of the host.
        source: io::Error,
    },
    /// The image cannot be made: the host is out of memory or descriptors.
    #[error("cannot make an image in memory")]
    Destination {
        /// Error of the host.
        source: io::Error,
    },
    /// The captured pages make no layer.
    #[error("cannot complete the image")]
    Layer(#[from] ImageError),
    /// A copying thread panicked.
    #[error("a copying thread failed")]
    Thread,
}
