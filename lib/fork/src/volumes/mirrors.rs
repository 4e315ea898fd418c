//! Copies of volumes at other hosts that every flush waits for.
//!
//! ```text
//! server of volumes here <--- line ---> daemon here <--- upgraded request ---> daemon there <---> server there
//!   flushes wait                          dials                                                   holds a copy
//! ```
//!
//! The servers say which writer is fenced; here it is recorded where the volume is at home.
//!
//! | fails | then |
//! |---|---|
//! | a line, either daemon or server | dialled again within a second; flushes wait, or go on |
//! | the host that holds a copy | as its volume says: flushes wait for it, or go on without |
//! | the host where the volume is at home | an operator promotes a copy, and starts the VM there |

use super::{SupplyLine, VolumeError, known_name};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{Held, MirrorPlan, Request, WhenAway};
use forkyard_records::VolumeCopy;
use forkyard_types::{ErrorKind, MirrorVolume, PeerHold, VmName, VolumeView, WhenMirrorAway};
use forkyard_vm::lock;
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// Time between two attempts to reach a host.
const AGAIN: Duration = Duration::from_millis(500);
/// Hosts that hold copies of a volume.
const MOST: usize = 8;
/// Bytes of a host's name: snapshots are called `mirror-HOST-NUMBER`, of 64 bytes.
const LONGEST_NAME: usize = 40;

/// Volume, and a host that holds a copy of it.
type Mirror = (VmName, String);

/// Volumes and the hosts that hold copies of them, as far as they are served.
#[derive(Debug, Default)]
pub(crate) struct MirrorLines {
    /// Numbers of the tasks that serve them. A task ends once its number is not there.
    tasks: Mutex<BTreeMap<Mirror, u64>>,
    last: AtomicU64,
}

impl MirrorLines {
    /// Registers a task, and returns its number. None if there is one.
    fn begin(&self, of: &Mirror) -> Option<u64> {
        match lock(&self.tasks).entry(of.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => Some(*free.insert(self.last.fetch_add(1, Ordering::Relaxed))),
        }
    }

    fn goes_on(&self, of: &Mirror, task: u64) -> bool {
        lock(&self.tasks).get(of) == Some(&task)
    }

    /// Removes a task, unless another has taken its place.
    fn end(&self, of: &Mirror, task: u64) {
        lock(&self.tasks).retain(|it, number| it != of || *number != task);
    }

    /// Ends the tasks of a volume, but for those of some hosts.
    fn keep(&self, volume: &VmName, hosts: &BTreeSet<String>) {
        lock(&self.tasks).retain(|(it, host), _| it != volume || hosts.contains(host));
    }
}

