//! Copies that are held for the host where a volume is at home.
//!
//! A copy takes streams of that host alone, and nothing else writes it. Promoted, it is a volume as any
//! other, and takes none any more: that host learns so when it next has something to send, and its
//! writer is fenced. Until then none of its flushes is answered, if they are to wait.
//!
//! | fails | then |
//! |---|---|
//! | a stream | the next one restores the snapshot that it lies over |
//! | a promotion, before its end | a copy as before, that no VM may open; it is promoted again |

use crate::{Library, Store, StoreError, mirror::MIRRORED, store::bytes, stream::StreamHeader};
use forkyard_volume::{Opening, Takeover, View};
use serde::{Deserialize, Serialize};
use std::{
    io::BufRead,
    sync::{MutexGuard, PoisonError},
};

/// File of a copy, or of one that was promoted.
pub(crate) const FILE: &str = "held";

/// Part that a volume here has for another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// None.
    #[default]
    Not,
    /// Copy of what that host writes.
    For(String),
    /// Copy for that host once, and at home here now.
    Promoted(String),
}

impl Library {
    /// Snapshots of a copy that is held for a host. None if there is no such volume yet.
    pub fn holding(&self, name: &str, host: &str) -> Result<Vec<String>, StoreError> {
        match self.open(name) {
            Err(StoreError::Unknown(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(store) => {
                store.admit_from(host)?;
                Ok(store.snapshot_names())
            }
        }
    }

    /// Takes a snapshot for the host where the volume is at home, durably, and drops those that were
    /// taken before, but for one. A copy is made with the first. Returns the name of the snapshot.
    pub fn hold(
        &self,
        name: &str,
        host: &str,
        input: &mut dyn BufRead,
    ) -> Result<String, StoreError> {
        let header = StreamHeader::read(input)?;
        if !header.snapshot.starts_with(MIRRORED) {
            return Err(StoreError::Stream("it is not for a copy"));
        }
        let store = match self.open(name) {
            Ok(store) => store,
            Err(StoreError::Unknown(_)) if header.since.is_none() => {
                let what = (header.volume()?, bytes(header.blocks()));
                self.make(name, what, &header.at_rest(), |store| {
                    store.set_held(Held::For(host.to_owned()))?;
                    store.take(&header, None, input)
                })?;
                return Ok(header.snapshot);
            }
            Err(error) => return Err(error),
        };
        store.refuse_branch("received")?;
        // Until the end: a promotion comes before it or after it.
        let _receiving = store.receiving();
        store.admit_from(host)?;
        if header.volume()? != store.facts().id {
            return Err(StoreError::OtherVolume(name.to_owned()));
        }
        if header.encrypted && !store.is_encrypted() {
            return Err(StoreError::NotEncrypted(name.to_owned()));
        }
        store.end_broken_stream()?;
        store.take(&header, None, input)?;
        // A crash may take the last snapshot from the host that it came from: then the one before is
        // what both have.
        let mut taken = store.snapshot_names();
        taken.retain(|it| it.starts_with(MIRRORED));
        let former = taken.len().saturating_sub(2);
        for former in &taken[..former] {
            store.drop_mirrored_one(former)?;
        }
        Ok(header.snapshot)
    }

    /// Makes a copy a volume that is at home here, as the last snapshot that it took: the host where it
    /// was at home is fenced. Waits for a stream that comes in. If it fails or is cut short, it is a copy
    /// still, and can be promoted again.
    pub fn promote(&self, name: &str) -> Result<(), StoreError> {
        let store = self.open(name)?;
        let _receiving = store.receiving();
        let host = match store.held() {
            Held::For(host) => host,
            Held::Not | Held::Promoted(_) => return Err(StoreError::NoCopy(name.to_owned())),
        };
        let mut whole = store.snapshot_names().into_iter();
        let whole = whole.rfind(|it| it.starts_with(MIRRORED));
        let whole = whole.ok_or_else(|| StoreError::Coming(name.to_owned()))?;
        // What a stream that broke off has left is undone. A size is not reduced under a writer.
        store.end_broken_stream()?;
        let size = store.size(View::Snapshot(store.snapshot_called(&whole)?));
        if let Some(size) = size
            && store.size(View::Current) != Some(size)
        {
            store.resize(size)?;
        }
        let epoch = store.open_writer(Takeover::Refused)?;
        store.restore(epoch, Some(&whole))?;
        store.close_writer(epoch)?;
        store.flush()?;
        // Last: a volume that is at home here is whole.
        store.set_held(Held::Promoted(host))?;
        for name in store.snapshot_names() {
            if name.starts_with(MIRRORED) {
                // It is at home here in any case: a snapshot that cannot be removed is left to its user.
                let _ = store.drop_mirrored_one(&name);
            }
        }
        let _ = store.flush();
        Ok(())
    }
}

impl Store {
    /// Part that it has for another host.
    pub fn held(&self) -> Held {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    /// Keeps streams and promotions from each other.
    fn receiving(&self) -> MutexGuard<'_, ()> {
        let receiving = self.mirrors.receiving.lock();
        receiving.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the writer of a stream that broke off, or in which this server died.
    fn end_broken_stream(&self) -> Result<(), StoreError> {
        match self.writer() {
            (epoch, Opening::Open) => self.close_writer(epoch),
            (_, Opening::Closed) => Ok(()),
        }
    }

    fn set_held(&self, held: Held) -> Result<(), StoreError> {
        let mut now = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.folder.store(FILE, &held)?;
        *now = held;
        Ok(())
    }

    /// Refuses streams of a host that it is not held for.
    fn admit_from(&self, host: &str) -> Result<(), StoreError> {
        match self.held() {
            Held::For(its) if its == host => Ok(()),
            Held::For(_) | Held::Not => Err(StoreError::Exists(self.name.clone())),
            Held::Promoted(_) => Err(StoreError::IsPromoted(self.name.clone())),
        }
    }

    /// Refuses a writer of a copy.
    pub fn refuse_held(&self) -> Result<(), StoreError> {
        match self.held() {
            Held::For(host) => Err(StoreError::HeldFor {
                volume: self.name.clone(),
                host,
            }),
            Held::Not | Held::Promoted(_) => Ok(()),
        }
    }
}
