//! Independence: a VM's disk comes to depend on no other file, while the VM runs.
//!
//! ```text
//! slices over a base --wanted, recorded--> base copied into the active slice, bit by bit --> active slice alone
//!                            ^                  |                                             |
//!                            `--forked, failed--'                                        recorded
//! ```
//!
//! The copy goes into the slice that the VM writes, which reads the same with it and without it. The
//! step from the one to the other is one write of that slice's header, by the machine: whatever is
//! killed, the disk is the slice over its base, or the slice alone. What is recorded follows; until
//! then the files below are kept, needed or not.
//!
//! Failure paths: a fork goes first, and the copy goes on for the slice that the VM writes then. A daemon
//! that dies leaves the wish recorded: the next one goes on. A VM that stops is not copied until it starts. What
//! fails is tried again a little later and shown.

use crate::{Host, HostError, blocking};
use forkyard_records::VmRecord;
use forkyard_snapshot::{Disk, Generation};
use forkyard_types::{ByteCount, IndependenceView, VmId, VmInspect};
use forkyard_vm::{Vm, lock};
use forkyard_vmm::Copied;
use futures::{FutureExt as _, future::BoxFuture};
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Bytes a second that are copied at most: the VM and others use the same disk.
const SPEED: ByteCount = ByteCount(64 << 20);
/// After an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest time in one go: forks are not kept waiting at all, pauses and the end of the VM no longer. What was
/// copied stays copied.
const TURN: Duration = Duration::from_secs(3);
/// After it was called off.
const SOON: Duration = Duration::from_millis(100);

/// Copies under way, by VM.
#[derive(Debug, Default)]
pub(crate) struct Independence(Mutex<BTreeMap<VmId, Copying>>);

/// State of one of them.
#[derive(Clone, Debug, Default)]
struct Copying {
    now: Copied,
    problem: Option<String>,
}

/// Next step after an attempt.
enum Next {
    Done,
    Again(Duration),
}

impl Host {
    /// Has a VM's disk come to depend on nothing, in the background; `inspect` shows how far it
    /// is. No error if that is under way or done. Cancel-safe: it is begun or not.
    pub async fn make_independent(&self, vm: &str) -> Result<VmInspect, HostError> {
        let vm = self.vm(vm)?;
        self.want_independence(&vm).await?;
        self.inspect(vm.id.as_str()).await
    }

    pub(crate) async fn want_independence(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        let record = vm.record();
        Self::refuse_on_volume(&record, "its root disk is that volume, and stays so")?;
        // One that is paused does not move, but its disk does.
        vm.running()?;
        if self.is_independent(&record).await? {
            return Ok(());
        }
        self.parts.store.put_independence(vm.id)?;
        self.go_on_copying(vm);
        Ok(())
    }

    /// Tells how far a VM is.
    pub(crate) async fn independence_of(
        &self,
        record: &VmRecord,
    ) -> Result<IndependenceView, HostError> {
        let independent = self.is_independent(record).await?;
        let copying = lock(&self.substrates.independence.0)
            .get(&record.id)
            .cloned();
        let wanted = copying.is_some() || self.parts.store.wants_independence(record.id)?;
        let Copying { now, problem } = copying.unwrap_or_default();
        Ok(IndependenceView {
            independent,
            wanted: wanted && !independent,
            copied: now.copied,
            total: now.total,
            problem,
        })
    }

    /// Checks that a disk depends on no file of others: each slice is the VM's own, and the lowest lies over nothing.
    async fn is_independent(&self, record: &VmRecord) -> Result<bool, HostError> {
        let own = self.parts.folders.disks(record.id);
        match record.chain.iter().all(|slice| slice.starts_with(&own)) {
            true => self.is_whole(&Disk::at_rest(record)).await,
            false => Ok(false),
        }
    }

    /// Goes on with all that an earlier daemon began. Called once, when VMs are known.
    pub(crate) fn resume_independence(&self) -> Result<(), HostError> {
        for id in self.parts.store.wanting_independence()? {
            let vm = self.parts.registry().get(id);
            if let Some(vm) = vm.filter(|vm| vm.is_running()) {
                self.go_on_copying(&vm);
            }
        }
        Ok(())
    }

    /// Goes on with a VM that starts again, if that is wanted of it.
    pub(crate) fn resume_independence_of(&self, vm: &Arc<Vm>) {
        if self
            .parts
            .store
            .wants_independence(vm.id)
            .is_ok_and(|it| it)
        {
            self.go_on_copying(vm);
        }
    }

