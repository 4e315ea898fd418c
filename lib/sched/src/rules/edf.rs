//! Earliest deadline first: SEDF and Atropos.
//!
//! Problem: so much time in every period, whatever the others do. Terms: each
//! vCPU has a *reservation* of a slice in every period; its *deadline* is the
//! end of its present period; what it has not used of the slice is *left*. Rule:
//! of those with time left the earliest deadline runs, among equals the one that
//! must start first, and a new period of another ends its slice; whose time is
//! used up gets no more in that period but unreserved time, in quanta of
//! 10 ms, if it may have *extra* time. vCPUs stay on the CPU they were first
//! given, the one least reserved, where the sum of the reservations decides what
//! can be kept: up to 1, every vCPU that always wants to run gets its slice in
//! every period (Liu and Layland 1973).
//!
//! One that wakes late in its period, with more left than is proportional, begins
//! a new period: else it would take from others what is theirs (the rule of
//! constant-bandwidth servers).
//!
//! - **Atropos** (Gutierrez §2.2.3; Leslie et al. 1996): refuses reservations
//!   beyond 1; extra time is dealt out evenly.
//! - **SEDF** (§2.2.4): takes them all, and where they are beyond 1 every slice
//!   is shortened in proportion, so that it ends in time for the next deadline;
//!   extra time is dealt out by weight.

use super::{slot, virtual_time::weighted};
use crate::{
    params::{CpuReservation, Extra, InvalidParams, Params},
    parts::{EnqueueReason, Rule},
    queues::QueuePlace,
    tree::Tree,
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::World,
};

/// Turn of those that share extra time.
const QUANTUM: Nanos = Nanos::millis(10);
/// Orders those that have only extra time after all deadlines.
const AFTER_ALL: i64 = i64::MAX / 2;
/// A whole CPU, in millionths.
const WHOLE: u64 = 1_000_000;

/// Rule of the two: `atropos` or `sedf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Refuses what it could not keep.
    Atropos,
    /// Shortens what it cannot keep.
    Sedf,
}

/// Account of the time that a vCPU runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Account {
    /// Reserved time.
    #[default]
    Reserved,
    /// Unreserved time.
    Extra,
}

#[derive(Clone, Copy, Debug, Default)]
struct Contract {
    deadline: Nanos,
    left: Nanos,
    extra: i64,
    account: Account,
}

/// The rule.
#[derive(Clone, Debug)]
pub struct Edf {
    flavour: Flavour,
    contracts: Vec<Contract>,
    homes: Vec<Option<CpuId>>,
}

impl Edf {
    /// One of the two.
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            contracts: Vec::new(),
            homes: Vec::new(),
        }
    }

    /// Sums the reservations of a CPU's vCPUs, in millionths.
    fn reserved(&self, world: &World, cpu: CpuId) -> u64 {
        let here = world
            .vcpus()
            .filter(|(vcpu, _)| self.homes.get(vcpu.at()).copied().flatten() == Some(cpu));
        here.filter_map(|(vcpu, _)| Some(world.params(vcpu).reservation?.millionths()))
            .sum()
    }

    /// The slice that can be kept.
    fn kept(&self, world: &World, cpu: CpuId, reservation: CpuReservation) -> Nanos {
        let reserved = self.reserved(world, cpu);
        match self.flavour {
            Flavour::Sedf if reserved > WHOLE => reservation.slice.scale(WHOLE, reserved),
            Flavour::Sedf | Flavour::Atropos => reservation.slice,
        }
    }

    /// Brings a contract up to date: periods that have passed are over.
    fn renew(&mut self, world: &World, cpu: CpuId, vcpu: VcpuId, why: EnqueueReason) {
        let Some(reservation) = world.params(vcpu).reservation else {
            return;
        };
        let kept = self.kept(world, cpu, reservation);
        let period = reservation.period;
        let now = world.now;
        let contract = slot(&mut self.contracts, vcpu);
        let until = contract.deadline.minus(now);
        let greedy = u128::from(contract.left.0) * u128::from(period.0)
            > u128::from(until.0) * u128::from(kept.0);
        if until == Nanos::ZERO && why != EnqueueReason::Woke && contract.deadline > Nanos::ZERO {
            // Periods follow each other without a gap.
            let late = now.minus(contract.deadline).0 / period.0;
            contract.deadline += period.scale(late + 1, 1);
            contract.left = kept;
        } else if until == Nanos::ZERO || (why == EnqueueReason::Woke && greedy) {
            contract.deadline = now + period;
            contract.left = kept;
        }
    }

    fn extra(&self, world: &World, vcpu: VcpuId) -> Extra {
        // One that has nothing reserved has nothing else.
        let reservation = world.params(vcpu).reservation;
        reservation.map_or(Extra::Yes, |reservation| reservation.extra)
    }
}

