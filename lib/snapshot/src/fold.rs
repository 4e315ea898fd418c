//! Keeping disks shallow. Each fork leaves a frozen slice behind, so that a
//! chain would grow with every fork of a VM and with every generation of clones.
//!
//! ```text
//! active <- own <- own <- own <- relative's <- relative's <- founder's
//!           `----down---->'
//! `<-----------------up------------------------'
//! ```
//!
//! **Down**: slices of a VM's own that its clones needed and that have no other
//! user any more are written into the lowest of them. **Up**: in a chain that is deep
//! all the same, what its upper slices hold is copied into the active one, which nothing
//! else has: they may be shared and stay as they are for those that need them. The
//! slice at the bottom has all that was written before the first fork, and
//! stays where it is.

use crate::{Generation, SnapshotError, Snapshots};
use forkyard_disk::set_access;
use forkyard_types::ByteCount;
use forkyard_vm::{RunningVm, Turn, Vm};
use futures::FutureExt as _;
use std::{future::pending, path::PathBuf, sync::Arc};

/// Own slices that are worth the trouble together.
const WORTH: usize = 4;
/// From so many frozen slices on, relatives' are copied, too.
const DEEP: usize = 6;
/// With more than so many a fork waits until there are fewer.
const DEEPEST: usize = 8;
/// More is not copied: it would hardly be done before the next fork, which ends it.
const MOST: ByteCount = ByteCount(64 << 20);
/// Of what others need as well: it takes its room twice.
const MOST_SHARED: ByteCount = ByteCount(16 << 20);

/// A slice that is not written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrozenSlice {
    /// The VM's QEMU may write to it.
    own: bool,
    /// No other VM has it in its chain.
    alone: bool,
    bytes: ByteCount,
}

/// Ways to make a chain shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many go into the one below.
    Down(usize),
    /// So many are copied into the active one.
    Up(usize),
}

/// The next step for a chain's frozen slices, the upper ones first.
fn step(frozen: &[FrozenSlice]) -> Option<Step> {
    let own = frozen.iter().take_while(|slice| slice.own && slice.alone);
    let upper = own.count().saturating_sub(1);
    if upper + 1 >= WORTH && sum(&frozen[..upper]) <= MOST {
        return Some(Step::Down(upper));
    }
    if frozen.len() < DEEP {
        return None;
    }
    let fits = |count: &usize| {
        let shared: Vec<_> = frozen[..*count]
            .iter()
            .filter(|it| !it.alone)
            .copied()
            .collect();
        sum(&frozen[..*count]) <= MOST && sum(&shared) <= MOST_SHARED
    };
    // One alone leaves the chain as long as it was at the next fork.
    let up = (2..frozen.len()).rev().find(fits);
    up.map(Step::Up)
}

fn sum(slices: &[FrozenSlice]) -> ByteCount {
    ByteCount(slices.iter().map(|slice| slice.bytes.0).sum())
}

impl Snapshots {
    /// Sees to a VM's disk when there is time, on a task of its own.
    pub fn tidy(&self, vm: &Arc<Vm>) {
        let (snapshots, vm) = (self.handle(), vm.clone());
        tokio::spawn(async move {
            let Some(snapshots) = snapshots.upgrade() else {
                return;
            };
            let turn = vm.turn().await;
            if let Ok(body) = vm.running() {
                snapshots.fold_slices(&vm, &body, &turn).await;
            }
        });
    }

    /// Folds what can be folded, in the turn of the caller, until a request
    /// wants to fork the VM. Not cancel-safe: the record would stay behind the machine.
    pub async fn fold_slices(&self, vm: &Vm, body: &RunningVm, turn: &Turn<'_>) {
        // What the next fork will use has been made over the disk as it is.
        if turn.left::<Generation>().is_some() {
            return;
        }
        if let Err(error) = self.fold_now(vm, body, vm.wanted()).await {
            match vm.is_wanted() {
                true => tracing::debug!(vm = %vm.name(), "not folded now: it is to be forked"),
                false => stays_deep(vm, &error),
            }
        }
    }

