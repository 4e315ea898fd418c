//! Snapshots that other hosts need: what they lack of a volume they fetch from here.
//!
//! Kept in the volume's file `needs`, and refused to be removed until the need is over.

use crate::{Library, Store, StoreError};
use serde::{Deserialize, Serialize};

pub(crate) const FILE: &str = "needs";

/// Need of another host for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// Volume.
    pub volume: String,
    /// Snapshot.
    pub snapshot: String,
    /// Host that needs it, as it is called here.
    pub by: String,
}

impl Store {
    /// Needs of other hosts.
    pub fn needs(&self) -> Vec<Need> {
        self.needs.lock().map(|it| it.clone()).unwrap_or_default()
    }

    /// Keeps a snapshot for another host, durably.
    pub fn need(&self, snapshot: &str, by: &str) -> Result<(), StoreError> {
        self.snapshot_called(snapshot)?;
        let need = Need {
            volume: self.name.clone(),
            snapshot: snapshot.to_owned(),
            by: by.to_owned(),
        };
        self.change_needs(|needs| {
            needs.retain(|it| *it != need);
            needs.push(need);
        })
    }

    /// Ends a need, durably.
    pub fn unneed(&self, snapshot: &str, by: &str) -> Result<(), StoreError> {
        self.change_needs(|needs| needs.retain(|it| it.snapshot != snapshot || it.by != by))
    }

    fn change_needs(&self, change: impl FnOnce(&mut Vec<Need>)) -> Result<(), StoreError> {
        let mut needs = self.needs.lock().map_err(|_| StoreError::Failed)?;
        change(&mut needs);
        self.folder.store(FILE, &*needs)
    }

    /// Refuses what would take a snapshot, or all of them, from a host that needs it.
    pub(crate) fn refuse_needed(&self, snapshot: Option<&str>) -> Result<(), StoreError> {
        let needs = self.needs();
        let mut needs = needs.into_iter();
        match needs.find(|it| snapshot.is_none_or(|wanted| it.snapshot == wanted)) {
            Some(Need { volume, by, .. }) => Err(StoreError::Needed { volume, by }),
            None => Ok(()),
        }
    }
}

impl Library {
    /// Needs of other hosts, of all volumes that can be opened.
    pub fn needs(&self) -> Result<Vec<Need>, StoreError> {
        let names = self.names()?.into_iter();
        // Most volumes are needed by nothing, and are not opened for that.
        let needed = names.filter(|name| self.folder.join(name).join(FILE).exists());
        let opened = needed.filter_map(|name| self.open(&name).ok());
        Ok(opened.flat_map(|store| store.needs()).collect())
    }
}
