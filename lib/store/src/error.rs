//! Reasons why the records cannot be used.

use std::path::PathBuf;

/// Reason why the records cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be opened.
    #[error("cannot open the records {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: rusqlite::Error,
    },
    /// Others may read the file, and cannot be kept from it.
    #[error("cannot close the records {path} to others")]
    Closed {
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: std::io::Error,
    },
    /// The records were written by a later version.
    #[error(
        "the records {path} are of version {found}, this program knows {known}: use the newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the records.
        found: i64,
        /// The latest this program knows.
        known: i64,
    },
    /// A read or a write failed, or the file is damaged.
    #[error("cannot read or write the records {path}")]
    Access {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: rusqlite::Error,
    },
    /// The log of the records does not reach the disk.
    #[error("cannot write {path} to the disk: what was recorded last may not survive a power cut")]
    Flush {
        /// The log.
        path: PathBuf,
        /// Error of the host.
        source: std::io::Error,
    },
    /// The file is damaged: what it says may be wrong.
    #[error(
        "the records {path} are damaged ({said}): put a copy of them back; VMs run on meanwhile"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First fault that was found.
        said: String,
    },
    /// A VM of that name exists.
    #[error("a VM named {name} exists already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A substrate of that name exists.
    #[error("a substrate named {name} exists already")]
    SubstrateNameTaken {
        /// The name.
        name: String,
    },
    /// A token of that name exists.
    #[error("a token named {name:?} exists already")]
    TokenNameTaken {
        /// The name.
        name: String,
    },
    /// Another family has the number, and so the network, of one that comes from
    /// another host.
    #[error("another family of this host has number {number}, and so its network")]
    NumberTaken {
        /// The number.
        number: u16,
    },
    /// No number is left to give.
    #[error("no {what} is left: {limit} are in use")]
    Exhausted {
        /// Resource that is exhausted.
        what: &'static str,
        /// Number of them that there are.
        limit: u32,
    },
}
