//! Law by which blocks of a volume are sent ahead: told of each block, and changed.

use super::{VolumeError, known_name};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{BlockLocation, Law, Request, WhyTransfer};
use forkyard_types::{
    PageCount, TuneVolume, VolumeHolding, VolumeLaw, VolumeTransfer, VolumeView, VolumeWhy,
};

impl Host {
    /// Tells why a block of a volume went to other hosts, came from there, or did not. Cancel-safe.
    pub async fn volume_why(&self, name: &str, block: u64) -> Result<VolumeWhy, HostError> {
        let volume = known_name(name)?;
        let seen = self.volume(name).await?;
        let asked = Request::Why {
            name: volume.to_string(),
            block,
        };
        let blockd = self.volumes.disks.blockd.clone();
        let answer = blocking(move || blockd.ask(&asked)).await?;
        let why = answer.why().ok_or(VolumeError::Answer)?;
        let from = seen.lacking.into_iter().map(|it| it.at);
        let mut hosts: Vec<_> = from
            .chain(seen.needed_by.into_iter().map(|it| it.host))
            .collect();
        hosts.dedup();
        Ok(VolumeWhy {
            block,
            offset: PageCount(block).bytes().unwrap_or_default(),
            holding: match why.holding {
                BlockLocation::Unwritten => VolumeHolding::Unwritten,
                BlockLocation::Zero => VolumeHolding::Zero,
                BlockLocation::Here => VolumeHolding::Here,
                BlockLocation::Elsewhere => VolumeHolding::Elsewhere,
            },
            version: why.version,
            hosts,
            law: law(why.law),
            transfers: why.transfers.into_iter().map(transfer).collect(),
            is_cut: why.is_cut,
        })
    }

    /// Changes the law by which blocks of a volume are sent ahead, also while a VM writes it. If cancelled,
    /// it is changed all the same.
    pub async fn tune_volume(
        &self,
        name: &str,
        request: TuneVolume,
    ) -> Result<VolumeView, HostError> {
        let TuneVolume { k, s } = request;
        let name = known_name(name)?.to_string();
        let tune = Request::Tune {
            name: name.clone(),
            k,
            s,
        };
        self.volumes.disks.ask(tune).await?;
        self.volume(&name).await
    }
}

fn law(it: Law) -> VolumeLaw {
    VolumeLaw {
        k: it.k,
        s: it.s,
        reads: it.reads,
        writes: it.writes,
        priority: it.priority,
        words: it.words,
    }
}

fn transfer(it: WhyTransfer) -> VolumeTransfer {
    VolumeTransfer {
        at: it.at,
        host: it.host,
        snapshot: it.snapshot,
        is_sent: it.is_sent,
        why: it.why,
        law: it.law.map(law),
    }
}
