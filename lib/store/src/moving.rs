//! VMs that stand still here because another host may have let them go on.

use crate::{Store, StoreError, row::parsed};
use forkyard_types::{ForkId, VmId};
use rusqlite::params;

/// Where a VM may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The other host, as it is called here.
    pub peer: String,
    /// The migration.
    pub migration: ForkId,
}

impl Store {
    /// Records that another host may have let a VM go on. It survives a power cut.
    pub fn put_moving(&self, vm: VmId, moving: &Moving) -> Result<(), StoreError> {
        let put = self.lock().execute(
            "INSERT INTO moving VALUES (?1, ?2, ?3)
             ON CONFLICT (vm) DO UPDATE SET peer = ?2, migration = ?3",
            params![vm.as_str(), moving.peer, moving.migration.as_str()],
        );
        put.map_err(self.failed())?;
        self.flush()
    }

    /// Records that it is known whether it did.
    pub fn remove_moving(&self, vm: VmId) -> Result<(), StoreError> {
        self.lock()
            .execute("DELETE FROM moving WHERE vm = ?1", [vm.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// All of them.
    pub fn moving(&self) -> Result<Vec<(VmId, Moving)>, StoreError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT vm, peer, migration FROM moving")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                let moving = Moving {
                    peer: row.get("peer")?,
                    migration: parsed(row, "migration")?,
                };
                Ok((parsed(row, "vm")?, moving))
            })
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_is_known_to_the_next_daemon_until_it_is_settled() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::open(&folder.path().join("db")).expect("store");
        let (vm, migration) = (VmId::random(), ForkId::random());
        let to = |peer: &str| Moving {
            peer: peer.to_owned(),
            migration,
        };
        store.put_moving(vm, &to("b")).expect("recorded");
        store.put_moving(vm, &to("c")).expect("recorded");
        drop(store);
        let store = Store::open(&folder.path().join("db")).expect("again");
        assert_eq!(store.moving().expect("read"), [(vm, to("c"))]);
        store.remove_moving(vm).expect("removed");
        assert_eq!(store.moving().expect("read"), []);
    }
}
