//! VMs that stand still here because another host may have let them go on.

use crate::{
    Records, RecordsError, VmRecord,
    row::{from_json, json, parsed},
};
use forkyard_types::{ForkId, VmId, VmView};
use rusqlite::{Connection, OptionalExtension, params};

/// Host on which a VM may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The other host, as it is called here.
    pub peer: String,
    /// The migration.
    pub migration: ForkId,
    /// True if it stood still before, for its user wants it to.
    pub was_paused: bool,
}

/// A VM that goes on here.
#[derive(Clone, Debug)]
pub struct Landing {
    /// The migration by which it came.
    pub migration: ForkId,
    /// Record of the VM from here on.
    pub vm: VmRecord,
    /// Answer to its former host, however late it asks.
    pub view: VmView,
}

impl Records {
    /// Records that VMs go on here which came by migrations: all of them at one stroke, or none.
    pub fn land(&self, landings: &[Landing]) -> Result<(), RecordsError> {
        let mut connection = self.lock();
        let stroke = connection.transaction().map_err(self.failed())?;
        for Landing {
            migration,
            vm,
            view,
        } in landings
        {
            self.put_vm_by(&stroke, vm)?;
            self.put_landed_by(&stroke, *migration, view)?;
        }
        stroke.commit().map_err(self.failed())
    }

    /// Records that another host may have let a VM go on. It survives a power cut.
    pub fn put_moving(&self, vm: VmId, moving: &Moving) -> Result<(), RecordsError> {
        let put = self.lock().execute(
            "INSERT INTO moving (vm, peer, migration, was_paused) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (vm) DO UPDATE SET peer = ?2, migration = ?3, was_paused = ?4",
            params![
                vm.as_str(),
                moving.peer,
                moving.migration.as_str(),
                moving.was_paused
            ],
        );
        put.map_err(self.failed())?;
        self.flush()
    }

    /// Records that it is known whether it did.
    pub fn remove_moving(&self, vm: VmId) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM moving WHERE vm = ?1", [vm.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Records that a VM goes on here that came by this migration. Its former host may ask for it
    /// long after; the last thousand are kept.
    pub fn put_landed(&self, migration: ForkId, vm: &VmView) -> Result<(), RecordsError> {
        self.put_landed_by(&self.lock(), migration, vm)
    }

    fn put_landed_by(
        &self,
        connection: &Connection,
        migration: ForkId,
        vm: &VmView,
    ) -> Result<(), RecordsError> {
        let view = json(vm).map_err(self.failed())?;
        connection
            .execute(
                "INSERT OR REPLACE INTO landed VALUES (?1, ?2)",
                params![migration.as_str(), view],
            )
            .map_err(self.failed())?;
        connection
            .execute(
                "DELETE FROM landed WHERE rowid <= (SELECT max(rowid) FROM landed) - 1000",
                [],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Records that VMs that came by these migrations do not go on here, after all: all of them at
    /// one stroke. Their records go, too.
    pub fn unland(&self, came: &[(ForkId, VmId)]) -> Result<(), RecordsError> {
        let mut connection = self.lock();
        let stroke = connection.transaction().map_err(self.failed())?;
        for (migration, vm) in came {
            stroke
                .execute(
                    "DELETE FROM landed WHERE migration = ?1",
                    [migration.as_str()],
                )
                .and_then(|_| stroke.execute("DELETE FROM vm WHERE id = ?1", [vm.as_str()]))
                .map_err(self.failed())?;
        }
        stroke.commit().map_err(self.failed())
    }

    /// The VM that came by a migration, as it was then.
    pub fn landed(&self, migration: ForkId) -> Result<Option<VmView>, RecordsError> {
        let connection = self.lock();
        let found = connection
            .query_row(
                "SELECT vm FROM landed WHERE migration = ?1",
                [migration.as_str()],
                |row| from_json(row, "vm"),
            )
            .optional();
        found.map_err(self.failed())
    }

    /// All of them.
    pub fn moving(&self) -> Result<Vec<(VmId, Moving)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT vm, peer, migration, was_paused FROM moving")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                let moving = Moving {
                    peer: row.get("peer")?,
                    migration: parsed(row, "migration")?,
                    was_paused: row.get("was_paused")?,
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

    fn view(id: VmId) -> VmView {
        serde_json::from_value(serde_json::json!({
            "id": id, "name": "p", "state": "running", "family": forkyard_types::FamilyId::random(),
            "member": 0, "parent": null, "fork": null,
            "epoch": "00000000-0000-0000-0000-000000000000", "image": "tiny", "vcpus": 1,
            "memory": 1 << 20, "pid": null, "accel": "tcg", "created": 1,
            "address": {"ip": "10.0.0.1", "prefix": 24, "mac": [2, 0, 0, 0, 0, 1]},
        }))
        .expect("a VM")
    }

    #[test]
    fn what_moves_is_known_to_the_next_daemon_until_it_is_settled() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let (vm, migration) = (VmId::random(), ForkId::random());
        let to = |peer: &str| Moving {
            peer: peer.to_owned(),
            migration,
            was_paused: peer == "c",
        };
        store.put_moving(vm, &to("b")).expect("recorded");
        store.put_moving(vm, &to("c")).expect("recorded");
        drop(store);
        let store = Records::open(&folder.path().join("db")).expect("again");
        assert_eq!(store.moving().expect("read"), [(vm, to("c"))]);
        store.remove_moving(vm).expect("removed");
        assert_eq!(store.moving().expect("read"), []);
    }

    #[test]
    fn vms_land_together_or_not_at_all() {
        let (_folder, store, family) = crate::vm::tests::store();
        let landing = |name: &str, number: u16| {
            let vm = crate::vm::tests::vm(family, name, number);
            Landing {
                migration: ForkId::random(),
                view: view(vm.id),
                vm,
            }
        };
        let (a, b) = (landing("a", 1), landing("b", 2));
        let taken = landing("a", 3);
        let refused = store.land(&[b.clone(), a.clone(), taken]);
        assert!(matches!(refused, Err(RecordsError::NameTaken { .. })));
        assert_eq!(store.vms().expect("read"), []);
        assert!(store.landed(b.migration).expect("read").is_none());
        store.land(&[a.clone(), b.clone()]).expect("both");
        assert_eq!(store.vms().expect("read").len(), 2);
        for it in [&a, &b] {
            let landed = store.landed(it.migration).expect("read");
            assert_eq!(landed.map(|vm| vm.id), Some(it.vm.id));
        }
        let came = [&a, &b].map(|it| (it.migration, it.vm.id));
        store.unland(&came).expect("both");
        assert_eq!(store.vms().expect("read"), []);
        assert!(store.landed(a.migration).expect("read").is_none());
    }

    #[test]
    fn what_landed_is_known_for_long_and_not_for_ever() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let view = view(VmId::random());
        let first = ForkId::random();
        store.put_landed(first, &view).expect("recorded");
        drop(store);
        let store = Records::open(&folder.path().join("db")).expect("again");
        assert_eq!(
            store.landed(first).expect("read").map(|vm| vm.id),
            Some(view.id)
        );
        assert!(store.landed(ForkId::random()).expect("read").is_none());
        let other = ForkId::random();
        store.put_landed(other, &view).expect("recorded");
        store.unland(&[(other, VmId::random())]).expect("removed");
        assert!(store.landed(other).expect("read").is_none());
        assert!(
            store.landed(first).expect("read").is_some(),
            "the other stays"
        );
        for _ in 0..1000 {
            store.put_landed(ForkId::random(), &view).expect("recorded");
        }
        assert!(store.landed(first).expect("read").is_none());
    }
}
