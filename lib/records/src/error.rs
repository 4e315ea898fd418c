//! Reasons why the records cannot be used.

use nix::sys::statvfs::statvfs;
use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};

/// Bytes that the shared index of a log takes at least.
const LEAST_ROOM: u64 = 32 << 10;

/// Reason why the records cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
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
    /// The disk has no room left for the records.
    #[error("the disk of the records {path} is full")]
    Full {
        /// The file.
        path: PathBuf,
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

impl RecordsError {
    /// Error of a read or a write.
    pub(crate) fn access(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match is_full(&path, &source) {
            true => Self::Full { path },
            false => Self::Access { path, source },
        }
    }

    /// Error of the opening.
    pub(crate) fn open(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match is_full(&path, &source) {
            true => Self::Full { path },
            false => Self::Open { path, source },
        }
    }
}

/// Tells whether the disk's room is the cause. SQLite says so of its own files alone: of what it
/// maps it says that it cannot.
fn is_full(path: &Path, error: &rusqlite::Error) -> bool {
    let no_room = || {
        let disk = statvfs(path.parent().unwrap_or(path));
        disk.is_ok_and(|it| it.blocks_available() * it.fragment_size() < LEAST_ROOM)
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => true,
        Some(code) => code == ErrorCode::SystemIoFailure && no_room(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Records;
    use forkyard_types::{FamilyId, ForkId};

    #[test]
    fn records_that_no_longer_fit_the_disk_say_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Records::open(&folder.path().join("records")).expect("opened");
        // SQLite counts what it may take as it counts the disk's room.
        let room: i64 = store
            .lock()
            .query_row("PRAGMA max_page_count = 1", [], |row| row.get(0))
            .expect("bounded");
        assert!(room > 1, "what is taken is kept");
        let filled = (0..10_000_i64).find_map(|n| {
            let (fork, family) = (ForkId::random(), FamilyId::random());
            store
                .put_remote_clones((fork, &n.to_string()), family, "{}")
                .err()
        });
        let error = filled.expect("no room in the end");
        assert!(matches!(error, RecordsError::Full { .. }), "{error:?}");
        let told = error.to_string();
        assert!(told.ends_with("is full"), "{told}");
    }
}
