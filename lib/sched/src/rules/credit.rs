//! Credit, Xen's default of that time (Gutierrez §2.2.5).
//!
//! Problem: shares by weight and limits by cap, for domains, over all CPUs.
//! Terms: a vCPU earns *credits* by its domain's weight every accounting period
//! and spends them while it runs; it is *under* its share while it has any and
//! *over* it when it has none; it is *boosted* when it wakes while under. Rule:
//! queues are FIFO within boosted before under before over; a CPU whose front
//! is over takes one that is under from elsewhere. A domain with a cap earns no
//! more than that, and when its credits are gone its vCPUs are parked until they
//! earn some. Constants: slice and accounting period 30 ms, tick 10 ms, 10
//! credits a millisecond; here a credit is a nanosecond of CPU.
//!
//! Unlike Xen's, time is charged as it was used and not to the one that runs at a tick,
//! what one domain cannot use is dealt out to the others in the same period,
//! credits are kept up to two slices' worth, and a capped vCPU's slice ends with
//! its credits: caps hold to within a slice. A period that ends late is dealt out
//! as long as it was: else all would be over their shares before long, and equal.

use super::slot;
use crate::{
    parts::{EnqueueReason, Rekey, Rule},
    queues::QueuePlace,
    tree::{QueueKey, Tree},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::{State, World},
};

/// Slice, and accounting period.
const SLICE: Nanos = Nanos::millis(30);
/// The most that is dealt out at once: time in which none ticked belongs to none.
const LONGEST: Nanos = Nanos::millis(120);

const BOOST: i64 = 0;
const UNDER: i64 = 1;
const OVER: i64 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Purse {
    credit: i64,
    boosted: bool,
    /// Time it had had at the last accounting.
    had: Nanos,
}

/// The rule.
#[derive(Clone, Debug, Default)]
pub struct Credit {
    purses: Vec<Purse>,
    next: Nanos,
    /// Time at which credits were last dealt out.
    dealt: Option<Nanos>,
}

impl Credit {
    fn purse(&self, vcpu: VcpuId) -> Purse {
        self.purses.get(vcpu.at()).copied().unwrap_or_default()
    }

    fn priority(&self, vcpu: VcpuId) -> i64 {
        match self.purse(vcpu) {
            Purse { boosted: true, .. } => BOOST,
            Purse { credit, .. } if credit > 0 => UNDER,
            Purse { .. } => OVER,
        }
    }

    /// Deals out a period of all CPUs.
    fn account(&mut self, world: &World) {
        let since = self.dealt.replace(world.now);
        let period = since.map_or(SLICE, |then| world.now.minus(then).min(LONGEST));
        let mut active: Vec<(DomainId, Vec<VcpuId>, i64)> = Vec::new();
        for (id, domain) in world.domains() {
            let awake = |vcpu: &VcpuId| {
                world[*vcpu].state() != State::Asleep || world.ran(*vcpu) > self.purse(*vcpu).had
            };
            let vcpus: Vec<_> = domain.vcpus.iter().copied().filter(awake).collect();
            if vcpus.is_empty() {
                continue;
            }
            let each = period.scale(u64::try_from(vcpus.len()).unwrap_or(1), 1);
            let cap = domain
                .params
                .cap
                .map_or(Nanos::FOREVER, |cap| period.scale(cap.into(), 100));
            active.push((id, vcpus, each.min(cap).signed()));
        }
        let cpus = u64::try_from(world.width()).unwrap_or(1);
        let shares = deal(world, &active, period.scale(cpus, 1).signed());
        for ((_, vcpus, _), share) in active.iter().zip(shares) {
            let heads = i64::try_from(vcpus.len()).unwrap_or(1);
            for &vcpu in vcpus {
                let purse = slot(&mut self.purses, vcpu);
                // One that saves more than two slices does not need them; one is not
                // enough, for one that waits for another's slice earns meanwhile.
                let most = 2 * SLICE.signed();
                let capped = world.params(vcpu).cap.is_some();
                purse.credit = (purse.credit + share / heads).min(most);
                if !capped {
                    purse.credit = purse.credit.max(-SLICE.signed());
                }
                purse.had = world.ran(vcpu);
            }
        }
    }
}

