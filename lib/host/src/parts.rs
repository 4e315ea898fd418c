//! Parts of a host, opened for a daemon and closed with it.
//!
//! Each leaves something on the host. Of a start that fails nothing of that stays where there is no VM: the cgroup is
//! removed, and so are the rules. With VMs, both stay as they are. Folders are `own_folders`' matter.

use crate::{
    Bases, Folders, Options, PartsError, blocking::blocking, own_folders::OwnedFolders,
    pager::Pager, pager_process,
};
use forkyard_disk::QemuImg;
use forkyard_events::Broadcast;
use forkyard_network::{Closed, Networks};
use forkyard_pager::{PagerClient, PagerError, Shutdown};
use forkyard_records::Records;
use forkyard_types::{FamilyId, VmId};
use forkyard_vm::{Registry, gid, lock};
use forkyard_vmm::{Engine, Qemu, QemuConfig, VmmError};
use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

/// Makes the engine of a host. Blocks for a few file operations.
pub type MakeEngine = fn(&Folders, Options) -> Result<Arc<dyn Engine>, VmmError>;

/// Makes the engine of a host: stock QEMU. Blocks for a few file operations.
pub fn qemu(folders: &Folders, options: Options) -> Result<Arc<dyn Engine>, VmmError> {
    Ok(Arc::new(Qemu::new(QemuConfig {
        cgroup_parent: folders.instance(),
        tracker: folders.tracker(),
        patience: options.patience,
        ..QemuConfig::default()
    })?))
}

/// Parts of a host. One daemon at a time has them.
#[derive(Debug)]
pub struct Parts {
    /// Paths of everything.
    pub folders: Folders,
    /// Choices of the operator.
    pub options: Options,
    /// Records.
    pub store: Records,
    /// Networks of families.
    pub network: Networks,
    /// Runs machines.
    pub engine: Arc<dyn Engine>,
    /// Makes disk slices.
    pub images: QemuImg,
    /// Events, for subscribers.
    pub events: Broadcast,
    registry: Mutex<Registry>,
    pager: Pager,
    /// Held as long as this lives; the kernel lets go of them if we die.
    _locks: [File; 2],
}

/// Parts that are opened one after the other.
type Opened = (Records, Arc<dyn Engine>, Networks, PagerClient);

impl Parts {
    /// Opens the parts of a host in folders that this daemon has alone. Of a start that fails nothing stays, unless there are VMs.
    /// Not cancel-safe: folders, rules of the network and a pager may be left, which the next call takes
    /// over.
    pub async fn open(
        held: OwnedFolders,
        options: Options,
        engine: MakeEngine,
    ) -> Result<Self, PartsError> {
        let folders = held.folders().clone();
        let (store, engine, network, pager) = match open(&folders, options, engine).await {
            Ok(opened) => opened,
            Err(error) => {
                held.undo();
                return Err(error);
            }
        };
        let events = Broadcast::new(options.events);
        Ok(Self {
            folders,
            options,
            store,
            network,
            engine,
            images: QemuImg::default(),
            registry: Mutex::new(Registry::new(events.clone())),
            events,
            pager: Pager::new(pager),
            _locks: held.keep(),
        })
    }

    /// Removes the rules and the cgroup, and ends the pager once nothing uses it. For a host without
    /// VMs; what cannot be removed stays, and is logged. Not cancel-safe: some of these may stay. A second
    /// call removes them.
    pub async fn close(&self) {
        if let Err(error) = self.network.remove_rules().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "network tables not removed"
            );
        }
        if let Err(error) = self.engine.close() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cgroup not removed"
            );
        }
        if let Err(error) = self
            .pager_call(|pager| pager.shutdown(Shutdown::WhenUnused))
            .await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the pager stays");
        }
    }

    /// Returns the VMs of this host, locked.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// Returns the files that VMs boot from.
    pub fn bases(&self) -> Bases {
        Bases::new(
            self.folders.clone(),
            self.pager.client(),
            self.events.clone(),
        )
    }

    /// Starts a pager if none answers: its keeper has ended, too, or has given up. Fails as the question did while
    /// a VM runs: what it lacks of the former pager's files would stay lost. Not cancel-safe: a pager may be left that
    /// the next call finds.
    pub async fn need_pager(&self) -> Result<(), PartsError> {
        let missed = || self.runs_something();
        self.pager.need(&self.folders, self.options, missed).await
    }

    /// Tells whether any VM has a body.
    pub fn runs_something(&self) -> bool {
        self.registry().all().iter().any(|vm| vm.running().is_ok())
    }

    /// Asks the pager, on a thread of its own. Cancelling the future abandons only the answer.
    pub async fn pager_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&PagerClient) -> Result<T, PagerError> + Send + 'static,
    ) -> Result<T, PagerError> {
        self.pager.call(call).await
    }

    /// Returns the group that the QEMUs of a family run as.
    pub fn gid_of(&self, family: FamilyId) -> Result<u32, PartsError> {
        let family = self.store.family(family)?;
        family
            .map(|family| gid(family.number))
            .ok_or_else(|| PartsError::Broken("the VM's family is not on record".into()))
    }

    /// Makes the folders of a VM.
    pub fn make_folders(&self, vm: VmId) -> Result<(), PartsError> {
        for folder in [self.folders.disks(vm), self.folders.sockets(vm)] {
            match fs::create_dir(&folder) {
                // That of its former life, with what its console said.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made.map_err(PartsError::io("create", &folder))?,
            }
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))
                .map_err(PartsError::io("open up", &folder))?;
        }
        Ok(())
    }

    /// Removes files that may be there. One that cannot be removed stays for
    /// the doctor to find.
    pub fn remove_files(&self, files: &[PathBuf]) {
        for file in files {
            match fs::remove_file(file) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(file = %file.display(), %error, "file not removed"),
            }
        }
    }
}

/// Opens them. What those have made that came before one that fails goes, unless there are VMs.
async fn open(
    folders: &Folders,
    options: Options,
    engine: MakeEngine,
) -> Result<Opened, PartsError> {
    let store = Records::open(&folders.database())?;
    let closed = store.closed()?.into_iter();
    let closed = closed.map(|(at, transport)| Closed { at, transport });
    let engine = engine(folders, options)?;
    // A cgroup that nothing is in goes.
    let network = Networks::open(closed.collect())
        .await
        .inspect_err(|_| drop(engine.close()))?;
    let pager = {
        let folders = folders.clone();
        blocking(move || pager_process::ensure(&folders, options)).await
    };
    match pager {
        Ok(pager) => Ok((store, engine, network, pager)),
        Err(error) => {
            drop(engine.close());
            // They keep VMs apart that run without a daemon.
            if store.vms().is_ok_and(|vms| vms.is_empty())
                && let Err(error) = network.remove_rules().await
            {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "network tables not removed"
                );
            }
            Err(error)
        }
    }
}
