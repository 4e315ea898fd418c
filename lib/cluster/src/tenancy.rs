//! Grants that VMs live on: they are kept for as long as their VMs are.
//!
//! They are noted in this node's folder, for its next daemon. Ending VMs, and
//! knowing which there are, is not done in this crate.

use crate::{Cluster, ClusterError, cluster::Shared};
use forkyard_types::{TicketId, VmId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

/// Grants, and the VMs that were made of each.
pub type Kept = BTreeMap<TicketId, BTreeSet<VmId>>;

/// File in which they are noted.
const KEPT: &str = "tickets.json";

impl Cluster {
    /// The grants that VMs live on, of those that were asked for here.
    pub fn kept(&self) -> Kept {
        self.shared().taken().kept.clone()
    }

    /// Lists the grants that this node has not ended, not even in part, by the present
    /// account of the allocator.
    pub async fn granted(&self) -> Result<BTreeSet<TicketId>, ClusterError> {
        let granted = self.shared().rooms().whole_of(self.name()).await?;
        Ok(granted.into_iter().collect())
    }

    /// Gives back what no VM lives on any more.
    pub fn give_back(&self, grant: TicketId) {
        let shared = self.shared();
        let mut taken = shared.taken();
        if taken.kept.remove(&grant).is_some() {
            note(&shared.folder, &taken.kept);
        }
        taken.spent.insert(grant);
        shared.dropped.notify_one();
    }
}

impl Shared {
    /// These VMs live on it from now on.
    pub fn keep(&self, grant: TicketId, vms: BTreeSet<VmId>) {
        let mut taken = self.taken();
        taken.kept.insert(grant, vms);
        note(&self.folder, &taken.kept);
    }
}

/// Reads the notes of an earlier daemon.
pub(crate) fn read(folder: &Path) -> Kept {
    match fs::read(folder.join(KEPT)) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::error!(%error, "what VMs live on cannot be read: it will be given back");
            Kept::default()
        }),
        Err(_) => Kept::default(),
    }
}

fn note(folder: &Path, kept: &Kept) {
    let (place, new) = (folder.join(KEPT), folder.join("tickets.new"));
    let written = match kept.is_empty() {
        true => fs::remove_file(&place),
        false => serde_json::to_vec(kept)
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &place)),
    };
    if let Err(error) = written {
        tracing::warn!(%error, "what VMs live on is not noted: the next daemon will give it back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_and_what_is_damaged_is_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(read(folder.path()).is_empty());
        let kept = Kept::from([(TicketId::random(), [VmId::random()].into())]);
        note(folder.path(), &kept);
        assert_eq!(read(folder.path()), kept);
        note(folder.path(), &Kept::default());
        assert!(read(folder.path()).is_empty());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        fs::write(folder.path().join(KEPT), "{").expect("written");
        assert!(read(folder.path()).is_empty());
    }
}
