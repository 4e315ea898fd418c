//! Parts that a daemon opens before it has a host: folders, records, engine,
//! network, pager.
//!
//! Each leaves something on the host. Of a start that fails nothing of that stays where there is no VM: the cgroup is
//! removed, and so are the rules. With VMs, both stay as they are. Folders are `own_folders`' matter.

use crate::{Folders, HostError, MakeEngine, Options, blocking::blocking, pager_process};
use forkyard_network::{Closed, Networks};
use forkyard_pager::PagerClient;
use forkyard_records::Store;
use forkyard_vmm::Engine;
use std::sync::Arc;

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
