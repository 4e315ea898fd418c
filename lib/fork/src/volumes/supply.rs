//! Blocks of volumes that moved before all of them had: other hosts fetch them from here.
//!
//! ```text
//! server of volumes here <--- line ---> daemon here <--- upgraded request ---> daemon there <---> server there
//!   has the snapshot                      dials                                                   asks
//! ```
//!
//! The host that has the blocks dials, as it does for all else of a migration, and goes on doing so
//! until the other says that nothing is lacking there: what is recorded there decides, whatever died.
//! Then the snapshot that was kept for it goes.
//!
//! | fails | then |
//! |---|---|
//! | a line, either daemon or server | dialled again within a second; readers there wait |
//! | the other host for good | the snapshot stays; `forkyard-blockd unneed` gives it up |

use super::{Links, SENT, VolumeError};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{Need, Request};
use forkyard_types::{ErrorKind, PeerSupply, VmName, VolumeAt};
use forkyard_vm::lock;
use std::{
    collections::BTreeSet, os::unix::net::UnixStream as StdUnixStream, sync::Mutex, time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::UnixStream,
    sync::Notify,
    time::{sleep, timeout},
};

/// Time between two attempts to reach a host that lacks blocks.
const AGAIN: Duration = Duration::from_secs(1);

/// Needs of other hosts that this one serves.
#[derive(Debug, Default)]
pub(crate) struct Supplies {
    needs: Mutex<BTreeSet<Need>>,
    /// Told when there is one more, or when one may be served that could not before.
    changed: Notify,
}

/// Line to the server of volumes here.
#[derive(Debug)]
pub struct SupplyLine {
    pub(super) server: StdUnixStream,
    /// Bytes that it has sent already.
    pub(super) said: Vec<u8>,
}

impl SupplyLine {
    /// Carries bytes between the server and another host until either ends. Cancel-safe: both ends
    /// are closed.
    pub async fn carry(
        self,
        mut there: impl AsyncRead + AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        self.server.set_read_timeout(None)?;
        self.server.set_write_timeout(None)?;
        self.server.set_nonblocking(true)?;
        let mut server = UnixStream::from_std(self.server)?;
        there.write_all(&self.said).await?;
        copy_bidirectional(&mut server, &mut there).await.map(drop)
    }
}

impl SupplyLine {
    /// Carries bytes likewise, within the budget of the link.
    async fn carry_metered(
        self,
        mut there: impl AsyncRead + AsyncWrite + Unpin,
        links: &Links,
        of: (&str, bool),
    ) -> std::io::Result<()> {
        self.server.set_read_timeout(None)?;
        self.server.set_write_timeout(None)?;
        self.server.set_nonblocking(true)?;
        let mut server = UnixStream::from_std(self.server)?;
        there.write_all(&self.said).await?;
        let (mut asked, mut answers) = tokio::io::split(there);
        let (mut from, mut to) = server.split();
        // Either end that leaves ends both.
        tokio::select! {
            answered = links.carry(of, &mut from, &mut answers) => answered,
            asked = tokio::io::copy(&mut asked, &mut to) => asked.map(drop),
        }
    }
}

impl Host {
    /// Keeps a snapshot for another host, until nothing of it is lacking there.
    pub(crate) async fn keep_for(&self, at: &VolumeAt, peer: &str) -> Result<(), HostError> {
        let need = Need {
            volume: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
            by: peer.to_owned(),
        };
        self.volumes
            .disks
            .ask(Request::Need {
                name: need.volume.clone(),
                snapshot: need.snapshot.clone(),
                by: need.by.clone(),
            })
            .await?;
        lock(&self.volumes.supplies.needs).insert(need.clone());
        self.serve_need(need);
        Ok(())
    }

