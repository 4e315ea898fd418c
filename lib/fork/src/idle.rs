//! VMs that are not used: they sleep, or end.
//!
//! ```text
//! used --no use for a time--> asleep (paused or stopped) --next use--> used
//!                    `------> removed, or kept as a checkpoint
//! ```
//!
//! `Quiet` decides and reads no clock; a task of the host looks, every second or less often, and
//! carries out. A use is counted before anything else of it is done, and a VM is marked as asleep
//! before it is put to sleep: of a use that comes at that moment either the host knows before, and
//! lets the VM run, or the use sees the mark and wakes it. What fails leaves the VM running and used
//! just now. The mark is recorded, the time without use is not: it begins anew with each daemon.

use crate::{Host, HostError};
use forkyard_types::{AtEnd, Idle, Lifetime, VmId, VmState, VmView};
use forkyard_vm::{Used, Vm, VmError, address, lock};
use futures::future::join_all;
use std::{collections::BTreeMap, error::Error, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// Shortest and longest time between two looks at a VM.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(30);
/// Looks within the time after which a VM is idle, if that is long enough.
const LOOKS: u32 = 8;
/// Part of one processor, in thousandths, above which a guest is at work.
const BUSY: u128 = 100;
/// Time that a guest has to tell of its sessions.
const TO_TELL: Duration = Duration::from_secs(5);

/// One look at a VM.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Uses that have ever begun.
    begun: u64,
    /// True if a use, a session or a fork is under way.
    under_way: bool,
    /// Processor time of its machine so far, in microseconds.
    cpu_us: u64,
    /// Time since a connection to one of its published ports last brought something.
    led: Option<Duration>,
}

/// Time for which a VM has not been used.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    since: Instant,
    seen_at: Instant,
    seen: Look,
}

impl Quiet {
    /// One that is used now.
    fn new(look: Look, now: Instant) -> Self {
        Self {
            since: now,
            seen_at: now,
            seen: look,
        }
    }

    /// Takes in what a look saw.
    fn see(&mut self, look: Look, now: Instant) {
        let passed = now.saturating_duration_since(self.seen_at).as_micros();
        let worked = u128::from(look.cpu_us.saturating_sub(self.seen.cpu_us));
        let is_busy = worked * 1000 > BUSY * passed;
        if look.under_way || look.begun != self.seen.begun || is_busy {
            self.since = now;
        } else if let Some(ago) = look.led {
            // Not now: time without use is counted from then.
            self.since = self.since.max(now.checked_sub(ago).unwrap_or(now));
        }
        (self.seen_at, self.seen) = (now, look);
    }

    /// True if it has not been used for so long.
    fn is_over(&self, after: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= after
    }

    /// Returns the time of the next look.
    fn look_at(&self, after: Duration) -> Instant {
        let next = self.seen_at + (after / LOOKS).clamp(OFTEN, SELDOM);
        // Not later than its time is up, and not at once.
        next.min((self.since + after).max(self.seen_at + OFTEN))
    }
}

impl Host {
    /// Says what becomes of a VM that is not used for a time, instead of what was said before; none:
    /// it runs on. Its time begins now.
    pub fn set_idle(&self, vm: &str, idle: Option<Idle>) -> Result<VmView, HostError> {
        if let Some(idle) = idle {
            check_idle(idle)?;
        }
        let vm = self.vm(vm)?;
        if idle.is_some() && vm.life().shown() == VmState::Checkpoint {
            return Err(HostError::Invalid(
                "it is a checkpoint, which is never in use: give it a time with `keepalive --ttl`"
                    .into(),
            ));
        }
        drop(vm.uses.begin());
        self.put_terms(&vm, |terms| terms.idle = idle)?;
        Ok(self.view_of(&vm))
    }

    /// Finds a VM for a use: counted for as long as what is returned, or what it begins, is held. A VM
    /// that sleeps is woken. Cancel-safe: it wakes all the same.
    pub async fn use_vm(&self, vm: &str) -> Result<Used, HostError> {
        let vm = self.vm(vm)?;
        let in_use = self.used(&vm).await?;
        Ok(Used::new(vm, in_use, self.parts.options.patience))
    }

    /// Counts a use of a VM for as long as what is returned is held, and wakes the VM if it sleeps.
    /// Cancel-safe: it wakes all the same.
    pub(crate) async fn used(&self, vm: &Arc<Vm>) -> Result<forkyard_vm::InUse, HostError> {
        let in_use = vm.uses.begin();
        if lock(&vm.terms).asleep {
            let (host, vm) = (self.handle(), vm.clone());
            let woken = tokio::spawn(async move {
                match host.upgrade() {
                    Some(host) => host.rouse(&vm).await,
                    None => Ok(()),
                }
            });
            woken
                .await
                .map_err(|error| HostError::given_up("the VM could not be woken", &error))??;
        }
        Ok(in_use)
    }

