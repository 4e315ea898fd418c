//! VMs that ended by themselves and are started again.
//!
//! ```text
//! running --ends by itself--> stopped, due in 1, 2, 4 … 60 s --boots--> running
//!    ^                           ^  `-----does not boot----'               |
//!    `--- ran for a minute: counted anew --------------------------------'
//! ```
//!
//! `next` decides and reads no clock. What is due is recorded: a daemon that dies meanwhile, or with
//! its host, leaves it to the next one. A VM that a user stops, starts or removes is due no more.

use crate::{Host, HostError, again::Ended};
use forkyard_types::{Restart, Restarts, Terms, VmState, VmView};
use forkyard_vm::{Vm, lock};
use std::{error::Error, sync::Arc};

/// Seconds before the first start, and before any.
const FIRST: u64 = 1;
const LONGEST: u64 = 60;
/// Seconds after which a VM has run well.
const WELL: u64 = 60;
/// VMs that boot at once because they are due.
pub(crate) const AT_ONCE: usize = 2;

/// The end of a VM that no user wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Power-off by the guest.
    PoweredOff,
    /// Failure, also of a boot.
    Failed,
    /// No daemon saw it: its host went down, most likely.
    Unseen,
}

impl Cause {
    /// Cause of an end, if no user wanted it and its guest does not restart.
    pub fn of(ended: &Ended) -> Option<Self> {
        match ended {
            Ended::PoweredOff => Some(Self::PoweredOff),
            Ended::Failed(_) => Some(Self::Failed),
            Ended::Well | Ended::Restarts => None,
        }
    }
}

/// Decides when a VM that has ended is started again.
fn next(policy: Restart, cause: Cause, before: Restarts, now: u64) -> Restarts {
    let ran_well = before.begun > 0 && now.saturating_sub(before.begun) >= WELL;
    let tried = if ran_well { 0 } else { before.tried };
    let wanted = match (policy, cause) {
        (Restart::No, _) | (Restart::OnFailure { .. }, Cause::PoweredOff) => false,
        (Restart::Always, _) => true,
        (Restart::OnFailure { most }, Cause::Failed | Cause::Unseen) => {
            most.is_none_or(|most| tried < most.get())
        }
    };
    let wait = match cause {
        Cause::Unseen => 0,
        Cause::PoweredOff | Cause::Failed => {
            let doubled = 1_u64.checked_shl(tried.into()).unwrap_or(u64::MAX);
            FIRST.saturating_mul(doubled).min(LONGEST)
        }
    };
    Restarts {
        tried: if wanted {
            tried.saturating_add(1)
        } else {
            tried
        },
        due: wanted.then(|| now.saturating_add(wait)),
        begun: 0,
    }
}

/// Terms of a VM whose end no daemon saw.
pub(crate) fn unseen(terms: Terms, now: u64) -> Terms {
    Terms {
        restarts: next(terms.restart, Cause::Unseen, terms.restarts, now),
        ..terms
    }
}

