//! Exports, by their names.

use crate::passes::Passes;
use forkyard_nbd::{Export, ExportAccess, ExportDenied, Exports, Sharing};
use forkyard_volume::{Opening, SnapshotId, Takeover, View, WriterEpoch};
use forkyard_volume_store::{Blame, Library, Store, StoreError};
use std::sync::{Arc, OnceLock};

/// Exports of a library, for one connection.
#[derive(Debug)]
pub(crate) struct Shelf<'a> {
    pub library: &'a Library,
    /// Key that codes of exports are checked by; `None` if the client may open everything.
    pub passes: Option<&'a Passes>,
    /// Volume that the connection has open.
    pub opened: Option<Opened>,
}

/// Volume or snapshot that a connection has open.
#[derive(Debug)]
pub(crate) struct Opened {
    pub store: Arc<Store>,
    content: Content,
    /// Epoch to write in; `None` if it is read-only.
    pub epoch: Option<WriterEpoch>,
    /// True if the writer ends with the connection.
    pub own: bool,
}

/// Content that a client reads.
#[derive(Debug)]
enum Content {
    /// This.
    There(View),
    /// A snapshot of this name, which was not there yet as the client came.
    Coming(String, OnceLock<SnapshotId>),
}

impl Content {
    /// Returns the view whose size it has: a snapshot will be as large as the volume is now.
    fn now(&self) -> View {
        match self {
            Self::There(view) => *view,
            Self::Coming(..) => View::Current,
        }
    }
}

impl Opened {
    /// Returns the view that it reads. An error for a snapshot that has still not been taken.
    pub fn view(&self) -> Result<View, StoreError> {
        match &self.content {
            Content::There(view) => Ok(*view),
            Content::Coming(name, found) => {
                if let Some(id) = found.get() {
                    return Ok(View::Snapshot(*id));
                }
                let id = self.store.snapshot_called(name)?;
                Ok(View::Snapshot(*found.get_or_init(|| id)))
            }
        }
    }
}

/// Parts of an export's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named<'a> {
    Whole(&'a str),
    Writer(&'a str, WriterEpoch),
    Snapshot(&'a str, &'a str),
}

/// Name of the export for a writer.
pub(crate) fn writer_name(volume: &str, epoch: WriterEpoch) -> String {
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
    Some(Named::Writer(volume, WriterEpoch(epoch)))
}

fn denied(error: StoreError) -> ExportDenied {
    let why = error.to_string();
    match error.blame() {
        Blame::Missing => ExportDenied::Unknown(why),
        Blame::Fenced
        | Blame::Caller
        | Blame::Room
        | Blame::Elsewhere
        | Blame::Key
        | Blame::Host => ExportDenied::Policy(why),
    }
}

impl Shelf<'_> {
    fn find(&self, name: &str) -> Result<(Opened, Export), ExportDenied> {
        let malformed = || {
            let why = format!("{name:?} is no export: NAME, NAME:EPOCH or NAME@SNAPSHOT are");
            ExportDenied::Unknown(why)
        };
        let shown = match self.passes {
            None => name,
            Some(passes) => passes.check(name).ok_or_else(malformed)?,
        };
        let named = parse(shown).ok_or_else(malformed)?;
        let (Named::Whole(volume) | Named::Writer(volume, _) | Named::Snapshot(volume, _)) = named;
        let store = self.library.open(volume).map_err(denied)?;
        let (content, epoch) = match named {
            Named::Whole(_) => (Content::There(View::Current), None),
            Named::Writer(_, epoch) => {
                store.admit(epoch).map_err(denied)?;
                (Content::There(View::Current), Some(epoch))
            }
            Named::Snapshot(_, snapshot) => match store.snapshot_called(snapshot) {
                Ok(id) => (Content::There(View::Snapshot(id)), None),
                // A pass may be for one that will be taken: clones are made before the instant
                // that they are of.
                Err(_) if self.passes.is_some() => {
                    (Content::Coming(snapshot.to_owned(), OnceLock::new()), None)
                }
                Err(error) => return Err(denied(error)),
            },
        };
        let gone = || ExportDenied::Unknown(format!("{name:?} has just been removed"));
        let size = store.size(content.now()).ok_or_else(gone)?;
        let (access, sharing, own) = match named {
            Named::Whole(_) => (ExportAccess::ReadWrite, Sharing::One, true),
            Named::Writer(..) => (ExportAccess::ReadWrite, Sharing::Many, false),
            Named::Snapshot(..) => (ExportAccess::ReadOnly, Sharing::Many, false),
        };
        let opened = Opened {
            store,
            content,
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
        if self.passes.is_some() {
            return names;
        }
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

    fn describe(&mut self, name: &str) -> Result<Export, ExportDenied> {
        self.find(name).map(|(_, export)| export)
    }

    fn open(&mut self, name: &str) -> Result<Export, ExportDenied> {
        let (mut opened, export) = self.find(name)?;
        if opened.own {
            opened.store.refuse_held().map_err(denied)?;
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