    /// Folds before a fork, to the end, but only if the disk is so deep that
    /// all later forks would suffer from it.
    pub(crate) async fn fold_deepest(&self, vm: &Vm, body: &RunningVm) {
        if vm.record().chain.len() > DEEPEST
            && let Err(error) = self.fold_now(vm, body, pending()).await
        {
            stays_deep(vm, &error);
        }
    }

    async fn fold_now(
        &self,
        vm: &Vm,
        body: &RunningVm,
        give_up: impl Future<Output = ()> + Send,
    ) -> Result<(), SnapshotError> {
        let own = self.parts.folders.disks(vm.id);
        let slices = self.parts.registry().frozen(vm.id);
        let frozen = slices.iter().map(|(slice, users)| {
            Ok::<_, SnapshotError>(FrozenSlice {
                own: slice.starts_with(&own),
                alone: *users == 1,
                bytes: forkyard_host::allocated(slice)?,
            })
        });
        let frozen = frozen.collect::<Result<Vec<_>, _>>()?;
        let Some(step) = step(&frozen) else {
            return Ok(());
        };
        let (Step::Down(count) | Step::Up(count)) = step;
        let paths: Vec<PathBuf> = slices.into_iter().map(|(slice, _)| slice).collect();
        let Some((upper, [base, ..])) = paths.split_at_checked(count) else {
            return Ok(());
        };
        match step {
            Step::Down(_) => {
                // Its own, and nothing of another VM's lies over it.
                set_access(base, self.parts.access(&vm.record())?)?;
                let folded = body.machine.fold_disk(upper, base, give_up.boxed()).await;
                self.parts.seal_frozen(&vm.record());
                folded?;
            }
            Step::Up(_) => body.machine.lift_disk(upper, base, give_up.boxed()).await?,
        }
        vm.change(&self.parts.store, |record| {
            record.chain.retain(|slice| !upper.contains(slice));
        })?;
        let unused = self.parts.registry().shorten(vm.id, base);
        self.parts.remove_files(&unused);
        for folder in unused.iter().filter_map(|slice| slice.parent()) {
            // That of a relative that is gone goes with its last slice.
            let _ = std::fs::remove_dir(folder);
        }
        tracing::debug!(vm = %vm.name(), ?step, bytes = sum(&frozen[..count]).0, "folded");
        Ok(())
    }
}

fn stays_deep(vm: &Vm, error: &SnapshotError) {
    tracing::warn!(vm = %vm.name(), error = error as &dyn std::error::Error, "disk stays deep");
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn slice(own: bool, alone: bool, mib: u64) -> FrozenSlice {
        let bytes = ByteCount(mib * MIB);
        FrozenSlice { own, alone, bytes }
    }

    #[test]
    fn what_a_vm_has_alone_goes_down_as_soon_as_it_is_worth_it() {
        let alone = slice(true, true, 1);
        let shared = slice(true, false, 1);
        assert_eq!(step(&[alone; 3]), None);
        assert_eq!(step(&[alone; 4]), Some(Step::Down(3)));
        assert_eq!(step(&[alone, alone, alone, shared, alone]), None);
        let large = slice(true, true, 33);
        assert_eq!(step(&[large, large, alone, alone]), None);
        // But the lowest of them is not copied.
        assert_eq!(step(&[alone, large, alone, large]), Some(Step::Down(3)));
    }

    #[test]
    fn what_relatives_have_goes_up_once_the_chain_is_deep() {
        let shared = slice(false, false, 1);
        assert_eq!(step(&[shared; DEEP - 1]), None);
        assert_eq!(step(&[shared; DEEP]), Some(Step::Up(DEEP - 1)));
        let bequeathed = slice(false, true, 10);
        assert_eq!(step(&[bequeathed; DEEP]), Some(Step::Up(DEEP - 1)));
        // As many as are cheap, and the bottom never.
        let large = slice(false, false, 7);
        assert_eq!(step(&[large; DEEP]), Some(Step::Up(2)));
        let huge = slice(false, false, 70);
        assert_eq!(step(&[huge; DEEP]), None);
        assert_eq!(
            step(&[shared, shared, shared, huge, shared, shared]),
            Some(Step::Up(3))
        );
    }
}
