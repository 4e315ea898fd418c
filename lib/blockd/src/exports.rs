//! Exports, by their names.

use forkyard_nbd::{Access, Denied, Export, Exports, Sharing};
use forkyard_volume::{Epoch, Opening, Takeover, View};
use forkyard_volume_store::{Blame, Library, Store, StoreError};
use std::sync::Arc;

/// Exports of a library, for one connection.
#[derive(Debug)]
pub(crate) struct Shelf<'a> {
    pub library: &'a Library,
    /// What the connection has open.
    pub opened: Option<Opened>,
}

/// Volume or snapshot that a connection has open.
#[derive(Debug)]
pub(crate) struct Opened {
    pub store: Arc<Store>,
    pub view: View,
    /// Epoch to write in; `None` if it is read-only.
    pub epoch: Option<Epoch>,
    /// True if the writer ends with the connection.
    pub own: bool,
}

/// Parts of an export's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named<'a> {
    Whole(&'a str),
    Writer(&'a str, Epoch),
    Snapshot(&'a str, &'a str),
}

/// Name of the export for a writer.
pub(crate) fn writer_name(volume: &str, epoch: Epoch) -> String {
    format!("{volume}:{}", epoch.0)
}

fn parse(name: &str) -> Option<Named<'_>> {
    if let Some((volume, snapshot)) = name.split_once('@') {
        return Some(Named::Snapshot(volume, snapshot));
    }
    let Some((volume, epoch)) = name.split_once(':') else {
        return Some(Named::Whole(name));
    };
    let epoch = epoch.parse().ok()?;
    Some(Named::Writer(volume, Epoch(epoch)))
}

fn denied(error: StoreError) -> Denied {
    let why = error.to_string();
    match error.blame() {
        Blame::Missing => Denied::Unknown(why),
        Blame::Fenced | Blame::Caller | Blame::Room | Blame::Host => Denied::Policy(why),
    }
}

impl Shelf<'_> {
    fn find(&self, name: &str) -> Result<(Opened, Export), Denied> {
        let malformed = || {
            let why = format!("{name:?} is no export: NAME, NAME:EPOCH or NAME@SNAPSHOT are");
            Denied::Unknown(why)
        };
        let named = parse(name).ok_or_else(malformed)?;
        let (Named::Whole(volume) | Named::Writer(volume, _) | Named::Snapshot(volume, _)) = named;
        let store = self.library.open(volume).map_err(denied)?;
        let (view, epoch) = match named {
            Named::Whole(_) => (View::Current, None),
            Named::Writer(_, epoch) => {
                store.admit(epoch).map_err(denied)?;
                (View::Current, Some(epoch))
            }
            Named::Snapshot(_, snapshot) => {
                let id = store.snapshot_called(snapshot).map_err(denied)?;
                (View::Snapshot(id), None)
            }
        };
        let gone = || Denied::Unknown(format!("{name:?} has just been removed"));
        let size = store.size(view).ok_or_else(gone)?;
        let (access, sharing, own) = match named {
            Named::Whole(_) => (Access::ReadWrite, Sharing::One, true),
            Named::Writer(..) => (Access::ReadWrite, Sharing::Many, false),
            Named::Snapshot(..) => (Access::ReadOnly, Sharing::Many, false),
        };
        let opened = Opened {
            store,
            view,
            epoch,
            own,
        };
        let export = Export {
            size,
            access,
            sharing,
        };
        Ok((opened, export))
    }
}

impl Exports for Shelf<'_> {
    fn names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for name in self.library.names().unwrap_or_default() {
            let Ok(store) = self.library.open(&name) else {
                continue;
            };
            match store.writer() {
                (_, Opening::Closed) => names.push(name.clone()),
                (epoch, Opening::Open) => names.push(writer_name(&name, epoch)),
            }
            let snapshots = store.snapshot_names().into_iter();
            names.extend(snapshots.map(|it| format!("{name}@{it}")));
        }
        names
    }

    fn describe(&mut self, name: &str) -> Result<Export, Denied> {
        self.find(name).map(|(_, export)| export)
    }

    fn open(&mut self, name: &str) -> Result<Export, Denied> {
        let (mut opened, export) = self.find(name)?;
        if opened.own {
            let epoch = opened.store.open_writer(Takeover::Refused);
            opened.epoch = Some(epoch.map_err(denied)?);
        }
        self.opened = Some(opened);
        Ok(export)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let (true, Some(epoch)) = (self.own, self.epoch)
            && let Err(error) = self.store.close_writer(epoch)
        {
            tracing::warn!(volume = self.store.name(), %error, "cannot close");
        }
    }
}
