//! Self-boosted co-scheduling (Wang, chapter 4).
//!
//! Problem: siblings in different queues still wait for each other if one is at
//! the front of its queue and the other at the end of its own. Gangs cure that
//! and interrupt all for it. Terms (§4.3.3, §4.4.2): a vCPU's *scheduling
//! ordinate* is how many are before it in its queue; the *distance* of two
//! siblings is the difference of their ordinates; the *threshold* is α times
//! the length of the queue. Rule (algorithms 1 and 2): when a CPU is about to
//! run its front `a`, and a sibling `b` that waits elsewhere is a threshold or
//! more away, then
//!
//! 1. the successor of `a` runs instead;
//! 2. `a` lends vruntime to `b`: its own grows by δ at once, so that it falls
//!    back, and `b` is to have δ less;
//! 3. that is written into the *debt* list of `b`'s CPU, which pays it before
//!    it chooses next: no CPU ever writes into another's queue, so that one lock
//!    at a time is enough (§4.4.4);
//! 4. both are *dirty* until it is paid, and a dirty one neither yields nor is
//!    lent to: none yields twice in a round, so none starves.
//!
//! Siblings are kept on different CPUs by [`Balance`](crate::parts::Balance).
//! Constant: α = 2/3. The paper lends "a certain amount": here δ is what takes
//! `a` just behind its successor or `b` to the middle of its queue, whichever
//! is more, but not more than a bound of one latency of the queue's rule. What
//! is lent is conserved: the sum over siblings does not change once debts are
//! paid.

use crate::{
    parts::{Hook, Rule},
    queues::{QueuePlace, Queues},
    units::{CpuId, Nanos, VcpuId},
    world::World,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SbcoKnobs {
    /// α in hundredths of a per cent; 2/3 is 6667.
    pub alpha: u32,
    /// The most vruntime one lends at a time.
    pub most: Nanos,
}

impl Default for SbcoKnobs {
    fn default() -> Self {
        Self {
            alpha: 6_667,
            most: Nanos::millis(24),
        }
    }
}

/// Time that one vCPU is to be given of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Debt {
    lender: VcpuId,
    to: VcpuId,
    amount: i64,
}

/// The hook.
#[derive(Clone, Debug)]
pub struct Sbco {
    knobs: SbcoKnobs,
    debts: Vec<Vec<Debt>>,
    dirty: BTreeSet<VcpuId>,
}

impl Sbco {
    /// For so many CPUs.
    pub fn new(knobs: SbcoKnobs, cpus: usize) -> Self {
        Self {
            knobs,
            debts: vec![Vec::new(); cpus],
            dirty: BTreeSet::new(),
        }
    }

    /// Tells whether a distance is over the threshold of a queue so long.
    fn far(&self, distance: usize, length: usize) -> bool {
        // 6667 is a little more than 2/3: by a ten-thousandth it may be less.
        distance > 0 && distance * 10_000 + length >= self.knobs.alpha as usize * length
    }

    /// Vruntime from one place in a queue to another, and a little more.
    fn gap(queues: &Queues, cpu: CpuId, from: usize, to: usize) -> i64 {
        let at = |rank| queues.tree(cpu).select(rank).map(|(key, _)| key.major);
        match (at(from), at(to)) {
            (Some(from), Some(to)) => (to - from).abs() + 1,
            (None, _) | (_, None) => 0,
        }
    }
}

impl Hook for Sbco {
    fn before(&mut self, _: &World, queues: &mut Queues, rule: &mut dyn Rule, cpu: CpuId) {
        for debt in std::mem::take(&mut self.debts[cpu.at()]) {
            // One that has gone elsewhere since has its time with it: it is the same
            // amount there.
            rule.shift(debt.to, -debt.amount);
            if let Some(key) = queues.key(debt.to) {
                queues.replace(debt.to, QueuePlace::at(key.major - debt.amount));
            }
            self.dirty.remove(&debt.lender);
            self.dirty.remove(&debt.to);
        }
    }

    fn choose(
        &mut self,
        world: &World,
        queues: &mut Queues,
        rule: &mut dyn Rule,
        cpu: CpuId,
        front: VcpuId,
    ) -> VcpuId {
        if self.dirty.contains(&front) {
            return front;
        }
        let Some((successor_key, successor)) = queues.tree(cpu).select(1) else {
            return front;
        };
        let length = queues.tree(cpu).len();
        let far = world.siblings(front).find_map(|sibling| {
            let home = queues.home(sibling).filter(|&home| home != cpu)?;
            let ordinate = queues.ordinate(sibling)?;
            let clean = !self.dirty.contains(&sibling);
            (clean && self.far(ordinate, length)).then_some((sibling, home, ordinate))
        });
        let (Some((sibling, home, ordinate)), Some(key)) = (far, queues.key(front)) else {
            return front;
        };
        let behind = successor_key.major - key.major + 1;
        let ahead = Self::gap(queues, home, ordinate, ordinate / 2);
        let most = self.knobs.most.signed();
        let amount = behind.max(ahead).min(most);
        rule.shift(front, amount);
        queues.replace(front, QueuePlace::at(key.major + amount));
        self.debts[home.at()].push(Debt {
            lender: front,
            to: sibling,
            amount,
        });
        self.dirty.extend([front, sibling]);
        successor
    }

