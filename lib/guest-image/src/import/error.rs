//! Reasons why something could not be imported.

use super::digest::Digest;
use crate::error::BuildError;
use forkyard_files::FilesError;
use forkyard_types::ByteCount;
use std::{io, path::PathBuf};

/// Reason why something could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is one of that name, imported earlier.
    #[error("there is an image {name:?} already")]
    Taken {
        /// The name.
        name: String,
    },
    /// The input broke off, or cannot be read.
    #[error("the upload broke off before its end")]
    Incoming {
        /// Cause of its end.
        source: io::Error,
    },
    /// The caller has given up.
    #[error("the import was given up")]
    Cancelled,
    /// The disk is not one that a guest can have.
    #[error(transparent)]
    Disk(#[from] DiskImportError),
    /// The archive is not one of a container image that a guest can be.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A registry does not give it, in the words of the program that asked.
    #[error("{reference} could not be fetched:\n{said}")]
    Registry {
        /// The image.
        reference: String,
        /// The program's last lines.
        said: String,
    },
    /// A step of a build failed, in the words of the builder.
    #[error("the image could not be built:\n{said}")]
    Dockerfile {
        /// The last lines of what it said.
        said: String,
    },
    /// The host could not do it.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Reason why a disk is none that a guest can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskImportError {
    /// The disk is said to be raw, and begins as a qcow2 disk does.
    #[error("this is a qcow2 disk, not a raw one: say --format qcow2")]
    IsQcow2,
    /// The disk is said to be qcow2, and is not.
    #[error("this is not a qcow2 disk; if it is a raw one, say --format raw")]
    NotQcow2,
    /// A part of it lies in another file.
    #[error(
        "the disk needs another file ({0}), and no file but this one is ever read: \
         flatten it with `qemu-img convert -O qcow2`"
    )]
    NeedsAnother(&'static str),
    /// The disk is encrypted.
    #[error("the disk is encrypted")]
    Encrypted,
    /// The disk is too large.
    #[error("the disk is of {size}: {most} at most")]
    TooLarge {
        /// Size of it.
        size: ByteCount,
        /// The most there may be.
        most: ByteCount,
    },
    /// There is no file system that the guest's kernel can have as its root.
    #[error(
        "there is no ext4 file system on the {place}, but {found}: a guest's kernel has its root on ext2, ext3 or ext4"
    )]
    NoFileSystem {
        /// The disk, or a partition.
        place: String,
        /// Content that was found.
        found: &'static str,
    },
    /// The disk has partitions, and none was chosen.
    #[error("the disk has partitions: {}; say which has the root file system: --partition N", .0.join(", "))]
    Partitioned(Vec<String>),
    /// The disk has no such partition.
    #[error("the disk has no partition {wanted}{}", if .there.is_empty() { "; nor any other".to_owned() } else { format!(", but {}", .there.join(", ")) })]
    NoPartition {
        /// The one asked for.
        wanted: u32,
        /// Those there are.
        there: Vec<String>,
    },
    /// A file that was one VM's alone is still there.
    #[error("{path} of the VM's disk could not be removed: remove it in the VM, and commit again")]
    NotScrubbed {
        /// The file.
        path: String,
    },
    /// The file system, or a partition, extends beyond the end of the disk.
    #[error("the {what} is of {wants}, and only {has} are there: the disk was cut off")]
    CutOff {
        /// Part that is not whole.
        what: &'static str,
        /// Bytes it says it has.
        wants: ByteCount,
        /// Bytes there are.
        has: ByteCount,
    },
}

