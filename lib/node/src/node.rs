//! This host as a node of its cluster: what goes on in the background for it.
//!
//! ```text
//! report   tells the cluster of this host's VMs: after each change, and now and then
//! fence    while the lease is lost, holds VMs still, if the operator wants that
//! closed   keeps guests from etcd and the nodes' ports
//! tenants  ends VMs whose allocation has ended, and allocations whose VMs have
//! ```

use crate::{closed, news, tenants};
use forkyard_cluster::{Claim, Cluster, ClusterError, Standing};
use forkyard_events::Selection;
use forkyard_fork::{Host, HostError, VmError};
use forkyard_types::{EventKind, VmId, VmName, VmState, VmView};
use std::{
    collections::BTreeSet,
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};

/// Time between reports of VMs that changed by themselves.
const REPORT: Duration = Duration::from_secs(1);
/// Longest wait of an answer for the cluster to have been told.
const TOLD: Duration = Duration::from_secs(3);
/// Time between reports of volumes, which tell the cluster themselves of what is done to them.
const VOLUMES: Duration = Duration::from_secs(5);
/// Time between looks of a fenced node for VMs to hold still.
const LOOK: Duration = Duration::from_secs(1);
/// File in the cluster's folder that lists the VMs that a fence holds still.
const HELD: &str = "held-still.json";

/// Treatment of a node's VMs while it has lost its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// They run on; the node takes no new work.
    Work,
    /// They stand still until the lease is back; the node takes no new work.
    Pause,
}

/// This daemon's part in its cluster.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    fence: Fence,
    held: PathBuf,
    changed: Notify,
    /// Of reports: one at a time.
    turn: tokio::sync::Mutex<()>,
    /// True once a report has failed: said once.
    failing: Mutex<bool>,
}

/// Claims of a VM about to be made here, until dropped.
#[derive(Debug)]
pub struct Ready {
    _claim: Option<Claim>,
}

