//! Volumes that are asked for by the host that they are to come to.
//!
//! Hosts that are no nodes call each other by names of their own. So the host that has the volume is told
//! the number of the move, and looks for the one among the hosts it knows that awaits it: it moves nothing to
//! a host that does not.

use crate::{
    Host, HostError,
    remote::{HERE, Peer, late},
    volumes::{VolumeError, known_name},
};
use forkyard_types::{
    ApiError, BringVolume, ByteCount, DiskTransfer, ErrorKind, ForkId, PeerVolumeAnswer,
    PeerVolumeGive, PeerVolumeStep, RunRequest, Term, VmName, VolumeMoveReport, VolumeMoved,
};
use forkyard_vm::lock;
use futures::future::join_all;
use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// Between two looks at whether a volume has come, or anything of it.
const LOOK: Duration = Duration::from_millis(500);

/// Volume that is awaited, until dropped.
struct Awaited<'a> {
    host: &'a Host,
    migration: ForkId,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(&self.host.volumes.moves.awaited).remove(&self.migration);
    }
}

impl Host {
    /// Moves a volume here from the host that it is at. Not cancel-safe: run it on a task of its own.
    pub async fn bring_volume(
        &self,
        name: &str,
        BringVolume { from, disk }: BringVolume,
    ) -> Result<VolumeMoved, HostError> {
        let volume = known_name(name)?;
        if self.volumes.guards.is_unsettled(&volume) {
            // It may have gone from here.
            self.settle_volume_moves().await;
        }
        drop(self.volumes.guards.take([&volume])?);
        let is_here = self.parts.folders.volumes().join(volume.as_str()).is_dir();
        let copy = self.copy_of(&volume)?;
        if is_here && copy.is_none() {
            return Err(VolumeError::AtHome { volume }.into());
        }
        // With a VM it may have gone from here, of which the cluster hears in a moment.
        let own = self.homes().map(|it| it.own());
        let home = self.home_of(&volume).await?;
        let home = home.filter(|(_, home)| Some(&home.node) != own.as_ref());
        let from = match (from, home, copy) {
            (Some(from), _, _) if from == HERE => {
                return Err(HostError::Invalid("it is to come from another host".into()));
            }
            (Some(from), _, _) => from,
            (None, Some((_, home)), _) => home.node,
            (None, None, Some(copy)) => copy.at,
            (None, None, None) => return Err(VolumeError::Nowhere { volume }.into()),
        };
        self.fetch_volume(&volume, &from, disk).await
    }

    /// Brings the volumes here that a VM is to have, where a cluster says that other nodes have them.
    pub(crate) async fn bring_for(&self, request: &RunRequest) -> Result<(), HostError> {
        let Some(own) = self.homes().map(|it| it.own()) else {
            return Ok(());
        };
        let root = request.volume.iter().map(|it| &it.name);
        for name in root.chain(request.data.iter().map(|it| &it.name)) {
            match self.home_of(name).await? {
                Some((_, home)) if home.node != own => {
                    self.fetch_volume(name, &home.node, DiskTransfer::Auto)
                        .await?;
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    async fn fetch_volume(
        &self,
        volume: &VmName,
        from: &str,
        disk: DiskTransfer,
    ) -> Result<VolumeMoved, HostError> {
        let begun = Instant::now();
        let peer = self.peer(from)?;
        let migration = ForkId::random();
        lock(&self.volumes.moves.awaited).insert(migration);
        let _awaited = Awaited {
            host: self,
            migration,
        };
        let give = PeerVolumeStep::Give(PeerVolumeGive {
            migration,
            name: volume.clone(),
            to: self.homes().map(|it| it.own()),
            disk,
        });
        let answer = self
            .answer_or_volume(peer.volume_step(give), migration)
            .await;
        // Whatever was heard: what is recorded here says whether it came.
        let landed = self.parts.store.landed_volume(migration)?;
        let report = match (landed, answer) {
            (Some(_), Ok(PeerVolumeAnswer::Given(moved))) => moved.report,
            (Some(term), _) => unreported(begun, term),
            (None, Err(source)) => {
                let peer = from.to_owned();
                return Err(HostError::Peer { peer, source });
            }
            (None, Ok(_)) => {
                return Err(crate::remote::untold(from, "that it let go of the volume"));
            }
        };
        let volume = self.volume(volume.as_str()).await?;
        Ok(VolumeMoved { volume, report })
    }

    /// Waits for the other host's answer, or until the volume is here; no longer than anything of it comes.
    async fn answer_or_volume(
        &self,
        answer: impl Future<Output = Result<PeerVolumeAnswer, ApiError>>,
        migration: ForkId,
    ) -> Result<PeerVolumeAnswer, ApiError> {
        let begun = Instant::now();
        let mut answer = pin!(answer);
        loop {
            if let Ok(answer) = timeout(LOOK, &mut answer).await {
                return answer;
            }
            if let Ok(Some(_)) = self.parts.store.landed_volume(migration) {
                // The answer may be lost.
                let answer = timeout(self.parts.options.patience, answer).await;
                return answer.unwrap_or_else(|_| Err(late(self.parts.options.patience)));
            }
            let quiet = self.incoming.volumes.quiet(migration);
            let quiet = quiet.unwrap_or_else(|| begun.elapsed());
            if quiet >= self.parts.options.patience * 2 {
                return Err(ApiError {
                    kind: ErrorKind::Timeout,
                    message: format!("nothing came for {} s", quiet.as_secs()),
                    hint: Some(
                        "it may come yet; `forkyard volume inspect`, here and there, says where it is"
                            .into(),
                    ),
                });
            }
        }
    }

    /// Moves a volume to the host that awaits it.
    pub(super) async fn give_volume(
        &self,
        give: PeerVolumeGive,
    ) -> Result<PeerVolumeAnswer, HostError> {
        let peer = match &give.to {
            Some(node) => self.peer(node)?,
            None => self.awaiting(give.migration).await?,
        };
        let how = (give.migration, give.disk);
        let moved = self.hand_over_volume(&give.name, peer, how).await?;
        Ok(PeerVolumeAnswer::Given(Box::new(moved)))
    }

    /// Finds the host that awaits a volume.
    async fn awaiting(&self, migration: ForkId) -> Result<Arc<dyn Peer>, HostError> {
        let neighbours = self.neighbours().ok_or(HostError::NoPeers)?;
        let names = neighbours.names().map_err(|source| HostError::Peer {
            peer: "others".into(),
            source,
        })?;
        let asked = names.iter().map(|name| async move {
            let peer = neighbours.find(name).ok()?;
            let asked = peer.volume_step(PeerVolumeStep::Awaits(migration));
            let answer = timeout(self.parts.options.patience / 2, asked).await;
            matches!(answer, Ok(Ok(PeerVolumeAnswer::Awaits(true)))).then_some(peer)
        });
        let mut found = join_all(asked).await.into_iter().flatten();
        found.next().ok_or_else(|| {
            let why = "none of the hosts that are known there awaits the volume: name this host in \
                       the file of peers there";
            HostError::Conflict(why.into())
        })
    }
}

/// Account of a move of which the other host's is lost.
fn unreported(begun: Instant, term: Term) -> VolumeMoveReport {
    VolumeMoveReport {
        total_us: crate::micros(begun.elapsed()),
        hand_over_us: 0,
        sent: ByteCount(0),
        left: ByteCount(0),
        snapshots: 0,
        term,
    }
}
