//! Volumes put right after a daemon that may have died at any point.

use crate::{Blockd, FORK, VolumeError, over, uses, writer_of};
use forkyard_blockd::{Request, Writer};
use forkyard_records::VmRecord;
use forkyard_types::{VmName, VmState, VolumeAt, VolumeUse};

/// Removes a branch, also one with a writer. None is no error.
pub fn remove_branch(blockd: &Blockd, branch: &VmName) -> Result<(), VolumeError> {
    let name = branch.to_string();
    let removed = blockd.inspect(branch).and_then(|status| {
        blockd.ask(&Request::Close {
            name: name.clone(),
            epoch: Some(status.epoch),
        })?;
        blockd.ask(&Request::Remove { name })
    });
    match removed {
        Err(error) if error.is_missing() => Ok(()),
        removed => removed.map(drop),
    }
}

/// Removes branches that no record names, the upper ones first.
pub fn remove_orphans(blockd: &Blockd, records: &[VmRecord]) -> Result<(), VolumeError> {
    let mut orphans: Vec<VmName> = Vec::new();
    for volume in blockd.names()? {
        let is_branch = blockd.inspect(&volume).is_ok_and(|it| it.base.is_some());
        if is_branch && !records.iter().any(|it| uses(it, &volume)) {
            orphans.push(volume);
        }
    }
    // Each time round those go that no other lies over.
    while !orphans.is_empty() {
        let before = orphans.len();
        orphans.retain(|orphan| match remove_branch(blockd, orphan) {
            Ok(()) => false,
            Err(error) => {
                tracing::debug!(%orphan, error = &error as &dyn std::error::Error, "not yet");
                true
            }
        });
        if orphans.len() == before {
            tracing::warn!(?orphans, "branches that nothing needs stay");
            break;
        }
    }
    Ok(())
}

/// Closes writers that no running VM has, and drops branches and snapshots of forks that no record names. Blocks.
pub fn settle(blockd: &Blockd, records: &[VmRecord]) -> Result<(), VolumeError> {
    remove_orphans(blockd, records)?;
    for volume in blockd.names()? {
        let status = match blockd.inspect(&volume) {
            Ok(status) => status,
            // One that is damaged is no reason not to see to the others.
            Err(error) => {
                tracing::error!(%volume, error = &error as &dyn std::error::Error, "volume cannot be opened");
                continue;
            }
        };
        let writer = writer_of(records, &volume);
        let is_had = writer.is_some_and(|vm| {
            let now = VolumeUse::Written {
                volume: volume.clone(),
                epoch: Some(status.epoch),
            };
            let mut data = vm.data.iter().filter_map(|disk| disk.written());
            let writes =
                vm.volume == Some(now) || data.any(|it| it == (&volume, Some(status.epoch)));
            writes && matches!(vm.state, VmState::Running | VmState::Paused)
        });
        let name = volume.to_string();
        if status.writer == Writer::Open && !is_had {
            tracing::info!(%volume, epoch = status.epoch, "closing a writer that no VM has");
            blockd.ask(&Request::Close {
                name: name.clone(),
                epoch: Some(status.epoch),
            })?;
        }
        for snapshot in status.snapshots {
            let at = VolumeAt {
                volume: volume.clone(),
                snapshot: snapshot.name,
            };
            if at.snapshot.starts_with(FORK) && over(records, &at).is_empty() {
                let dropped = blockd.ask(&Request::DropSnapshot {
                    name: name.clone(),
                    snapshot: at.snapshot,
                });
                if let Err(error) = dropped {
                    tracing::warn!(%volume, error = &error as &dyn std::error::Error, "snapshot kept");
                }
            }
        }
    }
    Ok(())
}