impl Node {
    /// A node of this cluster, whose folder on this host is `folder`.
    pub fn new(cluster: Cluster, fence: Fence, folder: &Path) -> Self {
        Self(Arc::new(Inner {
            cluster,
            fence,
            held: folder.join(HELD),
            changed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            failing: Mutex::new(false),
        }))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// Does what goes on in the background, for ever. Cancel-safe: what it does to
    /// VMs is done on tasks of their own.
    pub async fn run(&self, host: &Arc<Host>) {
        tokio::join!(
            self.keep_reporting(host),
            self.keep_fence(host),
            self.keep_reporting_volumes(host),
            closed::keep_cluster(self.cluster(), host),
            tenants::keep(self.cluster(), host),
            news::tell(self.cluster(), host)
        );
    }

    /// This host's own VMs: those that others made for it are theirs to tell of.
    pub fn own(&self, host: &Host) -> Vec<VmView> {
        let all = host.list().into_iter();
        all.filter(|vm| vm.host.is_none()).collect()
    }

    /// Makes sure that a VM may be made here, by this name if one is given.
    pub async fn ready(&self, name: Option<&VmName>) -> Result<Ready, ClusterError> {
        self.cluster().may_act()?;
        let claim = match name {
            Some(name) => Some(self.cluster().claim(name).await?),
            None => None,
        };
        Ok(Ready { _claim: claim })
    }

    /// Tells the cluster of this host's VMs; waits for it, but not for long.
    pub async fn report(&self, host: &Host) {
        if timeout(TOLD, self.try_report(host)).await.is_err() {
            tracing::warn!("the cluster was not told in time");
        }
        // What was not told now is told soon.
        self.0.changed.notify_one();
    }

    /// Tells the cluster of this host's volumes, and learns of those that are at home elsewhere.
    async fn keep_reporting_volumes(&self, host: &Arc<Host>) {
        loop {
            let host = host.clone();
            // On a task of its own: what is begun is to be ended.
            let told = tokio::spawn(async move { host.report_volumes().await }).await;
            if let Ok(Err(error)) = told {
                tracing::debug!(
                    error = &error as &dyn Error,
                    "the cluster does not hear of volumes"
                );
            }
            tokio::time::sleep(VOLUMES).await;
        }
    }

    async fn try_report(&self, host: &Host) {
        let _turn = self.0.turn.lock().await;
        // In this order: what leaves in between is told of as it was before.
        let leaving = match host.leaving() {
            Ok(leaving) => leaving,
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "the cluster is told later");
                return;
            }
        };
        let outcome = self.cluster().report(&self.own(host), &leaving).await;
        let mut failing = self
            .0
            .failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = &outcome
            && !*failing
        {
            tracing::warn!(
                error = error as &dyn Error,
                "the cluster does not hear of VMs"
            );
        }
        *failing = outcome.is_err();
    }

    async fn keep_reporting(&self, host: &Host) {
        let kinds = [EventKind::Vm, EventKind::Checkpoint].into();
        let selection = Selection {
            kinds,
            ..Selection::default()
        };
        let mut vms = host.events().subscribe(selection, None);
        loop {
            self.try_report(host).await;
            let changed = async {
                tokio::select! {
                    () = self.0.changed.notified() => {}
                    _ = vms.next() => {}
                }
            };
            let _ = timeout(REPORT, changed).await;
            // Many changes at once are told of together.
            tokio::time::sleep(REPORT / 10).await;
        }
    }

    /// Says when the lease is lost and when it is back; and holds VMs still in
    /// between, if that is wanted.
    async fn keep_fence(&self, host: &Arc<Host>) {
        let holds = |standing| matches!(standing, Standing::Holding { .. });
        loop {
            let standing = self.cluster().standing();
            if holds(standing) {
                self.let_go(host).await;
                self.cluster().wait(|standing| !holds(standing)).await;
                continue;
            }
            tracing::error!(?standing, fence = ?self.0.fence, "fenced: no new work is taken");
            while !holds(self.cluster().standing()) {
                if self.0.fence == Fence::Pause {
                    self.hold_still(host).await;
                }
                let _ = timeout(LOOK, self.cluster().wait(holds)).await;
            }
            tracing::warn!("no longer fenced");
        }
    }

    /// Has every VM that runs stand still, and notes it.
    async fn hold_still(&self, host: &Arc<Host>) {
        let running = |vm: &VmView| vm.state == VmState::Running && vm.silence.is_none();
        for vm in self.own(host).into_iter().filter(running) {
            // Noted first: one that is held and not noted would never go on.
            let mut held = self.noted();
            held.insert(vm.id);
            self.note(&held);
            let id = vm.id;
            let pause = |host: Arc<Host>| async move { host.pause(id.as_str()).await };
            if let Err(error) = to_its_end(host, pause).await {
                tracing::warn!(vm = %vm.name, error = &error as &dyn Error, "not held still");
            }
        }
    }

    /// Lets go on what a fence has held still, also an earlier daemon's.
    async fn let_go(&self, host: &Arc<Host>) {
        let mut held = self.noted();
        for id in held.clone() {
            let resume = |host: Arc<Host>| async move { host.resume(id.as_str()).await };
            match to_its_end(host, resume).await {
                Ok(_)
                | Err(
                    HostError::Vm(VmError::Unknown { .. })
                    | HostError::Vm(VmError::NotRunning { .. }),
                ) => {
                    held.remove(&id);
                    self.note(&held);
                }
                Err(error) => {
                    tracing::warn!(vm = %id, error = &error as &dyn Error, "it stands still");
                }
            }
        }
    }

    fn noted(&self) -> BTreeSet<VmId> {
        let text = fs::read(&self.0.held).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn note(&self, held: &BTreeSet<VmId>) {
        let written = match held.is_empty() {
            true => fs::remove_file(&self.0.held),
            false => serde_json::to_vec(held)
                .map_err(std::io::Error::other)
                .and_then(|text| fs::write(&self.0.held, text)),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "what the fence holds is not noted");
        }
    }
}

/// Does something to a VM on a task of its own: it ends in good order whatever becomes
/// of the caller. Cancel-safe.
pub async fn to_its_end<F>(
    host: &Arc<Host>,
    work: impl FnOnce(Arc<Host>) -> F,
) -> Result<VmView, HostError>
where
    F: Future<Output = Result<VmView, HostError>> + Send + 'static,
{
    let done = tokio::spawn(work(host.clone())).await;
    done.unwrap_or(Err(HostError::Closing))
}
