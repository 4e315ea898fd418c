//! VMs.

use crate::{
    Records, RecordsError,
    row::{from_json, json, optional, parsed},
};
use forkyard_types::{
    ByteCount, DataDisk, Epoch, FamilyId, ForkId, GuestCpu, ImageId, Member, Publish, RequestId,
    VmId, VmName, VmState, VolumeUse,
};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::{collections::BTreeSet, path::PathBuf};

/// Origin of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// The VM it is a clone of.
    pub parent: VmId,
    /// The fork it came from; none while it is a shell.
    pub fork: Option<ForkId>,
    /// vCPUs that it was granted; none: all that it has.
    pub granted: Option<u8>,
}

/// A VM. A shell's name, member and epoch are placeholders until it becomes a
/// clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRecord {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub name: VmName,
    /// Family of the VM.
    pub family: FamilyId,
    /// Place in the family.
    pub member: Member,
    /// Origin of the VM; none if it booted.
    pub birth: Option<Birth>,
    /// Forks between it and the VM its family began with.
    pub generation: u16,
    /// This life of its memory.
    pub epoch: Epoch,
    /// Recipe of the image it, or its ancestor, booted from.
    pub image: String,
    /// vCPUs.
    pub vcpus: u8,
    /// Memory.
    pub memory: ByteCount,
    /// Memory that its guest, or the first of its ancestors, booted with.
    pub booted: ByteCount,
    /// User its QEMU runs as; unique.
    pub uid: u32,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// State of the VM.
    pub state: VmState,
    /// Seconds since 1970.
    pub created: u64,
    /// Clones to keep warm.
    pub warm: u16,
    /// Page image its memory is a view of.
    pub memory_image: Option<ImageId>,
    /// Disk: the slice it writes first, then those that lie below.
    pub chain: Vec<PathBuf>,
    /// Data with which the engine finds its process again; none before it has
    /// one.
    pub machine: Option<String>,
    /// Paths in the guest that its clones do not inherit.
    pub secrets: Vec<String>,
    /// In a checkpoint that a guest took: the request it was taken by, which
    /// returns in its clones. None in all else.
    pub request: Option<RequestId>,
    /// Page image its lowest slice lies over, if it came from another host; else
    /// that is the disk of a guest image.
    pub disk_image: Option<ImageId>,
    /// Reason why it was ended, unless on request.
    pub failure: Option<String>,
    /// File of the kernel it boots; none: the usual one.
    pub kernel: Option<String>,
    /// Problems of its guest when it came up, one line each.
    pub notes: Vec<String>,
    /// Volume that is its disk, or lies below its slices.
    pub volume: Option<VolumeUse>,
    /// Ports of the host that lead to it while it runs.
    pub publish: Vec<Publish>,
    /// Disks beside that.
    pub data: Vec<DataDisk>,
    /// CPU that it has at most, wherever it is; none: what the host gives.
    pub cpu: Option<GuestCpu>,
}

fn state_text(state: VmState) -> &'static str {
    match state {
        VmState::Starting => "starting",
        VmState::Warm => "warm",
        VmState::Running => "running",
        VmState::Paused => "paused",
        VmState::Stopped => "stopped",
        VmState::Checkpoint => "checkpoint",
        VmState::Ending => "ending",
    }
}

fn state_of(text: &str) -> Option<VmState> {
    [
        VmState::Starting,
        VmState::Warm,
        VmState::Running,
        VmState::Paused,
        VmState::Stopped,
        VmState::Checkpoint,
        VmState::Ending,
    ]
    .into_iter()
    .find(|state| state_text(*state) == text)
}

fn state(row: &Row<'_>) -> rusqlite::Result<VmState> {
    let state: String = row.get("state")?;
    state_of(&state).ok_or(rusqlite::Error::InvalidQuery)
}

fn read(row: &Row<'_>) -> rusqlite::Result<VmRecord> {
    let epoch: String = row.get("epoch")?;
    let damaged = || rusqlite::Error::InvalidQuery;
    let birth = match optional(row, "parent")? {
        Some(parent) => Some(Birth {
            parent,
            fork: optional(row, "fork")?,
            granted: row.get("granted")?,
        }),
        None => None,
    };
    Ok(VmRecord {
        id: parsed(row, "id")?,
        name: parsed(row, "name")?,
        family: parsed(row, "family")?,
        member: Member(row.get("member")?),
        birth,
        generation: row.get("generation")?,
        epoch: serde_json::from_value(epoch.into()).map_err(|_| damaged())?,
        image: row.get("image")?,
        vcpus: row.get("vcpus")?,
        memory: ByteCount(row.get("memory")?),
        booted: ByteCount(row.get("booted")?),
        uid: row.get("uid")?,
        accel: row.get("accel")?,
        state: state(row)?,
        created: row.get("created")?,
        warm: row.get("warm")?,
        memory_image: optional(row, "memory_image")?,
        chain: from_json(row, "chain")?,
        machine: row.get("machine")?,
        secrets: from_json(row, "secrets")?,
        request: optional(row, "request")?,
        disk_image: optional(row, "disk_image")?,
        failure: row.get("failure")?,
        kernel: row.get("kernel")?,
        notes: from_json(row, "notes")?,
        volume: from_json(row, "volume")?,
        publish: from_json(row, "publish")?,
        data: from_json(row, "data")?,
        cpu: from_json(row, "cpu")?,
    })
}