/// Reason why an archive is none of a container image that a guest can be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The input is no archive.
    #[error("the archive cannot be read")]
    Tar {
        /// Fault that was found.
        source: io::Error,
    },
    /// The input is compressed, and unpacks to too much.
    #[error("the archive unpacks to more than {most}: if it is to, say --size")]
    Unpacks {
        /// The most there may be.
        most: ByteCount,
    },
    /// The archive is of something else.
    #[error(
        "the archive has neither index.json nor manifest.json: wanted one made by \
         `skopeo copy … oci-archive:`, `podman save --format oci-archive` or `docker save`"
    )]
    NotAnImage,
    /// Something it refers to is not in it.
    #[error("the archive has no {name}, which it refers to")]
    Missing {
        /// Missing part.
        name: String,
    },
    /// A part is larger than such a part is.
    #[error("{name} is larger than any of its kind")]
    PartTooLarge {
        /// The part.
        name: String,
    },
    /// A part is not JSON, or lacks something.
    #[error("{name} is not what it should be: {why}")]
    Json {
        /// The part.
        name: String,
        /// Fault that was found.
        why: String,
    },
    /// A part is not the one that was meant.
    #[error("{name} is corrupt: its checksum is {found}, not {wanted}")]
    Digest {
        /// The part.
        name: String,
        /// Digest of it.
        found: Digest,
        /// The one it should have.
        wanted: Digest,
    },
    /// A part has not the size it should.
    #[error("{name} is of {found} bytes, not {wanted}")]
    Size {
        /// The part.
        name: String,
        /// Size of it.
        found: u64,
        /// The one it should have.
        wanted: u64,
    },
    /// An index without images.
    #[error("the archive has no image: its index is empty")]
    Empty,
    /// None of its images is for this machine.
    #[error(
        "the archive has images for {}, and guests here run linux/amd64 up to v{level}: make one with \
         `docker pull --platform linux/amd64` or `skopeo --override-arch amd64 copy`",
        .found.join(", ")
    )]
    Platform {
        /// Platforms of the images there.
        found: Vec<String>,
        /// Highest level of the architecture that guests here have.
        level: u8,
    },
    /// The archive has several images, and which is meant is not clear.
    #[error("the archive has several images ({}): make one with a single one", .0.join(", "))]
    Several(Vec<String>),
    /// Of a kind that is not known.
    #[error("the archive has a layer of the kind {0:?}, which cannot be unpacked")]
    MediaType(String),
    /// The parts contradict each other.
    #[error("{0}")]
    Nonsense(&'static str),
    /// A layer cannot be unpacked.
    #[error("layer {number} cannot be unpacked")]
    Layer {
        /// Number of it, from 1.
        number: usize,
        /// Cause.
        source: LayerError,
    },
    /// The part is larger than it may be.
    #[error("what is in the image takes {wants}, and the disk would have {size}: say --size")]
    NoRoom {
        /// Size that it takes.
        wants: ByteCount,
        /// The disk's size.
        size: ByteCount,
    },
    /// The program that unpacks it refuses it, in its words.
    #[error("{said}")]
    Refused {
        /// Fault that it found.
        said: String,
    },
    /// Something is mounted there in a guest, and it is no folder of its own.
    #[error("{place} of the image {why}: a guest has a file system mounted there")]
    Mount {
        /// The folder.
        place: &'static str,
        /// Fault of it.
        why: String,
    },
    /// A size for the disk that makes no sense.
    #[error("a disk of {0} cannot be made: wanted 16 MiB to 1 TiB")]
    DiskSize(ByteCount),
}

/// Reason why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The part cannot be read as what it says it is.
    #[error("it is corrupt")]
    Corrupt {
        /// Fault of it.
        source: io::Error,
    },
    /// The part is larger than it may be.
    #[error("it unpacks to more than {0}")]
    TooLarge(ByteCount),
    /// There are more files than there may be.
    #[error("it has more than {0} files")]
    TooMany(u64),
    /// The names of what is in it take more memory than they may.
    #[error("the names of its files take more than {0}")]
    TooManyNames(ByteCount),
    /// An entry has no place in a guest's tree.
    #[error("{} in it {why}", path.display())]
    Hostile {
        /// The entry.
        path: PathBuf,
        /// Fault of it.
        why: &'static str,
    },
    /// An entry could not be made.
    #[error("{} in it cannot be made", path.display())]
    Make {
        /// The entry.
        path: PathBuf,
        /// Answer of the host.
        source: io::Error,
    },
    /// The caller has given up.
    #[error("it was given up")]
    Cancelled,
}

/// Error of a reader of an archive.
pub(super) fn unreadable(error: FilesError) -> io::Error {
    if let FilesError::Stream(source) = error {
        return source;
    }
    io::Error::other(error)
}

impl From<FilesError> for LayerError {
    fn from(error: FilesError) -> Self {
        Self::Corrupt {
            source: unreadable(error),
        }
    }
}
