//! VMs that sleep are woken by what comes to their published ports.
//!
//! The kernel passes such packets on without the daemon, so they are looked for: the counter of a family's
//! bridge says that the host has sent something into its network, and only then the rules are asked for
//! which addresses that was. The packet itself waits in the VM's tap until the VM runs. Looks begin while a VM
//! that may sleep is still awake, so that what comes as it falls asleep is seen, too.

use crate::{Host, HostError};
use forkyard_types::FamilyId;
use forkyard_vm::{Vm, address, lock};
use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Time between two looks, and at least between two of those that ask the rules.
const LOOK: Duration = Duration::from_millis(100);
const ASK: Duration = Duration::from_millis(200);
/// Age, in whole seconds that are rounded up, of what has come since the look before.
const NEW: Duration = Duration::from_secs(1);

/// Packets that had been sent into each family's network at the last look.
#[derive(Debug, Default)]
struct Heard(BTreeMap<FamilyId, u64>);

impl Heard {
    /// Takes in counters; true if one of a family of `asleep` has grown.
    fn grew(
        &mut self,
        mut asleep: impl Iterator<Item = FamilyId>,
        now: BTreeMap<FamilyId, u64>,
    ) -> bool {
        let is_grown = asleep.any(|family| {
            let (before, count) = (self.0.get(&family), now.get(&family));
            before
                .zip(count)
                .is_some_and(|(before, count)| count > before)
        });
        self.0 = now;
        is_grown
    }
}

impl Host {
    /// Wakes VMs that sleep once something comes to a published port of theirs, from now on.
    pub(crate) fn watch_ports(&self) {
        let host = self.handle();
        tokio::spawn(async move {
            let (mut heard, mut due) = (Heard::default(), false);
            let mut asked = Instant::now();
            loop {
                sleep(LOOK).await;
                let Some(this) = host.upgrade() else { return };
                let mut asleep = this.with_ports_that_sleep();
                if asleep.is_empty() {
                    (heard, due) = (Heard::default(), false);
                    continue;
                }
                asleep.retain(|vm| lock(&vm.terms).asleep);
                match forkyard_network::packets_in() {
                    Ok(counts) => {
                        let families = asleep.iter().map(|vm| vm.record().family);
                        due |= heard.grew(families, counts);
                    }
                    Err(error) => tracing::warn!(
                        error = &error as &dyn Error,
                        "ports of VMs that sleep are not seen"
                    ),
                }
                if due && asked.elapsed() >= ASK {
                    (asked, due) = (Instant::now(), false);
                    if let Err(error) = this.wake_the_called(asleep).await {
                        tracing::warn!(
                            error = &error as &dyn Error,
                            "ports of VMs that sleep are not seen"
                        );
                    }
                }
            }
        });
    }

    /// VMs that are paused while they are not used, or may be, and have published ports.
    fn with_ports_that_sleep(&self) -> Vec<Arc<Vm>> {
        let mut vms = self.parts.registry().all();
        vms.retain(|vm| {
            let sleeps = {
                let terms = lock(&vm.terms);
                terms.asleep || terms.idle.is_some()
            };
            // Nothing is led to one that has stopped.
            sleeps && vm.is_running() && !vm.record().publish.is_empty()
        });
        vms
    }

    async fn wake_the_called(&self, asleep: Vec<Arc<Vm>>) -> Result<(), HostError> {
        let led = self.parts.network.led().await?;
        for vm in asleep {
            let ip = address(vm.network, &vm.record()).ip;
            if led.get(&ip).is_none_or(|age| *age > NEW) {
                continue;
            }
            let host = self.handle();
            tokio::spawn(async move {
                let Some(host) = host.upgrade() else { return };
                if let Err(error) = host.used(&vm).await {
                    tracing::warn!(vm = %vm.name(), error = &error as &dyn Error, "called at a port, and not woken");
                }
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_one_that_sleeps_is_heard_once_something_came_after_the_look_before() {
        let (one, other) = (FamilyId::random(), FamilyId::random());
        let counts = |first, second| BTreeMap::from([(one, first), (other, second)]);
        let mut heard = Heard::default();
        assert!(!heard.grew([one].into_iter(), counts(5, 5)), "the first");
        assert!(!heard.grew([one].into_iter(), counts(5, 6)), "another's");
        assert!(heard.grew([one].into_iter(), counts(6, 6)));
        assert!(!heard.grew([one].into_iter(), counts(6, 6)));
        assert!(!heard.grew([].into_iter(), counts(7, 7)), "awake");
        // It came as the VM fell asleep.
        assert!(heard.grew([one].into_iter(), counts(8, 7)));
    }
}
