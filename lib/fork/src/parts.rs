//! Parts that a daemon opens before it has a host: folders, records, engine,
//! network, pager.
//!
//! Each leaves something on the host. Of a start that fails nothing stays but the folders and the records, where
//! there is no VM: the cgroup is removed, and so are the rules. With VMs, both stay as they are.

use crate::{Folders, HostError, MakeEngine, Options, blocking::blocking, pager_process};
use forkyard_network::{Closed, Networks};
use forkyard_pager::PagerClient;
use forkyard_records::Store;
use forkyard_vmm::Engine;
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, absolute},
    sync::Arc,
};

/// Parts of a host that are on the host itself.
pub(crate) struct Parts {
    pub store: Store,
    pub engine: Arc<dyn Engine>,
    pub network: Networks,
    pub pager: PagerClient,
}

impl Parts {
    /// Opens them. What those have made that came before one that fails goes, unless there are VMs.
    pub async fn open(
        folders: &Folders,
        options: Options,
        engine: MakeEngine,
    ) -> Result<Self, HostError> {
        let store = Store::open(&folders.database())?;
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
            Ok(pager) => Ok(Self {
                store,
                engine,
                network,
                pager,
            }),
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
}

/// Makes the folders of a host, which QEMUs may pass.
pub(crate) fn make_folders(folders: &Folders) -> Result<(), HostError> {
    for folder in [&folders.state, &folders.cache] {
        not_too_long(folder)?;
    }
    for folder in [
        &folders.state,
        &folders.run,
        &folders.cache,
        &folders.all_disks(),
        &folders.all_sockets(),
    ] {
        fs::create_dir_all(folder).map_err(HostError::io("create", folder))?;
        // QEMUs run as users of their own: they may pass through, not list.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
            .map_err(HostError::io("open up", folder))?;
    }
    for folder in [&folders.state, &folders.run, &folders.cache] {
        passable(folder)?;
    }
    Ok(())
}

/// Most bytes of the path of a folder with records or disks: SQLite takes paths of 512, and what
/// lies in the folder has names of its own.
const LONGEST: usize = 400;

/// Refuses a folder in which files could have paths that are too long, before anything is made.
fn not_too_long(folder: &Path) -> Result<(), HostError> {
    let path = absolute(folder).unwrap_or_else(|_| folder.to_owned());
    match path.as_os_str().len() {
        ..=LONGEST => Ok(()),
        length => Err(HostError::Invalid(format!(
            "the path of the folder {}… has {length} bytes, and {LONGEST} at most: choose a shorter one \
             (FORKYARD_STATE_DIR, FORKYARD_CACHE_DIR)",
            folder
                .display()
                .to_string()
                .chars()
                .take(40)
                .collect::<String>()
        ))),
    }
}

/// QEMUs run as users of their own: every folder above their files must let
/// them through.
fn passable(folder: &Path) -> Result<(), HostError> {
    let folder = folder
        .canonicalize()
        .map_err(HostError::io("find", folder))?;
    for above in folder.ancestors() {
        let mode = fs::metadata(above)
            .map_err(HostError::io("look at", above))?
            .permissions()
            .mode();
        if mode & 0o001 == 0 {
            return Err(HostError::NotPassable {
                folder: above.into(),
            });
        }
    }
    Ok(())
}

/// Locks the run folder for as long as the file is open.
pub(crate) fn lock_folder(run: &Path) -> Result<File, HostError> {
    let path = run.join("lock");
    // A user that could open it could hold the lock.
    let file = forkyard_sys_host::private::open(&path).map_err(HostError::io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(HostError::Locked { run: run.into() }),
        Err(fs::TryLockError::Error(source)) => Err(HostError::io("lock", &path)(source)),
    }
}