    fn forget(&mut self, vcpu: VcpuId) {
        for debt in self.debts.iter_mut().flatten() {
            if debt.lender == vcpu || debt.to == vcpu {
                self.dirty.remove(&debt.lender);
                self.dirty.remove(&debt.to);
            }
        }
        for debts in &mut self.debts {
            debts.retain(|debt| debt.to != vcpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CpuSet, Params, State,
        parts::EnqueueReason,
        queues::QueueLayout,
        rules::{Cfs, CfsKnobs},
    };
    use proptest::prelude::*;

    /// Two CPUs, a VM with a vCPU on each, and others between.
    struct Bench {
        world: World,
        queues: Queues,
        rule: Cfs,
        sbco: Sbco,
    }

    impl Bench {
        /// Others by their CPU and how long they have run, in ms; the siblings
        /// come first and have run for `times`.
        fn new(times: [u64; 2], others: &[(u32, u64)]) -> Self {
            let mut bench = Self {
                world: World::new([1.0, 1.0]),
                queues: Queues::new(QueueLayout::PerCpu, 2, 0),
                rule: Cfs::new(CfsKnobs::default()),
                sbco: Sbco::new(SbcoKnobs::default(), 2),
            };
            let vm = bench.world.add_domain(Params::default());
            for (cpu, ran) in [0, 1].into_iter().zip(times) {
                bench.add(vm, CpuId(cpu), ran);
            }
            for &(cpu, ran) in others {
                let other = bench.world.add_domain(Params::default());
                bench.add(other, CpuId(cpu), ran);
            }
            bench
        }

        fn add(&mut self, domain: crate::DomainId, cpu: CpuId, ran: u64) {
            let vcpu = self.world.add_vcpu(domain, CpuSet::ALL);
            self.rule.init(&self.world, vcpu);
            self.world.set_state(vcpu, State::Waiting);
            self.rule.shift(vcpu, Nanos::millis(ran).signed());
            let tree = self.queues.tree(cpu);
            let place = self
                .rule
                .enter(&self.world, tree, cpu, vcpu, EnqueueReason::Ran);
            self.queues.put(vcpu, cpu, place);
        }

        fn choose(&mut self, cpu: CpuId) -> (VcpuId, VcpuId) {
            self.sbco
                .before(&self.world, &mut self.queues, &mut self.rule, cpu);
            let (_, front) = self.queues.tree(cpu).first().expect("not empty");
            let chosen =
                self.sbco
                    .choose(&self.world, &mut self.queues, &mut self.rule, cpu, front);
            (front, chosen)
        }

        fn total(&self) -> i64 {
            let all = [CpuId(0), CpuId(1)].map(|cpu| {
                let keys = self.queues.tree(cpu).iter().map(|(key, _)| key.major);
                keys.sum::<i64>()
            });
            all.iter().sum()
        }
    }

    #[test]
    fn the_front_yields_to_its_successor_when_a_sibling_is_far() {
        // v1 has two before it in a queue of three: 2 is 2/3 of 3.
        let mut bench = Bench::new([0, 9], &[(0, 4), (0, 6), (1, 1), (1, 2)]);
        let before = bench.total();
        let (front, chosen) = bench.choose(CpuId(0));
        assert_eq!((front, chosen), (VcpuId(0), VcpuId(2)));
        assert!(bench.queues.ordinate(VcpuId(0)) > Some(0));
        // The other queue is not written to until its own CPU chooses.
        assert_eq!(bench.queues.ordinate(VcpuId(1)), Some(2));
        assert!(bench.total() > before);
        bench.choose(CpuId(1));
        assert!(bench.queues.ordinate(VcpuId(1)) < Some(2));
        assert_eq!(bench.total(), before, "what is lent is conserved");
    }

    #[test]
    fn a_sibling_that_is_near_changes_nothing() {
        let mut bench = Bench::new([0, 1], &[(0, 4), (0, 6), (1, 0), (1, 2)]);
        let (front, chosen) = bench.choose(CpuId(0));
        assert_eq!(front, chosen);
    }

    #[test]
    fn strangers_are_never_held_back() {
        let mut bench = Bench::new([5, 9], &[(0, 4), (0, 6), (1, 1), (1, 2)]);
        let (front, chosen) = bench.choose(CpuId(0));
        assert_eq!((front, chosen), (VcpuId(2), VcpuId(2)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn nobody_yields_twice_in_a_round_and_debts_are_paid(
            times in any::<[u8; 2]>(),
            others in prop::collection::vec((0u32..2, 0u64..256), 2..12),
            rounds in 1usize..6,
        ) {
            let mut bench = Bench::new(times.map(u64::from), &others);
            let before = bench.total();
            for cpu in [CpuId(0), CpuId(1)] {
                if bench.queues.tree(cpu).is_empty() {
                    continue;
                }
                let mut yields = 0;
                // The other CPU pays no debts meanwhile: it is one round.
                for _ in 0..rounds {
                    let (front, chosen) = bench.choose(cpu);
                    yields += usize::from(front != chosen);
                }
                prop_assert!(yields <= 1, "{yields} on {cpu}");
            }
            for cpu in [CpuId(0), CpuId(1)] {
                bench.sbco.before(&bench.world, &mut bench.queues, &mut bench.rule, cpu);
            }
            prop_assert_eq!(bench.total(), before);
            prop_assert!(bench.sbco.dirty.is_empty());
            prop_assert!(bench.sbco.debts.iter().all(Vec::is_empty));
        }
    }
}