    /// Goes on with the needs that a daemon before served.
    pub(super) async fn settle_needs(&self) -> Result<(), HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        for need in blocking(move || blockd.needs()).await? {
            if lock(&self.volumes.supplies.needs).insert(need.clone()) {
                self.serve_need(need);
            }
        }
        Ok(())
    }

    /// A VM has gone: its new host may be served in full at once.
    pub(crate) fn supply_soon(&self) {
        self.volumes.supplies.changed.notify_waiters();
    }

    /// Serves a need by two lines, until it is over.
    fn serve_need(&self, need: Need) {
        for fill in [false, true] {
            let (host, need) = (self.handle(), need.clone());
            tokio::spawn(async move {
                loop {
                    let Some(host) = host.upgrade() else { return };
                    if host.forks.under_way.is_closed()
                        || !lock(&host.volumes.supplies.needs).contains(&need)
                    {
                        return;
                    }
                    if fill && host.volumes.links.used_up(&need.by).is_some() {
                        // Until tomorrow, or until it is changed; what is read goes on the other line.
                        drop(host);
                        sleep(AGAIN).await;
                        continue;
                    }
                    match host.dial(&need, fill).await {
                        Ok(()) => {}
                        Err(error) if error.kind() == ErrorKind::NotFound => {
                            if let Err(error) = host.need_is_over(&need).await {
                                tracing::warn!(
                                    ?need,
                                    error = &error as &dyn std::error::Error,
                                    "kept for another host still"
                                );
                            }
                        }
                        Err(error) => {
                            tracing::debug!(
                                ?need,
                                fill,
                                error = &error as &dyn std::error::Error,
                                "no line"
                            );
                        }
                    }
                    let soon = timeout(AGAIN, host.volumes.supplies.changed.notified());
                    let _ = soon.await;
                    drop(host);
                    // What was told of may take a moment there.
                    sleep(AGAIN / 20).await;
                }
            });
        }
    }

    /// Has another host fetch what it lacks, over one line. `NotFound` says that it lacks nothing.
    async fn dial(&self, need: &Need, fill: bool) -> Result<(), HostError> {
        let volume: VmName = need.volume.parse().map_err(|_| VolumeError::Answer)?;
        let (blockd, name, of) = (
            self.volumes.disks.blockd.clone(),
            volume.clone(),
            need.clone(),
        );
        let opened = blocking(move || {
            let id = blockd.inspect(&name)?.id;
            Ok::<_, VolumeError>((id, blockd.serve(&of, fill)?))
        });
        // What is not found here is no answer of that host's.
        let (id, (server, said)) = opened.await.map_err(|error| {
            let why = || format!("{} is not here", need.snapshot);
            match error.kind() == ErrorKind::NotFound {
                true => HostError::Conflict(why()),
                false => error.into(),
            }
        })?;
        let peer = self.peer(&need.by).map_err(|error| {
            let why = || format!("no host is called {}", need.by);
            match error.kind() == ErrorKind::NotFound {
                true => HostError::Conflict(why()),
                false => error,
            }
        })?;
        let wanted = PeerSupply {
            id,
            snapshot: need.snapshot.clone(),
            fill,
        };
        let line = timeout(self.parts.options.patience, peer.supply(&volume, wanted));
        let line = line
            .await
            .unwrap_or_else(|_| Err(crate::remote::late(self.parts.options.patience)));
        let there = line.map_err(|source| HostError::Peer {
            peer: need.by.clone(),
            source,
        })?;
        let line = SupplyLine { server, said };
        let carried = line
            .carry_metered(there, &self.volumes.links, (&need.by, fill))
            .await;
        if let Err(error) = carried {
            tracing::debug!(?need, %error, "line broken");
        }
        Ok(())
    }

    /// Name of this host, for users of others.
    pub(crate) fn own_name(&self) -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    async fn need_is_over(&self, need: &Need) -> Result<(), HostError> {
        if !lock(&self.volumes.supplies.needs).remove(need) {
            return Ok(());
        }
        let over = async {
            self.volumes
                .disks
                .ask(Request::Unneed {
                    name: need.volume.clone(),
                    snapshot: need.snapshot.clone(),
                    by: need.by.clone(),
                })
                .await?;
            let volume = need.volume.parse().map_err(|_| VolumeError::Answer)?;
            let snapshot = need.snapshot.clone();
            match snapshot.starts_with(SENT) {
                true => {
                    self.volumes
                        .disks
                        .drop_snapshot(&VolumeAt { volume, snapshot })
                        .await
                }
                false => Ok(()),
            }
        };
        let over = over.await;
        if over.is_err() {
            lock(&self.volumes.supplies.needs).insert(need.clone());
        }
        Ok(over?)
    }

    /// Takes a line by which another host supplies what a volume lacks here. `NotFound` if that is
    /// nothing, durably. Cancel-safe: a line that is not taken ends.
    pub async fn supplied(
        &self,
        volume: &str,
        wanted: PeerSupply,
    ) -> Result<SupplyLine, HostError> {
        let name = super::known_name(volume)?;
        let arrives = { self.copy_of(&name)? }.is_some_and(|copy| copy.arriving.is_some());
        let coming = || VolumeError::Coming {
            volume: name.clone(),
        };
        // Not before its VM is here: memory goes first.
        if arrives && wanted.fill {
            return Err(coming().into());
        }
        let (blockd, of) = (self.volumes.disks.blockd.clone(), name.clone());
        match blocking(move || blockd.supply(&of, wanted)).await {
            Ok((server, said)) => Ok(SupplyLine { server, said }),
            // It may not have begun to come.
            Err(_) if arrives => Err(coming().into()),
            Err(error) => Err(error.into()),
        }
    }
}
