//! The records of one host, in SQLite.
//!
//! Intent is recorded before acting: a VM's row is there before its process,
//! its disk and its tap, and goes after them. A daemon that died midway leaves
//! rows by which the next one undoes or adopts what is there.
//!
//! Calls block for as long as a small write to a local file takes. One daemon
//! at a time: the caller holds the lock of the host's folder.

mod abroad;
mod error;
mod family;
mod fork;
mod member;
mod row;
mod schema;
mod span;
mod ticket;
mod token;
mod vm;

pub use error::StoreError;
pub use family::{FamilyNo, FamilyRecord};
pub use span::{FamilyTunnel, Loan, Teller};
pub use token::TokenRecord;
pub use vm::{Birth, VmRecord};

use rusqlite::Connection;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The records.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens the records, creating or upgrading them as needed.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Open {
            path: path.into(),
            source,
        };
        let mut connection = Connection::open(path).map_err(failed)?;
        // It holds what lets others in. SQLite gives the files beside it its mode.
        if let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
            let path = path.into();
            return Err(StoreError::Closed {
                path,
                source: error,
            });
        }
        schema::prepare(path, &mut connection)?;
        Ok(Self {
            path: path.into(),
            connection: Mutex::new(connection),
        })
    }

    /// Has what is recorded survive a power cut. Blocks for the disk.
    pub fn flush(&self) -> Result<(), StoreError> {
        // The pragma answers with a row.
        self.lock()
            .query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(()))
            .map_err(self.failed())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> impl Fn(rusqlite::Error) -> StoreError {
        let path = self.path.clone();
        move |source| StoreError::Access {
            path: path.clone(),
            source,
        }
    }
}