impl Host {
    /// Says whether a VM is started again when it has ended by itself, instead of what was said before. Starts in a row
    /// are counted anew; one that is due is not made any more if the VM is to stay down.
    pub fn set_restart(&self, vm: &str, restart: Restart) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        if restart != Restart::No && !vm.is_founder() {
            return Err(HostError::Invalid(format!(
                "{} is a clone: only VMs that booted are started again",
                vm.name()
            )));
        }
        self.put_terms(&vm, |terms| {
            terms.restart = restart;
            let due = terms.restarts.due.filter(|_| restart != Restart::No);
            terms.restarts = Restarts {
                tried: 0,
                due,
                begun: terms.restarts.begun,
            };
        })?;
        Ok(self.view_of(&vm))
    }

    /// Notes when a VM that ended by itself is started again, if it is.
    pub(crate) fn plan_restart(&self, vm: &Vm, cause: Cause) {
        if lock(&vm.terms).restart == Restart::No {
            return;
        }
        self.note_terms(vm, |terms| {
            terms.restarts = next(terms.restart, cause, terms.restarts, crate::now());
        });
        match lock(&vm.terms).restarts.due {
            Some(due) => tracing::info!(vm = %vm.name(), ?cause, due, "it is started again"),
            None => tracing::info!(vm = %vm.name(), ?cause, "it is not started again"),
        }
    }

    /// Takes a VM off those that are started again, for a user has decided otherwise, and counts anew
    /// from here on; true if it was one of them.
    pub(crate) fn forget_restart(&self, vm: &Vm) -> bool {
        let restarts = lock(&vm.terms).restarts;
        if restarts != Restarts::default() {
            self.note_terms(vm, |terms| terms.restarts = Restarts::default());
        }
        restarts.due.is_some()
    }

    /// Starts a VM that is due, unless that has changed while its turn was waited for.
    pub(crate) async fn start_in_time(&self, vm: &Arc<Vm>) {
        let _turn = vm.turn().await;
        let is_there = self.parts.registry().get(vm.id).is_some() && !vm.forks.is_closed();
        let due = lock(&vm.terms).restarts.due.is_some();
        if !is_there || !due || vm.record().state != VmState::Stopped || vm.is_running() {
            return;
        }
        match self.boot_again(vm).await {
            Ok(()) => self.note_terms(vm, |terms| {
                terms.restarts.due = None;
                terms.restarts.begun = crate::now();
            }),
            // A VM that can never boot again is not tried for ever.
            Err(HostError::NoBoot { .. }) => drop(self.forget_restart(vm)),
            Err(error) => {
                tracing::warn!(vm = %vm.name(), error = &error as &dyn Error, "not started again");
                self.plan_restart(vm, Cause::Failed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_failure(most: u16) -> Restart {
        format!("on-failure:{most}").parse().expect("a way")
    }

    #[test]
    fn it_depends_on_the_end_whether_a_vm_is_started_again() {
        let none = Restarts::default();
        let is_due = |policy, cause| next(policy, cause, none, 100).due;
        for cause in [Cause::PoweredOff, Cause::Failed, Cause::Unseen] {
            assert_eq!(is_due(Restart::No, cause), None);
            assert!(is_due(Restart::Always, cause).is_some());
        }
        let on_failure = Restart::OnFailure { most: None };
        assert_eq!(is_due(on_failure, Cause::PoweredOff), None);
        assert_eq!(is_due(on_failure, Cause::Failed), Some(101));
        assert_eq!(is_due(on_failure, Cause::Unseen), Some(100), "at once");
        assert_eq!(Cause::of(&Ended::Well), None, "a user wanted it");
    }

    #[test]
    fn each_start_is_later_than_the_one_before_and_none_later_than_a_minute() {
        let mut state = Restarts::default();
        let mut now = 1000;
        let mut waits = Vec::new();
        for _ in 0..70 {
            state = next(Restart::Always, Cause::Failed, state, now);
            let due = state.due.expect("always");
            waits.push(due - now);
            // It starts, and fails after five seconds.
            state.begun = due;
            now = due + 5;
        }
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits[69], 60);
    }

    #[test]
    fn a_vm_that_ran_well_is_counted_anew_and_one_that_never_does_is_given_up() {
        let fails = |mut state: Restarts, ran: u64, times: u32| {
            for _ in 0..times {
                state = next(on_failure(3), Cause::Failed, state, 1000 + ran);
                if state.due.is_some() {
                    state.begun = 1000;
                }
            }
            state
        };
        let none = Restarts::default();
        assert!(fails(none, 5, 3).due.is_some());
        assert_eq!(fails(none, 5, 4).due, None);
        assert!(fails(none, WELL, 20).due.is_some());
        // Boots that fail count as well.
        let tried = (0..3).fold(none, |state, _| {
            next(on_failure(3), Cause::Failed, state, 0)
        });
        assert_eq!(next(on_failure(3), Cause::Failed, tried, 0).due, None);
    }
}