    /// Wakes a VM that sleeps. Not cancel-safe.
    async fn rouse(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        let _one = vm.sleep.lock().await;
        if !lock(&vm.terms).asleep {
            return Ok(());
        }
        let began = Instant::now();
        if vm.is_paused() {
            vm.unpause(&self.parts.store).await?;
        } else if !vm.is_running() {
            let _turn = vm.turn().await;
            // It may have been removed while its turn was waited for.
            if self.parts.registry().get(vm.id).is_none() {
                let name = vm.name().to_string();
                return Err(HostError::Vm(VmError::Unknown { name }));
            }
            self.boot_again(vm).await?;
        }
        self.put_terms(vm, |terms| terms.asleep = false)?;
        tracing::info!(vm = %vm.name(), took_ms = began.elapsed().as_millis(), "woken by a use");
        Ok(())
    }

    /// Has a VM count as one that its user has put where it is: a use wakes it no more.
    pub(crate) fn is_where_wanted(&self, vm: &Vm) {
        if lock(&vm.terms).asleep {
            self.note_terms(vm, |terms| terms.asleep = false);
        }
    }

    /// Looks after VMs that are not used, from now on.
    pub(crate) fn watch_idle(&self) {
        let host = self.handle();
        tokio::spawn(async move {
            let mut known: BTreeMap<VmId, Quiet> = BTreeMap::new();
            loop {
                sleep(OFTEN).await;
                let Some(this) = host.upgrade() else { return };
                this.look_after(&mut known).await;
            }
        });
    }

    async fn look_after(&self, known: &mut BTreeMap<VmId, Quiet>) {
        let mut vms = Vec::new();
        for vm in self.parts.registry().all() {
            let idle = lock(&vm.terms).idle;
            let runs = vm.life().shown() == VmState::Running && vm.silence().is_none();
            if let Some(idle) = idle.filter(|_| runs) {
                vms.push((vm, idle));
            }
        }
        known.retain(|id, _| vms.iter().any(|(vm, _)| vm.id == *id));
        let now = Instant::now();
        vms.retain(|(vm, idle)| {
            let quiet = known.get(&vm.id);
            quiet.is_none_or(|quiet| quiet.look_at(after(*idle)) <= now)
        });
        let led = self.led_to(vms.iter().map(|(vm, _)| vm)).await;
        let looks = join_all(vms.iter().map(|(vm, _)| look(vm, &led))).await;
        for ((vm, idle), look) in vms.into_iter().zip(looks) {
            let now = Instant::now();
            let quiet = known.entry(vm.id);
            let quiet = quiet.or_insert_with(|| Quiet::new(look, now));
            quiet.see(look, now);
            if !quiet.is_over(after(idle), now) {
                continue;
            }
            // If that fails it is tried again after as long.
            quiet.since = now;
            let host = self.handle();
            tokio::spawn(async move {
                if let Some(host) = host.upgrade() {
                    host.leave_idle(&vm, idle.action, look.begun).await;
                }
            });
        }
    }

    /// Times since connections to published ports of these VMs brought something.
    async fn led_to(
        &self,
        mut vms: impl Iterator<Item = &Arc<Vm>>,
    ) -> BTreeMap<Ipv4Addr, Duration> {
        if vms.all(|vm| vm.record().publish.is_empty()) {
            return BTreeMap::new();
        }
        self.parts.network.led().await.unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn Error,
                "connections to published ports are not seen"
            );
            BTreeMap::new()
        })
    }

    /// Does with a VM that has not been used what was said, unless it is used by now.
    async fn leave_idle(&self, vm: &Arc<Vm>, action: AtEnd, begun: u64) {
        let name = vm.name();
        tracing::info!(vm = %name, ?action, "it is not used");
        let outcome = match action {
            _ if vm.uses.begun() != begun => Ok(()),
            AtEnd::Rm => self.remove(vm.id.as_str()).await.map(drop),
            AtEnd::Checkpoint => self.turn_into_checkpoint(vm).await,
            AtEnd::Pause | AtEnd::Stop => self.fall_asleep(vm, action, begun).await,
        };
        if let Err(error) = outcome {
            tracing::warn!(vm = %name, error = &error as &dyn Error, "it is not used and runs on; tried again");
        }
    }

    async fn fall_asleep(&self, vm: &Arc<Vm>, action: AtEnd, begun: u64) -> Result<(), HostError> {
        let _one = vm.sleep.lock().await;
        // A clone that has stopped can never be woken.
        let wakes = action == AtEnd::Pause || vm.is_founder();
        self.put_terms(vm, |terms| terms.asleep = wakes)?;
        let slept = match (vm.uses.begun() == begun, action) {
            (false, _) => Ok(false),
            (true, AtEnd::Stop) => self.power_off(vm).await.map(|()| true),
            (true, AtEnd::Pause | AtEnd::Rm | AtEnd::Checkpoint) => {
                self.pause_vm(vm).await.map(|()| true)
            }
        };
        if !matches!(slept, Ok(true)) {
            self.put_terms(vm, |terms| terms.asleep = false)?;
        }
        slept.map(drop)
    }
}

