//! A VM that booted and boots again, from its own disk, under its name and address.
//!
//! ```text
//! running --its guest restarts--> stopped --boots--> running
//!    `-------stop, or its end-------^ `--start-------^
//! ```
//!
//! While it boots it is recorded as stopped. So a boot that fails leaves it stopped,
//! with the reason, and a daemon that dies midway a QEMU that the next one ends.
//!
//! A clone has no boot of its own: its memory began with its parent's instant, and
//! what it had there is gone with its QEMU.

use crate::{Host, HostError};
use forkyard_network::Ports;
use forkyard_types::{Epoch, Member, NetworkPolicy, VmState, VmView};
use forkyard_vm::{Life, RunningVm, Vm, VmError, lock};
use forkyard_vmm::{Cause, console};
use std::{path::Path, sync::Arc, time::Duration};

/// Words on the console of a kernel that was told to restart.
const RESTARTS: &str = "reboot: Restarting system";
/// Words of a kernel that gives up, and restarts a second later.
const PANICS: &str = "Kernel panic - not syncing";
/// Bytes of a former life's console by which the end of that life is found again.
const FORMER: usize = 4 << 10;
/// Time in which the last console output of a VM that ended may still arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);
const CLONE: &str = "a clone cannot boot again: its memory began with its parent's instant";

/// Ways in which a running VM can end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As a user wanted.
    Well,
    /// By its guest, which powered off.
    PoweredOff,
    /// The guest restarts, and the VM can be started again.
    Restarts,
    /// Unrequested, or in another way than its guest did.
    Failed(String),
}

impl Host {
    /// Boots a VM that has stopped, and waits until its agent answers. No error if
    /// it runs. Not cancel-safe: run it on a task of its own.
    pub async fn start(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        let asleep = lock(&vm.terms).asleep;
        if asleep && vm.is_paused() {
            vm.unpause(&self.parts.store).await?;
        }
        let turn = vm.turn().await;
        // It may have been removed while its turn was waited for.
        if self.parts.registry().get(vm.id).is_none() {
            let name = vm.name().to_string();
            return Err(HostError::Vm(VmError::Unknown { name }));
        }
        if vm.is_paused() {
            return Err(HostError::Vm(VmError::Paused { vm: vm.name() }));
        }
        if !vm.is_running() {
            self.boot_again(&vm).await?;
        }
        self.forget_restart(&vm);
        drop(vm.uses.begin());
        self.is_where_wanted(&vm);
        drop(turn);
        self.keep_warm(&vm, Vec::new());
        Ok(self.view_of(&vm))
    }

    /// Boots a VM that has stopped; its turn is the caller's. If that fails it is
    /// stopped as before, and why is noted.
    pub(crate) async fn boot_again(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        let state = vm.record().state;
        if state != VmState::Stopped {
            return Err(HostError::NotStopped {
                vm: vm.name(),
                state,
            });
        }
        if !vm.is_founder() {
            return Err(HostError::NoBoot { vm: vm.name() });
        }
        vm.pass(Life::Starting {
            body: None,
            again: true,
        });
        let booted = self.try_to_boot(vm).await;
        if booted.is_ok() {
            self.resume_independence_of(vm);
        }
        if let Err(error) = &booted {
            drop(vm.take_running());
            self.undo_boot(vm).await;
            vm.pass(Life::Stopped);
            self.note_failure(
                vm,
                format!("it did not boot again: {}", error.to_api().message),
            );
        }
        booted
    }

    async fn try_to_boot(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        vm.change(&self.parts.store, |record| {
            record.epoch = Epoch::random();
            record.failure = None;
            record.notes = Vec::new();
        })?;
        let record = vm.record();
        let (kernel, initramfs) = self.parts.bases().kernel(record.kernel.clone()).await?;
        self.parts.make_folders(record.id)?;
        let networks = self.parts.store.networks()?;
        let policy = networks
            .into_iter()
            .find_map(|(family, policy)| (family.id == record.family).then_some(policy))
            .unwrap_or_default();
        // Another machine may have taken an address meanwhile.
        let ports = self.parts.network.take_new_ports(&record.publish).await?;
        let (founds, (own, joined)) = match record.member {
            Member(0) => (record.publish.clone(), (ports, None)),
            _ => (Vec::new(), (Ports::default(), Some(ports))),
        };
        let policy = NetworkPolicy {
            publish: founds,
            ..policy
        };
        self.parts
            .network
            .publish_again(record.family, vm.network, &policy, own)
            .await?;
        if let Some(ports) = joined {
            self.publish_joined(&record, vm.network, ports).await?;
        }
        self.try_to_sync_overlay(record.family).await;
        // The port of its former life.
        self.parts.network.forget(record.id).await?;
        self.power_on(vm, kernel, initramfs).await
    }

    /// Removes what runs of a VM that did not come up, or that a daemon left which
    /// died while it booted.
    pub(crate) async fn undo_boot(&self, vm: &Vm) {
        let record = vm.record();
        self.snapshots.discard_process(&record).await;
        let cleared = self
            .parts
            .engine
            .clear(record.id, &self.console_of(vm))
            .await;
        if let Err(error) = cleared {
            tracing::warn!(vm = %record.name, error = &error as &dyn std::error::Error, "not removed");
        }
        self.end_running(vm).await;
        if let Err(error) = vm.change(&self.parts.store, |record| record.machine = None) {
            tracing::error!(vm = %record.name, error = &error as &dyn std::error::Error, "not recorded");
        }
    }