impl Rule for Edf {
    fn init(&mut self, _: &World, vcpu: VcpuId) {
        *slot(&mut self.contracts, vcpu) = Contract::default();
    }

    fn enter(
        &mut self,
        world: &World,
        queue: &Tree,
        cpu: CpuId,
        vcpu: VcpuId,
        why: EnqueueReason,
    ) -> QueuePlace {
        *slot(&mut self.homes, vcpu) = Some(cpu);
        self.renew(world, cpu, vcpu, why);
        let reserves = world.params(vcpu).reservation.is_some();
        let contract = slot(&mut self.contracts, vcpu);
        if reserves && contract.left > Nanos::ZERO {
            return QueuePlace::Queue {
                major: contract.deadline.signed(),
                minor: contract.deadline.minus(contract.left).signed(),
                until: None,
            };
        }
        let renewal = reserves.then_some(contract.deadline);
        let extra = contract.extra;
        match (self.extra(world, vcpu), renewal) {
            (Extra::No, Some(renewal)) => QueuePlace::Parked(renewal),
            (Extra::Yes | Extra::No, until) => {
                // One that comes anew does not make up for time it did not want.
                let others = queue.iter().filter(|(key, _)| key.major == AFTER_ALL);
                let least = others.map(|(key, _)| key.minor).min();
                let minor = match why {
                    EnqueueReason::Woke => extra.max(least.unwrap_or(extra)),
                    EnqueueReason::Ran
                    | EnqueueReason::Moved
                    | EnqueueReason::Due
                    | EnqueueReason::Rekeyed => extra,
                };
                slot(&mut self.contracts, vcpu).extra = minor;
                QueuePlace::Queue {
                    major: AFTER_ALL,
                    minor,
                    until,
                }
            }
        }
    }

    fn charge(&mut self, world: &World, _: &Tree, _: CpuId, vcpu: VcpuId, ran: Nanos) {
        let weight = match self.flavour {
            Flavour::Sedf => world.params(vcpu).weight,
            Flavour::Atropos => crate::params::USUAL_WEIGHT,
        };
        let contract = slot(&mut self.contracts, vcpu);
        match contract.account {
            Account::Reserved => contract.left = contract.left.minus(ran),
            Account::Extra => contract.extra = contract.extra.saturating_add(weighted(ran, weight)),
        }
    }

    fn slice(&mut self, world: &World, _: &Tree, _: CpuId, vcpu: VcpuId) -> Nanos {
        let reserves = world.params(vcpu).reservation.is_some();
        let now = world.now;
        let contract = slot(&mut self.contracts, vcpu);
        let renewal = match reserves {
            true => contract.deadline.minus(now),
            false => Nanos::FOREVER,
        };
        match reserves && contract.left > Nanos::ZERO {
            true => {
                contract.account = Account::Reserved;
                contract.left.min(renewal)
            }
            false => {
                contract.account = Account::Extra;
                QUANTUM.min(renewal)
            }
        }
    }

    fn preempts(&self, world: &World, woken: VcpuId, running: VcpuId) -> bool {
        self.standing(world, woken) < self.standing(world, running)
    }

    fn standing(&self, world: &World, vcpu: VcpuId) -> i64 {
        let reserves = world.params(vcpu).reservation.is_some();
        match self.contracts.get(vcpu.at()) {
            Some(contract) => {
                let runs = matches!(world[vcpu].state(), crate::world::State::Running(_));
                let on_extra = runs && contract.account == Account::Extra;
                match reserves && contract.left > Nanos::ZERO && !on_extra {
                    true => contract.deadline.signed(),
                    false => AFTER_ALL,
                }
            }
            None => AFTER_ALL,
        }
    }

    fn punctual(&self) -> bool {
        true
    }

    fn admit(
        &self,
        world: &World,
        domain: DomainId,
        params: &Params,
        home: &dyn Fn(VcpuId) -> Option<CpuId>,
    ) -> Result<(), InvalidParams> {
        if self.flavour == Flavour::Sedf {
            return Ok(());
        }
        let millionths = |params: &Params| {
            params
                .reservation
                .map_or(0, |reservation| reservation.millionths())
        };
        for cpu in world.cpus() {
            let here = world.vcpus().filter(|(vcpu, _)| home(*vcpu) == Some(cpu));
            let reserved: u64 = here
                .map(|(vcpu, view)| match view.domain == domain {
                    true => millionths(params),
                    false => millionths(world.params(vcpu)),
                })
                .sum();
            if reserved > WHOLE {
                let per_mille = reserved.div_ceil(1_000);
                return Err(InvalidParams::Overcommitted { cpu, per_mille });
            }
        }
        Ok(())
    }
}
