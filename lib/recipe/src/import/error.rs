//! Why something could not be imported.

use super::digest::Digest;
use crate::error::BuildError;
use forkyard_files::FilesError;
use forkyard_types::ByteCount;
use std::{io, path::PathBuf};

/// Why something could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is one of that name, imported earlier.
    #[error("there is an image {name:?} already")]
    Taken {
        /// The name.
        name: String,
    },
    /// What is imported broke off, or cannot be read.
    #[error("what is to be imported did not come in whole")]
    Incoming {
        /// How it ended.
        source: io::Error,
    },
    /// Whoever wanted it no longer does.
    #[error("the import was given up")]
    Cancelled,
    /// The disk is not one that a guest can have.
    #[error(transparent)]
    Disk(#[from] DiskError),
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

/// Why a disk is none that a guest can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// It is said to be raw, and begins as a qcow2 disk does.
    #[error("this is a qcow2 disk, not a raw one: say --format qcow2")]
    IsQcow2,
    /// It is said to be a qcow2 disk, and is none.
    #[error("this is not a qcow2 disk; if it is a raw one, say --format raw")]
    NotQcow2,
    /// A part of it lies in another file.
    #[error(
        "the disk needs another file ({0}), and no file but this one is ever read: \
         flatten it with `qemu-img convert -O qcow2`"
    )]
    NeedsAnother(&'static str),
    /// It is encrypted.
    #[error("the disk is encrypted")]
    Encrypted,
    /// It is too large.
    #[error("the disk is of {size}: {most} at most")]
    TooLarge {
        /// Its size.
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
        /// What is there.
        found: &'static str,
    },
    /// It has partitions, and it was not said which to take.
    #[error("the disk has partitions: {}; say which has the root file system: --partition N", .0.join(", "))]
    Partitioned(Vec<String>),
    /// It has no such partition.
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
    /// Its file system, or a partition, goes on behind its end.
    #[error("the {what} is of {wants}, and only {has} are there: the disk was cut off")]
    CutOff {
        /// What is not whole.
        what: &'static str,
        /// Bytes it says it has.
        wants: ByteCount,
        /// Bytes there are.
        has: ByteCount,
    },
}

/// Why an archive is none of a container image that a guest can be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It is no archive.
    #[error("the archive cannot be read")]
    Tar {
        /// What is wrong.
        source: io::Error,
    },
    /// It is compressed, and unpacks to too much.
    #[error("the archive unpacks to more than {most}: if it is to, say --size")]
    Unpacks {
        /// The most there may be.
        most: ByteCount,
    },
    /// It is an archive of something else.
    #[error(
        "the archive has neither index.json nor manifest.json: wanted one made by \
         `skopeo copy … oci-archive:`, `podman save --format oci-archive` or `docker save`"
    )]
    NotAnImage,
    /// Something it refers to is not in it.
    #[error("the archive has no {name}, which it refers to")]
    Missing {
        /// What is missing.
        name: String,
    },
    /// A part is larger than such a part is.
    #[error("{name} is larger than any of its kind")]
    PartTooLarge {
        /// The part.
        name: String,
    },
    /// A part is not JSON, or lacks something.
    #[error("{name} is not what it should be")]
    Json {
        /// The part.
        name: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A part is not the one that was meant.
    #[error("{name} is corrupt: its checksum is {found}, not {wanted}")]
    Digest {
        /// The part.
        name: String,
        /// Its digest.
        found: Digest,
        /// The one it should have.
        wanted: Digest,
    },
    /// A part has not the size it should.
    #[error("{name} is of {found} bytes, not {wanted}")]
    Size {
        /// The part.
        name: String,
        /// Its size.
        found: u64,
        /// The one it should have.
        wanted: u64,
    },
    /// None of its images is for this machine.
    #[error(
        "the archive has images for {}, and guests here run linux/amd64 up to v{level}: make one with \
         `docker pull --platform linux/amd64` or `skopeo --override-arch amd64 copy`",
        .found.join(", ")
    )]
    Platform {
        /// What they are for.
        found: Vec<String>,
        /// Highest level of the architecture that guests here have.
        level: u8,
    },
    /// It has several, and which is meant is not clear.
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
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: LayerError,
    },
    /// It is larger than it may be.
    #[error("what is in the image takes {wants}, and the disk would have {size}: say --size")]
    NoRoom {
        /// What it takes.
        wants: ByteCount,
        /// The disk's size.
        size: ByteCount,
    },
    /// A size for the disk that makes no sense.
    #[error("a disk of {0} cannot be made: wanted 16 MiB to 1 TiB")]
    DiskSize(ByteCount),
}

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// It cannot be read as what it says it is.
    #[error("it is corrupt")]
    Corrupt {
        /// How.
        source: io::Error,
    },
    /// It is larger than it may be.
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
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry could not be made.
    #[error("{} in it cannot be made", path.display())]
    Make {
        /// The entry.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// Whoever wanted it no longer does.
    #[error("it was given up")]
    Cancelled,
}

/// What a reader of an archive says.
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