    /// Tells how a VM whose QEMU has ended, and that is still known, came to
    /// its end.
    pub(crate) async fn how_it_ended(&self, vm: &Vm, cause: Cause) -> Ended {
        let body = match vm.running() {
            Ok(body) if !body.is_stopping() => body,
            // As was asked for here, however that went.
            Ok(_) | Err(_) => return Ended::Well,
        };
        let said = match cause {
            Cause::PoweredOff | Cause::Told => String::new(),
            Cause::Reset | Cause::Unknown => self.all_it_said(vm, &body).await,
        };
        ended(cause, vm.is_founder(), &said)
    }

    /// Returns what a VM whose QEMU has ended said in that life, as far as it is kept.
    async fn all_it_said(&self, vm: &Vm, body: &RunningVm) -> String {
        let all_heard = async {
            if let Ok(mut words) = body.machine.console().follow().await {
                while words.next().await.is_some() {}
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, all_heard).await;
        let said = console::kept(&self.console_of(vm)).unwrap_or_default();
        String::from_utf8_lossy(since(&said, body.former_words())).into_owned()
    }

    pub(crate) fn console_of(&self, vm: &Vm) -> std::path::PathBuf {
        self.parts.folders.sockets(vm.id)
    }
}

/// Judges an unrequested end by what the guest said in that life. A guest that is reset
/// without a word (by SysRq, say) restarts; one whose kernel gave up would most likely do so again.
fn ended(cause: Cause, founder: bool, said: &str) -> Ended {
    let panicked = said.rfind(PANICS) > said.rfind(RESTARTS);
    let announced = !panicked && said.contains(RESTARTS);
    match (cause, founder) {
        (Cause::PoweredOff, _) => Ended::PoweredOff,
        (Cause::Told, _) => Ended::Well,
        (Cause::Reset, _) if panicked => {
            let why = said.lines().rfind(|line| line.contains(PANICS));
            let said = why.unwrap_or_default().trim();
            Ended::Failed(format!("its guest's kernel gave up: {said}"))
        }
        (Cause::Unknown, _) if !announced => {
            Ended::Failed("its QEMU was killed, or failed".to_owned())
        }
        (Cause::Reset | Cause::Unknown, true) => Ended::Restarts,
        (Cause::Reset | Cause::Unknown, false) => {
            Ended::Failed(format!("its guest restarted, and {CLONE}"))
        }
    }
}

/// Returns what a guest has said since its console ended with these words; all of it, if they are
/// kept no more.
fn since<'a>(said: &'a [u8], former: &[u8]) -> &'a [u8] {
    if former.is_empty() {
        return said;
    }
    let found = said.windows(former.len()).rposition(|it| it == former);
    found.map_or(said, |at| &said[at + former.len()..])
}

/// Returns the last words of a former life on a console. Blocks for a read of at most 1 MiB.
pub(crate) fn former_words(folder: &Path) -> Vec<u8> {
    let said = console::kept(folder).unwrap_or_default();
    said[said.len().saturating_sub(FORMER)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANIC: &str = "x\nKernel panic - not syncing: Attempted to kill init!\n\
        ---[ end Kernel panic ]---\nRebooting in 1 seconds..\n";
    const RESTART: &str = "bye\n[   19.2] reboot: Restarting system\n";

    #[test]
    fn a_reset_is_a_restart_unless_the_kernel_gave_up_in_that_life() {
        let gave_up = |ended| matches!(ended, Ended::Failed(why) if why.ends_with("kill init!"));
        assert_eq!(ended(Cause::Reset, true, RESTART), Ended::Restarts);
        assert_eq!(ended(Cause::Reset, true, ""), Ended::Restarts);
        let both = PANIC.to_owned() + RESTART;
        assert_eq!(ended(Cause::Reset, true, &both), Ended::Restarts);
        assert!(gave_up(ended(Cause::Reset, true, PANIC)));
        let both = RESTART.to_owned() + PANIC;
        assert!(gave_up(ended(Cause::Reset, true, &both)));
        let clone = ended(Cause::Reset, false, RESTART);
        assert!(matches!(clone, Ended::Failed(why) if why.contains("a clone cannot boot")));
    }

    #[test]
    fn an_end_that_was_not_seen_is_a_restart_only_if_one_was_announced() {
        let killed = |ended| matches!(ended, Ended::Failed(why) if why.contains("was killed"));
        assert_eq!(ended(Cause::Unknown, true, RESTART), Ended::Restarts);
        assert!(killed(ended(Cause::Unknown, true, "")));
        assert!(killed(ended(Cause::Unknown, true, PANIC)));
    }

    #[test]
    fn a_life_begins_after_the_last_words_of_the_former_one_however_much_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(former_words(folder.path()), b"");
        let former = PANIC.repeat(200).into_bytes();
        let former_end = &former[former.len() - FORMER..];
        let mut said = former.clone();
        assert_eq!(since(&said, former_end), b"");
        said.extend(b"new");
        assert_eq!(since(&said, former_end), b"new");
        assert_eq!(since(b"all of it is new", former_end), b"all of it is new");
        assert_eq!(since(b"all", b""), b"all");
    }
}
