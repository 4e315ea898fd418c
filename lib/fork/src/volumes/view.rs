//! Descriptions of volumes.

use super::{VolumeError, over, writer_of};
use crate::{Host, HostError};
use forkyard_blockd::{Status, WhenAway};
use forkyard_records::{KnownTerm, VmRecord, VolumeCopy};
use forkyard_types::{
    ByteCount, PageCount, Term, VmName, VolumeAt, VolumeLacking, VolumeMirror, VolumeNeed,
    VolumeSnapshot, VolumeTuning, VolumeView, WhenMirrorAway,
};

/// Records of volumes.
pub(super) struct Known {
    copies: Vec<VolumeCopy>,
    terms: Vec<KnownTerm>,
}

impl Known {
    /// Tells whether what is here of a volume is a copy.
    pub(super) fn is_copy(&self, name: &VmName) -> bool {
        self.copies.iter().any(|copy| copy.volume == *name)
    }

    /// Latest term of a volume that is known here.
    pub(super) fn term(&self, name: &VmName, id: &str) -> Term {
        let mut terms = self.terms.iter();
        let term = terms.find(|it| it.volume == *name && it.id == id);
        term.map_or(Term::FIRST, |it| it.term)
    }
}

impl Host {
    pub(super) fn known(&self) -> Result<Known, HostError> {
        Ok(Known {
            copies: self.parts.store.copies()?,
            terms: self.parts.store.volume_terms()?,
        })
    }

    /// Describes a volume, with what is known of its place.
    pub(super) fn view_of_volume(
        &self,
        name: VmName,
        seen: Result<Status, VolumeError>,
        (records, known): (&[VmRecord], &Known),
    ) -> Result<VolumeView, HostError> {
        let id = seen.as_ref().ok().map(|status| status.id.clone());
        let mut view = view(name, seen, records, &known.copies)?;
        view.node = self.homes().map(|homes| homes.own());
        view.moving = self.volumes.guards.way(&view.name);
        view.term = match (&view.at, &id) {
            (None, Some(id)) => Some(known.term(&view.name, id)),
            (Some(_), _) | (_, None) => None,
        };
        view.id = id;
        Ok(view)
    }
}

/// Describes a volume, also one that cannot be opened.
fn view(
    name: VmName,
    seen: Result<Status, VolumeError>,
    records: &[VmRecord],
    copies: &[VolumeCopy],
) -> Result<VolumeView, HostError> {
    let copy = copies.iter().find(|copy| copy.volume == name);
    let at = copy.map(|copy| copy.at.clone());
    let vm = writer_of(records, &name).map(|vm| vm.name.clone());
    let status = match seen {
        Ok(status) => status,
        Err(error) if error.is_of_volume() => {
            return Ok(VolumeView {
                name,
                size: ByteCount::default(),
                stored: ByteCount::default(),
                at,
                node: None,
                id: None,
                term: None,
                moving: None,
                vm,
                encrypted: error.is_of_key(),
                key_file: None,
                law: None,
                mirrors: Vec::new(),
                epoch: 0,
                snapshots: Vec::new(),
                lacking: Vec::new(),
                needed_by: Vec::new(),
                failure: Some(HostError::from(error).to_api().message),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let snapshots = status.snapshots.into_iter().map(|it| VolumeSnapshot {
        vms: over(
            records,
            &VolumeAt {
                volume: name.clone(),
                snapshot: it.name.clone(),
            },
        ),
        name: it.name,
        size: ByteCount(it.size),
    });
    Ok(VolumeView {
        size: ByteCount(status.size),
        stored: ByteCount(status.written),
        at,
        node: None,
        id: None,
        term: None,
        moving: None,
        vm,
        encrypted: status.key.is_some(),
        key_file: status.key.map(|path| path.display().to_string()),
        failure: None,
        epoch: status.epoch,
        mirrors: { status.mirrors.into_iter() }
            .map(|it| VolumeMirror {
                host: it.host,
                is_there: it.is_there,
                behind: it.behind,
                is_promoted: it.is_promoted,
                away: match status.when_away {
                    WhenAway::Wait => WhenMirrorAway::Wait,
                    WhenAway::GoOn => WhenMirrorAway::GoOn,
                },
            })
            .collect(),
        law: Some(VolumeTuning {
            k: status.k,
            s: status.s,
        }),
        snapshots: snapshots.collect(),
        lacking: { status.lacking.into_iter() }
            .map(|it| VolumeLacking {
                size: PageCount(it.blocks).bytes().unwrap_or_default(),
                at: it.host,
            })
            .collect(),
        needed_by: { status.needs.into_iter() }
            .map(|it| VolumeNeed {
                host: it.by,
                snapshot: it.snapshot,
            })
            .collect(),
        name,
    })
}
