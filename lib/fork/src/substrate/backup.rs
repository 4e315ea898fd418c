//! Copies of the pool's substrates in an object store, made in the background.
//!
//! ```text
//! docked or pulled --> waiting --push--> done (recorded)
//!                         ^  `--fails--> failing --a while--> waiting
//!                         `---------- the operator names another store
//! ```
//!
//! Nothing waits for it. Kept boots have no copy, for any host makes them again, and what is removed here
//! stays there until it is removed there.

use super::{Substrate, porter::Stores};
use crate::{Host, HostError};
use forkyard_objects::StoreAddress;
use forkyard_types::{BackupState, BackupView, ImageId, VmName};
use forkyard_vm::lock;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};

/// Time until what has failed is tried again, at first and at most.
const SOON: Duration = Duration::from_secs(5);
const LATE: Duration = Duration::from_secs(600);

/// Copies under way.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    /// Told whenever there may be something to copy.
    changed: Arc<Notify>,
    /// Reasons why the last attempts failed.
    problems: Mutex<BTreeMap<VmName, String>>,
}

/// Record of a copy that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    store: String,
    at: u64,
    /// Memory of what was copied.
    image: ImageId,
}

impl Host {
    /// Takes the operator's choices of object stores; backs the pool up from now on if one is for that.
    /// Called once, when the host is open.
    pub fn use_stores(&self, stores: Stores) {
        let backs_up = stores.backup.is_some();
        if self.substrates.stores.set(stores).is_err() || !backs_up {
            return;
        }
        let (host, changed) = (self.handle(), self.substrates.backups.changed.clone());
        tokio::spawn(async move {
            let mut wait = SOON;
            loop {
                let failed = match host.upgrade() {
                    Some(host) => host.back_up().await,
                    None => return,
                };
                wait = match failed {
                    false => {
                        changed.notified().await;
                        SOON
                    }
                    true => {
                        // What is new meanwhile is not waited with.
                        let _ = timeout(wait, changed.notified()).await;
                        (wait * 2).min(LATE)
                    }
                };
            }
        });
    }

    /// Has copies be made of what has none.
    pub(super) fn wake_backup(&self) {
        self.substrates.backups.changed.notify_one();
    }

    /// Copies whatever has no copy. Tells whether some failed.
    async fn back_up(&self) -> bool {
        let Some(store) = self.backup_store() else {
            return false;
        };
        let all = match self.all_substrates() {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "not backed up");
                return true;
            }
        };
        lock(&self.substrates.backups.problems)
            .retain(|name, _| all.iter().any(|it| it.name == *name));
        let mut failed = false;
        for substrate in all.iter().filter(|it| it.wants_copy(store)) {
            let copied = async {
                self.store_substrate(substrate, store, false).await?;
                self.record_copy(substrate, store).await
            };
            let Err(error) = copied.await else {
                lock(&self.substrates.backups.problems).remove(&substrate.name);
                continue;
            };
            // One that was removed meanwhile has not failed.
            if self.is_known(substrate) {
                failed = true;
                tracing::warn!(name = %substrate.name, error = &error as &dyn std::error::Error, "not backed up");
                let why = error.to_api().message;
                lock(&self.substrates.backups.problems).insert(substrate.name.clone(), why);
            }
        }
        failed
    }

    fn is_known(&self, substrate: &Substrate) -> bool {
        let all = self.all_substrates().unwrap_or_default();
        all.iter().any(|it| it.image() == substrate.image())
    }

    /// Records that a substrate's copy is there.
    async fn record_copy(
        &self,
        substrate: &Substrate,
        store: &StoreAddress,
    ) -> Result<(), HostError> {
        let _turn = self.substrates.docks.lock().await;
        let all = self.all_substrates()?.into_iter();
        // As it is now.
        let found = all.filter(|it| it.name == substrate.name);
        for mut now in found.filter(|it| it.image() == substrate.image()) {
            now.entry.backup = now.image().map(|image| Copied {
                store: store.to_string(),
                at: crate::now(),
                image,
            });
            self.parts.store.update_substrate(&now.record()?)?;
        }
        Ok(())
    }

    fn backup_store(&self) -> Option<&StoreAddress> {
        self.substrates.stores.get()?.backup.as_ref()
    }

    /// The copy of a substrate, where the pool is backed up.
    pub(super) fn backup_of(&self, substrate: &Substrate) -> Option<BackupView> {
        let store = self.backup_store()?;
        if substrate.entry.boot {
            return None;
        }
        let problem = lock(&self.substrates.backups.problems)
            .get(&substrate.name)
            .cloned();
        let done = substrate.copy_in(store);
        Some(BackupView {
            store: store.to_string(),
            state: match (done, &problem) {
                (Some(_), _) => BackupState::Done,
                (None, Some(_)) => BackupState::Failing,
                (None, None) => BackupState::Waiting,
            },
            at: done.map(|it| it.at),
            problem: problem.filter(|_| done.is_none()),
        })
    }

    /// Numbers of copies, by how far they are; none where the pool is not backed up.
    pub fn backup_counts(&self) -> Result<BTreeMap<BackupState, u64>, HostError> {
        let mut counts = BTreeMap::new();
        if self.backup_store().is_none() {
            return Ok(counts);
        }
        for state in [
            BackupState::Done,
            BackupState::Waiting,
            BackupState::Failing,
        ] {
            counts.insert(state, 0);
        }
        for view in self
            .all_substrates()?
            .iter()
            .filter_map(|it| self.backup_of(it))
        {
            *counts.entry(view.state).or_default() += 1;
        }
        Ok(counts)
    }

    /// Tells whether copies are under way, or wait for their turn. Those that failed are tried again by
    /// whatever daemon runs then.
    pub fn backs_up(&self) -> bool {
        let counts = self.backup_counts().unwrap_or_default();
        counts.get(&BackupState::Waiting).is_some_and(|it| *it > 0)
    }

    /// Copies that cannot be made, one line each.
    pub(crate) fn backup_problems(&self) -> Result<Vec<String>, HostError> {
        let all = self.all_substrates()?;
        let failing = all.iter().filter_map(|it| {
            let view = self.backup_of(it)?;
            let (why, store) = (view.problem?, view.store);
            let name = &it.name;
            Some(format!(
                "substrate {name} is not backed up to {store}: {why}; it is tried again by itself"
            ))
        });
        Ok(failing.collect())
    }
}

impl Substrate {
    fn image(&self) -> Option<ImageId> {
        Some(self.entry.parts.as_ref()?.memory.image)
    }

    fn copy_in(&self, store: &StoreAddress) -> Option<&Copied> {
        let copied = self.entry.backup.as_ref();
        copied.filter(|it| it.store == store.to_string() && Some(it.image) == self.image())
    }

    /// Tells whether it is to be copied and is not.
    fn wants_copy(&self, store: &StoreAddress) -> bool {
        let entry = &self.entry;
        let whole = entry.parts.is_some() && entry.leaving.is_none() && !entry.boot;
        whole && self.copy_in(store).is_none()
    }
}