impl Host {
    /// Says which other hosts every flush of a volume waits for. Not cancel-safe: the server may know of
    /// hosts that nothing is sent to until the next daemon. Run it on a task of its own.
    pub async fn mirror_volume(
        &self,
        name: &str,
        request: MirrorVolume,
    ) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        self.refuse_copy(&volume)?;
        let MirrorVolume { hosts, away } = request;
        let distinct: BTreeSet<_> = hosts.iter().cloned().collect();
        if distinct.len() != hosts.len() || hosts.len() > MOST {
            let text = format!("name each host once, and {MOST} at most");
            return Err(HostError::Invalid(text));
        }
        for host in &hosts {
            if host.len() > LONGEST_NAME {
                let text = format!(
                    "{host} is too long a name: snapshots are called by it, which takes {LONGEST_NAME} bytes at most"
                );
                return Err(HostError::Invalid(text));
            }
            self.peer(host)?;
        }
        let away = match away {
            WhenMirrorAway::Wait => WhenAway::Wait,
            WhenMirrorAway::GoOn => WhenAway::GoOn,
        };
        self.volumes
            .disks
            .ask(Request::SetMirrors {
                name: volume.to_string(),
                plan: MirrorPlan { hosts, away },
            })
            .await?;
        self.volumes.mirrors.keep(&volume, &distinct);
        for host in distinct {
            self.serve_mirror((volume.clone(), host));
        }
        self.volume(name).await
    }

    /// Makes a copy that is held for another host a volume that is at home here. That host is fenced. Not
    /// cancel-safe: run it on a task of its own. One that breaks off is repeated.
    pub async fn promote_volume(&self, name: &str) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        self.promote(&volume).await?;
        self.volume(name).await
    }

    /// Promotes a copy. In a cluster the authority's record is changed first: a promotion that breaks off
    /// after that is repeated.
    pub(super) async fn promote(&self, volume: &VmName) -> Result<(), HostError> {
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        let term = match status.held {
            Held::For(_) => Some(self.claim_home(volume, &status).await?),
            // Refused, with the reason.
            Held::Not | Held::Promoted(_) => None,
        };
        self.volumes
            .disks
            .ask(Request::Promote {
                name: volume.to_string(),
            })
            .await?;
        if let Some(term) = term {
            self.note_term(volume, &status.id, term)?;
        }
        self.parts.store.remove_copy(volume)?;
        Ok(self.parts.store.flush()?)
    }

    /// Goes on with the copies that a daemon before served, and with promotions that it had begun.
    pub(super) async fn settle_mirrors(&self) -> Result<(), HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        let seen = blocking(move || {
            let names = blockd.names()?.into_iter();
            let seen = names.filter_map(|name| Some((blockd.inspect(&name).ok()?, name)));
            Ok::<_, VolumeError>(seen.collect::<Vec<_>>())
        });
        for (status, volume) in seen.await? {
            if let Held::Promoted(_) = status.held
                && status.mirrors.is_empty()
                && self
                    .copy_of(&volume)?
                    .is_some_and(|it| it.arriving.is_none() && it.is_new)
            {
                self.parts.store.remove_copy(&volume)?;
            }
            for mirror in status.mirrors {
                self.serve_mirror((volume.clone(), mirror.host));
            }
        }
        Ok(())
    }

    /// Keeps a line to a host that holds a copy, until it is not to any more.
    fn serve_mirror(&self, of: Mirror) {
        let Some(task) = self.volumes.mirrors.begin(&of) else {
            return;
        };
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                let Some(host) = host.upgrade() else { return };
                if host.forks.under_way.is_closed() || !host.volumes.mirrors.goes_on(&of, task) {
                    return;
                }
                match host.dial_mirror(&of).await {
                    Ok(()) => {}
                    // The volume has gone.
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        host.volumes.mirrors.end(&of, task);
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(
                            ?of,
                            error = &error as &dyn std::error::Error,
                            "no line to a host that is to hold a copy"
                        );
                    }
                }
                drop(host);
                sleep(AGAIN).await;
            }
        });
    }

    async fn dial_mirror(&self, (volume, to): &Mirror) -> Result<(), HostError> {
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        let mut mirrors = status.mirrors.iter();
        if mirrors.any(|it| it.host == *to && it.is_promoted) {
            tracing::error!(%volume, host = to, "the volume is at home there now: its copy was promoted");
            self.parts.store.put_copy(&VolumeCopy {
                volume: volume.clone(),
                id: Some(status.id),
                at: to.clone(),
                arriving: None,
                is_new: false,
            })?;
            // Its writer is fenced: no flush of it is answered because there are no hosts any more.
            let ended = Request::SetMirrors {
                name: volume.to_string(),
                plan: MirrorPlan::default(),
            };
            self.volumes.disks.ask(ended).await?;
            self.volumes.mirrors.keep(volume, &BTreeSet::new());
            return Ok(());
        }
        let wanted = PeerHold {
            id: status.id,
            from: self.own_name(),
        };
        let failed = |source| HostError::Peer {
            peer: to.clone(),
            source,
        };
        // No answer about the volume.
        let unknown = |error: HostError| match error.kind() == ErrorKind::NotFound {
            true => HostError::Conflict(format!("no host is called {to}")),
            false => error,
        };
        let peer = self.peer(to).map_err(unknown)?;
        let line = timeout(self.parts.options.patience, peer.hold(volume, wanted));
        let line = line
            .await
            .unwrap_or_else(|_| Err(crate::remote::late(self.parts.options.patience)));
        let there = line.map_err(failed).map_err(unknown)?;
        let mirror = Request::Mirror {
            name: volume.to_string(),
            to: to.clone(),
        };
        let blockd = self.volumes.disks.blockd.clone();
        let (server, said) = blocking(move || blockd.line(&mirror)).await?;
        if let Err(error) = (SupplyLine { server, said }).carry(there).await {
            tracing::debug!(%volume, host = to, %error, "line broken");
        }
        Ok(())
    }

    /// Takes a line by which another host has a copy of its volume held here. The caller has checked its
    /// name, `from`. If cancelled, the copy may be on record; the next line goes on with it.
    pub async fn hold_copy(&self, volume: &str, wanted: PeerHold) -> Result<SupplyLine, HostError> {
        let name = volume.parse::<VmName>();
        let name = name.map_err(|_| HostError::Invalid(format!("{volume:?} is no volume")))?;
        let _used = self.volumes.guards.take([&name])?;
        let (blockd, looked) = (self.volumes.disks.blockd.clone(), name.clone());
        let found = match blocking(move || blockd.inspect(&looked)).await {
            Ok(status) => Some(status),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error.into()),
        };
        let taken = || VolumeError::Taken {
            volume: name.clone(),
        };
        let is_of_another = |held: &Held| match held {
            Held::For(home) => *home != wanted.from,
            Held::Not | Held::Promoted(_) => false,
        };
        match &found {
            Some(status) if status.id != wanted.id || status.held == Held::Not => {
                return Err(taken().into());
            }
            // Held for another host: its streams would be refused.
            Some(status) if is_of_another(&status.held) => return Err(taken().into()),
            // The server says that it is at home here.
            Some(status) if matches!(status.held, Held::Promoted(_)) => {}
            Some(_) | None => {
                if self.copy_of(&name)?.is_some_and(|it| it.arriving.is_some()) {
                    return Err(VolumeError::Coming { volume: name }.into());
                }
                // Nothing else takes its name from now on.
                self.parts.store.put_copy(&VolumeCopy {
                    volume: name.clone(),
                    id: Some(wanted.id),
                    at: wanted.from.clone(),
                    arriving: None,
                    is_new: true,
                })?;
            }
        }
        let hold = Request::Hold {
            name: name.to_string(),
            from: wanted.from,
        };
        let blockd = self.volumes.disks.blockd.clone();
        let (server, said) = blocking(move || blockd.line(&hold)).await?;
        Ok(SupplyLine { server, said })
    }
}
