//! The records of one host, in SQLite.
//!
//! Intent is recorded before acting: a VM's row is there before its process,
//! its disk and its tap, and goes after them. A daemon that died midway leaves
//! rows by which the next one undoes or adopts what is there.
//!
//! Calls block for as long as a small write to a local file takes. One daemon
//! at a time: the caller holds the lock of the host's folder.

mod agent;
mod closed;
mod copies;
mod error;
mod family;
mod fork;
mod independence;
mod member;
mod moving;
mod remote_clones;
mod row;
mod schema;
mod span;
mod standby;
mod substrate;
mod terms;
mod ticket;
mod token;
mod vm;
mod volume_moves;

pub use copies::VolumeCopy;
pub use error::RecordsError;
pub use family::{FamilyNo, FamilyRecord};
pub use moving::{Landing, Moving};
pub use span::{FamilyTunnel, Loan, Teller};
pub use substrate::SubstrateRecord;
pub use token::TokenRecord;
pub use vm::{Birth, VmRecord};
pub use volume_moves::{KnownTerm, VolumeMove};

use rusqlite::Connection;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The records.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Records {
    /// Opens the records, creating or upgrading them as needed.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let failed = |source| RecordsError::open(path, source);
        // It holds what lets others in: closed to them before there is anything in it. SQLite
        // gives the files beside it its mode. One that exists is not opened here: closing it would
        // drop the locks that SQLite has of it if this process has it open already.
        let closed = match forkyard_sys_host::private::create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            }
            created => created.map(drop),
        };
        if let Err(error) = closed {
            let path = path.into();
            return Err(RecordsError::Closed {
                path,
                source: error,
            });
        }
        let mut connection = Connection::open(path).map_err(failed)?;
        schema::prepare(path, &mut connection)?;
        Ok(Self {
            path: path.into(),
            connection: Mutex::new(connection),
        })
    }

    /// Makes everything recorded so far survive a power cut. Blocks for the disk.
    ///
    /// Commits write to the log without waiting for the disk. Syncing the log needs no
    /// checkpoint, which another connection that reads could hold up. What a checkpoint has moved
    /// into the file SQLite has synced itself; the file must not be opened here, for closing it
    /// would drop SQLite's locks.
    pub fn flush(&self) -> Result<(), RecordsError> {
        // No commit of this connection is under way.
        let connection = self.lock();
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        match fs::File::open(&log).and_then(|log| log.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RecordsError::Flush {
                    path: log.into(),
                    source: error,
                });
            }
            Ok(()) | Err(_) => {}
        }
        // It need not succeed: it keeps the log short, as far as nothing else reads it.
        connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(self.failed())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> impl Fn(rusqlite::Error) -> RecordsError {
        let path = self.path.clone();
        move |source| RecordsError::access(&path, source)
    }
}