impl Records {
    /// Records a VM: a new one, or the present state of one that is recorded.
    pub fn put_vm(&self, vm: &VmRecord) -> Result<(), RecordsError> {
        self.put_vm_by(&self.lock(), vm)
    }

    pub(crate) fn put_vm_by(
        &self,
        connection: &Connection,
        vm: &VmRecord,
    ) -> Result<(), RecordsError> {
        let chain = json(&vm.chain).map_err(self.failed())?;
        let secrets = json(&vm.secrets).map_err(self.failed())?;
        let notes = json(&vm.notes).map_err(self.failed())?;
        let volume = json(&vm.volume).map_err(self.failed())?;
        let publish = json(&vm.publish).map_err(self.failed())?;
        let data = json(&vm.data).map_err(self.failed())?;
        let cpu = json(&vm.cpu).map_err(self.failed())?;
        let written = connection.execute(
            "INSERT INTO vm VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27,?28,?29,?30,?31)
             ON CONFLICT (id) DO UPDATE SET name=?2, member=?4, fork=?6, epoch=?7, accel=?12, state=?13, created=?14,
                 warm=?15, memory_image=?16, chain=?17, machine=?18, secrets=?19, disk_image=?22, failure=?23, granted=?24, notes=?25, volume=?27, publish=?28, data=?29, booted=?31",
            params![
                vm.id.as_str(),
                vm.name.as_str(),
                vm.family.as_str(),
                vm.member.0,
                vm.birth.map(|birth| birth.parent.to_string()),
                vm.birth.and_then(|birth| birth.fork).map(|fork| fork.to_string()),
                vm.epoch.to_string(),
                vm.image,
                vm.vcpus,
                vm.memory.0,
                vm.uid,
                vm.accel,
                state_text(vm.state),
                vm.created,
                vm.warm,
                vm.memory_image.map(|image| image.to_string()),
                chain,
                vm.machine,
                secrets,
                vm.generation,
                vm.request.map(|request| request.to_string()),
                vm.disk_image.map(|image| image.to_string()),
                vm.failure,
                vm.birth.and_then(|birth| birth.granted),
                notes,
                vm.kernel,
                volume,
                publish,
                data,
                cpu,
                vm.booted.0,
            ],
        );
        match written {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(_, Some(text))) if text.contains("vm.name") => {
                Err(RecordsError::NameTaken {
                    name: vm.name.to_string(),
                })
            }
            Err(source) => Err(self.failed()(source)),
        }
    }

    /// Forgets a VM.
    pub fn remove_vm(&self, id: VmId) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM vm WHERE id = ?1", [id.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// State of a VM as it is recorded; none if the VM is not.
    pub fn state_of(&self, id: VmId) -> Result<Option<VmState>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT state FROM vm WHERE id = ?1")
            .map_err(self.failed())?;
        let state = statement
            .query_row([id.as_str()], state)
            .optional()
            .map_err(self.failed())?;
        Ok(state)
    }

    /// Families of the VMs whose memory or disk is a view of an image.
    pub fn families_of_image(&self, image: ImageId) -> Result<BTreeSet<FamilyId>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT DISTINCT family FROM vm WHERE memory_image = ?1 OR disk_image = ?1",
            )
            .map_err(self.failed())?;
        let rows = statement
            .query_map([image.to_string()], |row| parsed(row, "family"))
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// Every VM, the oldest first.
    pub fn vms(&self) -> Result<Vec<VmRecord>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT * FROM vm ORDER BY created, rowid")
            .map_err(self.failed())?;
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forkyard_types::{DataRole, VolumeAt};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    pub(crate) fn vm(family: FamilyId, name: &str, number: u16) -> VmRecord {
        VmRecord {
            id: VmId::random(),
            name: name.parse().expect("a name"),
            family,
            member: Member(number),
            birth: None,
            generation: 2,
            epoch: Epoch::random(),
            image: "tiny".into(),
            vcpus: 2,
            memory: ByteCount(1 << 28),
            booted: ByteCount(1 << 28),
            uid: 100 + u32::from(number),
            accel: "tcg".into(),
            state: VmState::Running,
            created: 7,
            warm: 3,
            memory_image: Some(ImageId::random()),
            chain: vec!["/a/0".into(), "/b/1".into()],
            machine: Some("{}".into()),
            secrets: vec!["/etc/key".into()],
            request: Some(RequestId::random()),
            disk_image: Some(ImageId::random()),
            failure: None,
            kernel: Some("/boot/vmlinuz".into()),
            notes: vec!["a note".into()],
            volume: None,
            publish: vec!["8080:80".parse().expect("a port")],
            data: vec![DataDisk {
                name: "d".parse().expect("a name"),
                role: DataRole::Written {
                    volume: "b".parse().expect("a name"),
                    epoch: Some(3),
                    over: vec![VolumeAt {
                        volume: "d".parse().expect("a name"),
                        snapshot: "s".into(),
                    }],
                },
            }],
            cpu: Some(GuestCpu {
                model: "host".into(),
                features: ["avx".to_owned()].into(),
            }),
        }
    }

    pub(crate) fn store() -> (tempfile::TempDir, Records, FamilyId) {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let family = FamilyId::random();
        store.found_family(family, 9, None).expect("room");
        (folder, store, family)
    }

    #[test]
    fn a_vm_is_read_as_it_was_written_also_by_the_next_daemon() {
        let (folder, store, family) = store();
        let mut vm = vm(family, "p", 0);
        store.put_vm(&vm).expect("new");
        vm.state = VmState::Stopped;
        vm.birth = None;
        vm.machine = None;
        vm.failure = Some("its pages are lost".into());
        vm.created = 8;
        vm.secrets = vec!["/etc/other".into()];
        vm.disk_image = None;
        store.put_vm(&vm).expect("changed");
        drop(store);
        let store = Records::open(&folder.path().join("db")).expect("again");
        assert_eq!(store.vms().expect("read"), [vm]);
    }

    #[test]
    fn an_image_is_of_the_families_whose_vms_use_it() {
        let (_folder, store, family) = store();
        let vm = vm(family, "p", 0);
        store.put_vm(&vm).expect("new");
        for image in [vm.memory_image, vm.disk_image].into_iter().flatten() {
            let families = store.families_of_image(image).expect("looked");
            assert_eq!(families, [family].into());
        }
        let other = store.families_of_image(ImageId::random());
        assert!(other.expect("looked").is_empty());
        store.remove_vm(vm.id).expect("removed");
        for image in [vm.memory_image, vm.disk_image].into_iter().flatten() {
            assert!(store.families_of_image(image).expect("looked").is_empty());
        }
    }

    #[test]
    fn a_name_is_taken_once() {
        let (_folder, store, family) = store();
        store.put_vm(&vm(family, "p", 0)).expect("first");
        assert!(
            matches!(store.put_vm(&vm(family, "p", 1)), Err(RecordsError::NameTaken { name }) if name == "p")
        );
    }

    #[test]
    fn shells_take_no_names() {
        let (_folder, store, family) = store();
        for number in 0..3 {
            let shell = VmRecord {
                state: VmState::Warm,
                ..vm(family, "p", number)
            };
            store.put_vm(&shell).expect("a shell");
        }
        store.put_vm(&vm(family, "p", 9)).expect("a VM");
    }

    #[test]
    fn a_family_with_a_vm_is_not_empty() {
        let (_folder, store, family) = store();
        let vm = vm(family, "p", 0);
        store.put_vm(&vm).expect("new");
        assert_eq!(store.remove_empty_families().expect("looked"), []);
        assert!(!store.remove_family_if_empty(family).expect("looked"));
        store.remove_vm(vm.id).expect("removed");
        assert_eq!(store.remove_empty_families().expect("looked"), [family]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_table_follows_its_model(steps in prop::collection::vec((0..3u8, 0..6u16), 1..40)) {
            let (_folder, store, family) = store();
            let mut model: BTreeMap<u16, VmRecord> = BTreeMap::new();
            for (step, number) in steps {
                match step {
                    0 => {
                        let vm = model.entry(number).or_insert_with(|| vm(family, &format!("v{number}"), number));
                        vm.warm += 1;
                        store.put_vm(vm).expect("put");
                    }
                    1 => {
                        if let Some(vm) = model.remove(&number) {
                            store.remove_vm(vm.id).expect("removed");
                        }
                    }
                    _ => {
                        let mut have = store.vms().expect("read");
                        have.sort_by_key(|vm| vm.member);
                        prop_assert_eq!(have, model.values().cloned().collect::<Vec<_>>());
                    }
                }
            }
        }
    }
}