/// Looks at a VM. One that is in use already is asked nothing.
async fn look(vm: &Arc<Vm>, led: &BTreeMap<Ipv4Addr, Duration>) -> Look {
    let begun = vm.uses.begun();
    let body = vm.running().ok();
    let pid = body.map(|body| body.machine.record().process.pid);
    let cpu_us = pid.map(crate::usage::cpu_us).unwrap_or_default();
    let is_forked = vm.try_turn().is_none();
    let is_moving = vm.is_moving();
    let under_way = vm.uses.are_under_way() || is_forked || is_moving || has_sessions(vm).await;
    Look {
        begun,
        under_way,
        cpu_us,
        led: led.get(&address(vm.network, &vm.record()).ip).copied(),
    }
}

/// True if a command that the guest keeps has not ended, or the guest does not say.
async fn has_sessions(vm: &Arc<Vm>) -> bool {
    let Ok(body) = vm.answering() else {
        return true;
    };
    match timeout(TO_TELL, forkyard_vm::listed(&body.guest)).await {
        Ok(Ok(commands)) => commands.iter().any(|command| command.exit.is_none()),
        Ok(Err(_)) | Err(_) => true,
    }
}

fn after(idle: Idle) -> Duration {
    Duration::from_secs(idle.after_s.into())
}

/// Refuses a time that makes no sense.
pub(crate) fn check_idle(idle: Idle) -> Result<(), HostError> {
    match (1..=Lifetime::MOST_S).contains(&idle.after_s) {
        true => Ok(()),
        false => Err(HostError::Invalid(format!(
            "idle after {} s: wanted 1 to {}",
            idle.after_s,
            Lifetime::MOST_S
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn quiet_at(begun: u64, cpu_us: u64) -> Look {
        Look {
            begun,
            under_way: false,
            cpu_us,
            led: None,
        }
    }

    #[test]
    fn what_a_published_port_brought_counts_from_when_it_came() {
        let start = Instant::now();
        let mut quiet = Quiet::new(quiet_at(0, 0), start);
        let look = Look {
            led: Some(3 * SECOND),
            ..quiet_at(0, 0)
        };
        quiet.see(look, start + 8 * SECOND);
        assert!(!quiet.is_over(5 * SECOND, start + 9 * SECOND));
        assert!(quiet.is_over(5 * SECOND, start + 10 * SECOND));
        // An older one takes nothing back.
        let older = Look {
            led: Some(9 * SECOND),
            ..look
        };
        quiet.see(older, start + 9 * SECOND);
        assert!(!quiet.is_over(5 * SECOND, start + 9 * SECOND));
    }

    #[test]
    fn a_vm_is_idle_once_nothing_has_been_under_way_for_so_long() {
        let start = Instant::now();
        let mut quiet = Quiet::new(quiet_at(0, 0), start);
        for second in 1..=5 {
            quiet.see(quiet_at(0, 0), start + SECOND * second);
        }
        assert!(!quiet.is_over(SECOND * 6, start + SECOND * 5));
        assert!(quiet.is_over(SECOND * 6, start + SECOND * 6));
        // A session that goes on.
        let under_way = Look {
            under_way: true,
            ..quiet_at(0, 0)
        };
        quiet.see(under_way, start + SECOND * 6);
        assert!(!quiet.is_over(SECOND * 6, start + SECOND * 11));
    }

    #[test]
    fn a_use_that_began_and_ended_between_two_looks_counts() {
        let start = Instant::now();
        let mut quiet = Quiet::new(quiet_at(3, 0), start);
        quiet.see(quiet_at(4, 0), start + SECOND * 9);
        assert!(!quiet.is_over(SECOND * 10, start + SECOND * 12));
        quiet.see(quiet_at(4, 0), start + SECOND * 12);
        assert!(quiet.is_over(SECOND * 10, start + SECOND * 19));
    }

    #[test]
    fn a_guest_that_computes_is_in_use_and_one_that_idles_is_not() {
        let start = Instant::now();
        // A twentieth of a processor: what an emulated kernel takes that has nothing to do.
        let mut quiet = Quiet::new(quiet_at(0, 0), start);
        for second in 1..=10 {
            quiet.see(
                quiet_at(0, u64::from(second) * 50_000),
                start + SECOND * second,
            );
        }
        assert!(quiet.is_over(SECOND * 10, start + SECOND * 10));
        quiet.see(quiet_at(0, 500_000 + 200_000), start + SECOND * 11);
        assert!(!quiet.is_over(SECOND * 10, start + SECOND * 12));
    }

    #[test]
    fn looks_are_often_enough_and_never_without_pause() {
        let start = Instant::now();
        let mut quiet = Quiet::new(quiet_at(0, 0), start);
        assert_eq!(quiet.look_at(SECOND), start + OFTEN);
        assert_eq!(quiet.look_at(SECOND * 80), start + SECOND * 10);
        assert_eq!(quiet.look_at(SECOND * 86400), start + SELDOM);
        quiet.see(quiet_at(0, 0), start + SECOND * 75);
        assert_eq!(quiet.look_at(SECOND * 80), start + SECOND * 80);
        quiet.see(quiet_at(0, 0), start + SECOND * 80);
        assert_eq!(quiet.look_at(SECOND * 80), start + SECOND * 81);
    }
}