    /// Copies in the background until it is done, or until the VM does not run any more.
    fn go_on_copying(&self, vm: &Arc<Vm>) {
        let mut copies = lock(&self.substrates.independence.0);
        if copies.contains_key(&vm.id) {
            return;
        }
        copies.insert(vm.id, Copying::default());
        drop(copies);
        let (host, vm) = (self.handle(), vm.clone());
        tokio::spawn(async move {
            loop {
                let next = {
                    let Some(host) = host.upgrade() else { return };
                    let next = host.copy_below(&vm).await;
                    if matches!(next, Next::Done) {
                        lock(&host.substrates.independence.0).remove(&vm.id);
                    }
                    next
                };
                match next {
                    Next::Done => return,
                    Next::Again(later) => tokio::time::sleep(later).await,
                }
            }
        });
    }

    /// One attempt.
    async fn copy_below(&self, vm: &Arc<Vm>) -> Next {
        let mut turn = vm.turn().await;
        if self.parts.registry().get(vm.id).is_none() || vm.running().is_err() {
            return Next::Done;
        }
        // Shells that wait for a fork lie over the slice as it is.
        if let Some(next) = turn.take::<Generation>() {
            self.snapshots.discard(vm, next).await;
        }
        let called_off = AtomicBool::new(false);
        let give_up = async {
            tokio::select! {
                () = vm.wanted() => {}
                () = tokio::time::sleep(TURN) => {}
            }
            called_off.store(true, Ordering::Relaxed);
        };
        let copied = self.copy_now(vm, give_up.boxed()).await;
        drop(turn);
        match copied {
            Ok(()) => {
                self.keep_warm(vm, Vec::new());
                Next::Done
            }
            Err(_) if called_off.load(Ordering::Relaxed) => Next::Again(SOON),
            Err(error) => {
                tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not independent yet");
                self.note_copy(vm.id, |it| it.problem = Some(error.to_api().message));
                Next::Again(AGAIN)
            }
        }
    }

    async fn copy_now(&self, vm: &Arc<Vm>, give_up: BoxFuture<'_, ()>) -> Result<(), HostError> {
        let body = vm.running()?;
        let record = vm.record();
        let mut below: Vec<PathBuf> = record.chain.iter().skip(1).cloned().collect();
        let alone = below.is_empty() && self.is_independent(&record).await?;
        if !alone {
            below.extend(self.lowest(&record).await?);
            let told = |now: Copied| self.note_copy(vm.id, |it| it.now = now);
            let own = body.machine.own_disk(&below, SPEED, &told, give_up);
            own.await?;
        }
        let active = record.chain.first().cloned().unwrap_or_default();
        blocking(move || settled(&active)).await?;
        vm.change(&self.parts.store, |record| {
            record.chain.truncate(1);
            record.disk_image = None;
        })?;
        let unused = self.parts.registry().part(vm.id);
        self.parts.remove_files(&unused);
        for folder in unused.iter().filter_map(|slice| slice.parent()) {
            // That of a relative that is gone goes with its last slice.
            let _ = std::fs::remove_dir(folder);
        }
        self.parts.store.remove_independence(vm.id)?;
        if let Some(image) = record.disk_image {
            self.snapshots.retire(image).await;
        }
        tracing::info!(vm = %vm.name(), "its disk depends on nothing");
        Ok(())
    }

    /// The file below all slices of a disk, if there is one.
    async fn lowest(&self, record: &VmRecord) -> Result<Option<PathBuf>, HostError> {
        if let Some(image) = record.disk_image {
            return Ok(Some(self.parts.folders.page_image(image)));
        }
        let Some(bottom) = record.chain.last().cloned() else {
            return Ok(None);
        };
        blocking(move || forkyard_host::backing_of(&bottom).map_err(HostError::io("read", &bottom)))
            .await
    }

    fn note_copy(&self, vm: VmId, note: impl FnOnce(&mut Copying)) {
        if let Some(copying) = lock(&self.substrates.independence.0).get_mut(&vm) {
            note(copying);
        }
    }
}

/// Makes sure that a slice lies over nothing, and that the disk of the host has it so: then
/// what it lay over may go.
fn settled(slice: &Path) -> Result<(), HostError> {
    File::open(slice)
        .and_then(|file| file.sync_all())
        .map_err(HostError::io("write", slice))?;
    match forkyard_host::backing_of(slice).map_err(HostError::io("read", slice))? {
        None => Ok(()),
        Some(over) => Err(HostError::Broken(format!(
            "{} lies over {} still",
            slice.display(),
            over.display()
        ))),
    }
}