/// Divides `all` by weight, none getting more than it can use.
fn deal(world: &World, to: &[(DomainId, Vec<VcpuId>, i64)], all: i64) -> Vec<i64> {
    let mut got = vec![0i64; to.len()];
    let mut left = all;
    loop {
        let wants: Vec<_> = (0..to.len()).filter(|&n| got[n] < to[n].2).collect();
        let weight = |n: usize| i64::from(world[to[n].0].params.weight);
        let weights: i64 = wants.iter().map(|&n| weight(n)).sum();
        if wants.is_empty() || left < weights {
            return got;
        }
        let round = left;
        let mut full = false;
        for n in wants {
            let fair =
                i64::try_from(i128::from(round) * i128::from(weight(n)) / i128::from(weights));
            let room = to[n].2 - got[n];
            let part = fair.unwrap_or(room).min(room);
            full |= part == room;
            got[n] += part;
            left -= part;
        }
        if !full {
            return got;
        }
    }
}

impl Rule for Credit {
    fn init(&mut self, _: &World, vcpu: VcpuId) {
        *slot(&mut self.purses, vcpu) = Purse::default();
    }

    fn enter(
        &mut self,
        world: &World,
        _: &Tree,
        _: CpuId,
        vcpu: VcpuId,
        why: EnqueueReason,
    ) -> QueuePlace {
        let purse = slot(&mut self.purses, vcpu);
        match why {
            EnqueueReason::Woke => purse.boosted = purse.credit > 0,
            EnqueueReason::Ran => purse.boosted = false,
            EnqueueReason::Moved | EnqueueReason::Due | EnqueueReason::Rekeyed => {}
        }
        if purse.credit <= 0 && world.params(vcpu).cap.is_some() {
            // Accounts are kept at ticks: a moment later it is known.
            return QueuePlace::Parked(self.next.max(world.now + Nanos::micros(1)));
        }
        QueuePlace::at(self.priority(vcpu))
    }

    fn charge(&mut self, _: &World, _: &Tree, _: CpuId, vcpu: VcpuId, ran: Nanos) {
        let purse = slot(&mut self.purses, vcpu);
        purse.credit -= ran.signed();
        purse.boosted = false;
    }

    fn slice(&mut self, world: &World, _: &Tree, _: CpuId, vcpu: VcpuId) -> Nanos {
        match world.params(vcpu).cap {
            Some(_) => {
                let left = u64::try_from(self.purse(vcpu).credit).unwrap_or(0);
                SLICE.min(Nanos(left))
            }
            None => SLICE,
        }
    }

    fn preempts(&self, _: &World, woken: VcpuId, running: VcpuId) -> bool {
        self.priority(woken) < self.priority(running)
    }

    fn standing(&self, _: &World, vcpu: VcpuId) -> i64 {
        self.priority(vcpu)
    }

    fn tick(&mut self, world: &World, _: CpuId) -> Rekey {
        if world.now < self.next {
            return Rekey::None;
        }
        self.next = world.now + SLICE;
        self.account(world);
        Rekey::All
    }

    fn covets(&self, mine: Option<QueueKey>, theirs: QueueKey) -> bool {
        match mine {
            None => true,
            Some(mine) => mine.major == OVER && theirs.major < OVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuSet, Params};

    #[test]
    fn a_late_period_is_dealt_out_as_long_as_it_was() {
        let mut world = World::new([1.0]);
        let mut rule = Credit::default();
        let vcpus = [1, 3].map(|times| {
            let domain = world.add_domain(Params {
                weight: 256 * times,
                ..Params::default()
            });
            let vcpu = world.add_vcpu(domain, CpuSet::ALL);
            world.set_state(vcpu, State::Waiting);
            rule.init(&world, vcpu);
            vcpu
        });
        let mut credits = |ms| {
            world.now = Nanos::millis(ms);
            let cpu = world.cpus().next().expect("one");
            rule.tick(&world, cpu);
            vcpus.map(|vcpu| rule.purse(vcpu).credit)
        };
        let micros = |us: [i64; 2]| us.map(|us| us * 1_000);
        assert_eq!(credits(0), micros([7_500, 22_500]));
        assert_eq!(credits(29), micros([7_500, 22_500]), "not due");
        assert_eq!(credits(44), micros([18_500, 55_500]));
    }
}
