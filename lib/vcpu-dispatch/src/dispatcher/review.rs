//! Periodic review: VMs that have ended, VMs that are better let go, shares and
//! speeds.

use super::{Dispatcher, vm::Vm};
use crate::{
    Step,
    protocol::Level,
    threads::{self, Doing},
};
use forkyard_sched::Nanos;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike},
};

/// Time between judgements: a guest that blocks loses while it is enforced.
const JUDGE: Nanos = Nanos::millis(200);
/// Time between measurements, and what they are of.
const MEASURE: Nanos = Nanos::secs(1);

/// Names after which the old ones are forgotten: each takes some room and time.
const NAMES: usize = 1_000;

/// Times of the next looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reviews {
    judge: Nanos,
    measure: Nanos,
    /// Time at which one waited last.
    waited: Nanos,
}

/// The CPU time this process has taken.
pub(super) fn own() -> Nanos {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Nanos::ZERO, |usage| {
        let micros = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
        Nanos::micros(micros(usage.user_time()) + micros(usage.system_time()))
    })
}

impl Dispatcher {
    /// Does what is due. Says when it is to be called again at the latest.
    pub(super) fn review(&mut self, waits: bool) -> Nanos {
        let now = self.world.now;
        if waits {
            self.reviews.waited = now;
        }
        if self.outnumbered() {
            self.contended();
        }
        if self.reviews.judge <= now {
            self.reviews.judge = now + JUDGE;
            self.bury();
            self.judge();
            if self.named > NAMES {
                self.tidy();
            }
        }
        if self.reviews.measure <= now {
            let period = MEASURE + now.minus(self.reviews.measure);
            self.reviews.measure = now + MEASURE;
            for vm in &mut self.vms {
                vm.measure(&self.world, period);
            }
            let own = own();
            let part = own.minus(self.own.0).as_secs_f64() / period.as_secs_f64();
            self.own = (own, part);
        }
        self.reviews.judge.min(self.reviews.measure)
    }

    /// One may have to wait: a VM that was let go because none did is enforced.
    pub(super) fn contended(&mut self) {
        self.reviews.waited = self.world.now;
        for place in 0..self.vms.len() {
            let before = self.vms[place].now();
            self.vms[place].steps.contended();
            self.follow(place, before);
        }
    }

    /// Tells whether more are awake than there are CPUs, while some are let go
    /// because that was not so.
    fn outnumbered(&self) -> bool {
        let enforced = |vm: &&Vm| vm.level == Level::Enforce;
        let alone = |vm: &Vm| vm.steps.step() == Step::Alone;
        if !self.vms.iter().any(alone) {
            return false;
        }
        let all = { self.vms.iter().filter(enforced) }
            .filter(|vm| !matches!(vm.steps.step(), Step::Down { .. }))
            .flat_map(|vm| &vm.vcpus);
        let awake = all.filter(|vcpu| vcpu.watch.doing() == Doing::Runnable);
        awake.count() > self.cpus.len()
    }

    /// Judges which VMs are better let go, and which no more.
    fn judge(&mut self) {
        let now = self.world.now;
        // A cap holds for one that is alone, too.
        let capped = self.vms.iter().any(|vm| vm.params.cap.is_some());
        for place in 0..self.vms.len() {
            let vm = &mut self.vms[place];
            let before = vm.now();
            let habits = vm.habits(&self.world, JUDGE.scale(1, 2));
            if vm.level == Level::Enforce {
                if let Some(habits) = habits {
                    vm.steps.review(habits, now);
                }
                if !capped {
                    vm.steps.quiet(self.reviews.waited, now);
                }
            }
            self.follow(place, before);
        }
    }

    /// Does what follows if a VM is now enforced and was not before, or the
    /// other way round.
    fn follow(&mut self, place: usize, before: Level) {
        let vm = &self.vms[place];
        if vm.now() == before {
            return;
        }
        tracing::info!(pid = vm.pid, step = ?vm.steps.step(), "steps");
        self.withdraw(place);
        self.enter_again(place);
    }

    /// Gives every vCPU a new name, and forgets the old ones.
    fn tidy(&mut self) {
        match forkyard_sched::build(self.policy, self.cpus.len(), &super::knobs()) {
            Ok(scheduler) => {
                (0..self.vms.len()).for_each(|place| self.withdraw(place));
                self.renew(scheduler);
                (0..self.vms.len()).for_each(|place| self.enter_again(place));
            }
            // It was built once, of the same parts.
            Err(error) => tracing::error!(%error, "old names stay"),
        }
    }

    /// Forgets VMs that have ended.
    fn bury(&mut self) {
        let gone = |vm: &Vm| threads::started(vm.pid).ok() != Some(vm.started);
        while let Some(place) = self.vms.iter().position(gone) {
            self.leave(place);
            self.vms.remove(place);
        }
    }
}
