//! Record of the police, for the next daemon.

use forkyard_sys_host::private;
use forkyard_types::PoliceState;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Knowledge that outlives the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// State of the police.
    pub(crate) state: PoliceState,
    /// Milliseconds since 1970 until which it is to go on; none: until it is ended.
    until_ms: Option<u64>,
}

impl Order {
    pub(crate) fn of(state: PoliceState, until: Option<SystemTime>) -> Self {
        let since = until.map(|until| until.duration_since(UNIX_EPOCH).unwrap_or_default());
        let until_ms = since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        Self { state, until_ms }
    }

    /// Returns the time until which it is to go on.
    pub(crate) fn until(&self) -> Option<SystemTime> {
        let since = self.until_ms.map(Duration::from_millis);
        since.and_then(|since| UNIX_EPOCH.checked_add(since))
    }
}

/// File of the record.
#[derive(Clone, Debug)]
pub(crate) struct Record(PathBuf);

impl Record {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Reads it; none if there is no police. Blocks for a read.
    pub(crate) fn read(&self) -> io::Result<Option<Order>> {
        match fs::read(&self.0) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, in one step. Blocks for a write.
    pub(crate) fn write(&self, order: &Order) -> io::Result<()> {
        let fresh = self.0.with_extension("new");
        let mut file = private::create(&fresh)?;
        file.write_all(&serde_json::to_vec(order)?)?;
        fs::rename(fresh, &self.0)
    }

    /// Removes it. Blocks.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let record = Record::at(folder.path().join("police.json"));
        assert_eq!(record.read().expect("read"), None);
        let until = UNIX_EPOCH + Duration::from_millis(12_345);
        let order = Order::of(PoliceState::default(), Some(until));
        record.write(&order).expect("written");
        let read = record.read().expect("read").expect("there");
        assert_eq!((read.until(), &read), (Some(until), &order));
        record.remove().expect("removed");
        record.remove().expect("removed before");
        assert_eq!(record.read().expect("read"), None);
        assert_eq!(
            folder.path().read_dir().expect("listed").count(),
            0,
            "nothing is left"
        );
    }
}
