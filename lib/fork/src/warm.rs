//! Warm shells: how many are kept for a VM's next fork, and when they are made and ended.
//!
//! Generations serve one fork each, and are made and taken apart by [`forkyard_snapshot`]. Shells that no
//! clone became are ended with theirs: their disk lies over the instant that has passed.

use crate::{Host, HostError};
use forkyard_snapshot::{AT_ONCE, Generation, WarmShell};
use forkyard_vm::{RunningVm, Vm};
use futures::{StreamExt, future, stream};
use std::{num::NonZero, sync::Arc};

/// Shells started or ended at once when no fork waits for it: half of the
/// processors, for the VM that has just forked runs on the others.
fn at_leisure() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (processors / 2).clamp(1, AT_ONCE)
}

impl Host {
    /// Returns the generation of the parent's next fork, made if there is none. Not cancel-safe.
    pub(crate) async fn generation(
        &self,
        parent: &Vm,
        body: &RunningVm,
        next: Option<Generation>,
    ) -> Result<Generation, HostError> {
        if let Some(generation) = next {
            return Ok(generation);
        }
        // What is taken next lies over what it came from.
        self.bring_home(parent).await?;
        Ok(self.snapshots.prepare(parent, body).await?)
    }

    /// Keeps as many shells warm as are wanted, a few at a time: a fork asked for
    /// meanwhile need not wait for all of them. Before that it ends those that are
    /// of no more use.
    pub(crate) fn keep_warm(&self, parent: &Arc<Vm>, spare: Vec<WarmShell>) {
        let (host, parent) = (self.handle(), parent.clone());
        tokio::spawn(async move {
            let Some(host) = host.upgrade() else { return };
            // A QEMU that ends gives back all its memory at once: many of them would leave the
            // parent no processor.
            let ends = stream::iter(spare).map(|shell| host.snapshots.end_shells(vec![shell]));
            ends.buffer_unordered(at_leisure())
                .for_each(future::ready)
                .await;
            loop {
                let mut turn = parent.turn().await;
                let want = host.shells_wanted(&parent);
                let Ok(body) = parent.running() else { return };
                let have = turn
                    .left::<Generation>()
                    .map_or(0, |generation| generation.shells.len());
                if have >= want {
                    return;
                }
                host.snapshots.fold_slices(&parent, &body, &turn).await;
                let failed = match host
                    .generation(&parent, &body, turn.take::<Generation>())
                    .await
                {
                    Ok(mut generation) => {
                        let failed = host
                            .snapshots
                            .fill(&parent, &mut generation, want.min(have + at_leisure()))
                            .await;
                        turn.leave(generation);
                        failed.into_iter().next().map(HostError::from)
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = failed {
                    // The fork itself will try again and report to its caller.
                    tracing::warn!(vm = %parent.name(), error = &error as &dyn std::error::Error, "no warm shell");
                    return;
                }
            }
        });
    }

    /// As many as the VM's owner wants, or as a ticket promises. Those for tickets
    /// are bounded as clones are: a ticket holds their places in the family.
    fn shells_wanted(&self, parent: &Vm) -> usize {
        let promised = self.tickets(|tickets| tickets.promised_to(parent.id));
        promised.max(parent.record().warm.into())
    }

    /// Ends the shells that are not wanted any more, now that a ticket is gone.
    /// Once this returns, they are.
    pub(crate) async fn trim_shells(&self, parent: &Vm) {
        let mut turn = parent.turn().await;
        let want = self.shells_wanted(parent);
        match turn.take::<Generation>() {
            Some(generation) if want == 0 => self.snapshots.discard(parent, generation).await,
            Some(mut generation) => {
                let kept = want.min(generation.shells.len());
                let spare = generation.shells.split_off(kept);
                turn.leave(generation);
                self.snapshots.end_shells(spare).await;
            }
            None => {}
        }
    }
}
