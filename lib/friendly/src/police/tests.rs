use super::*;
use crate::{Config, Controller, Monitor, Readings};
use fastrand::Rng;
use proptest::prelude::*;
use std::time::Duration;

/// Time slice that a scheduler gives each that would run, by turns.
const SLICE: Duration = Duration::from_millis(4);
/// Samples are taken at this distance, as the command does.
const SAMPLE_S: u32 = 2;
const PERIOD_S: u32 = 5;

fn one(used: f64, waited: f64) -> CpuUse {
    CpuUse {
        used,
        wanted: used + waited,
        weight: 1.0,
    }
}

/// A guest of some CPUs, with threads that want to run, and an agent if it is
/// friendly.
struct Guest {
    cpus: u32,
    threads: u32,
    agent: Option<(Monitor, Controller)>,
}

impl Guest {
    fn friendly(cpus: u32, threads: u32) -> Self {
        let config = Config::default();
        let agent = (
            Monitor::new(config.monitor.clone(), cpus),
            Controller::new(&config, cpus),
        );
        Self {
            cpus,
            threads,
            agent: Some(agent),
        }
    }

    fn greedy(cpus: u32) -> Self {
        Self {
            cpus,
            threads: 50,
            agent: None,
        }
    }

    /// CPUs that it would use now.
    fn wish(&self) -> f64 {
        let (limit, duty) = match &self.agent {
            Some((_, controller)) => {
                let order = controller.order();
                (order.threads, order.duty)
            }
            None => (u32::MAX, 1.0),
        };
        duty * f64::from(self.threads.min(limit).min(self.cpus))
    }

    /// A tick each 10 ms, late by the turns of all others on that CPU, or by some.
    fn period(&mut self, for_each_cpu: f64, dice: &mut Rng) {
        let Some((monitor, controller)) = &mut self.agent else {
            return;
        };
        for _ in 0..50 {
            let turns = (for_each_cpu - 1.0).max(0.0) * dice.f64();
            monitor.ticks(1, Config::default().monitor.tick() + SLICE.mul_f64(turns));
        }
        let report = monitor.close(Readings::default());
        controller.step(report.senses, self.threads);
    }
}

/// The part of its time that each thread gets that would run: as much as any.
fn turn(host: f64, guests: &[Guest]) -> f64 {
    let wanted: f64 = guests.iter().map(Guest::wish).sum();
    (host / wanted.max(f64::MIN_POSITIVE)).min(1.0)
}

struct Soak {
    /// Seconds, and the guests named then.
    named: Vec<(u32, usize)>,
    /// Samples in which guests waited.
    contended: u32,
}

/// So many seconds on a host of so many CPUs that all share fairly, each thread for
/// itself. Friendly guests are busy or idle by chance.
fn soak(host: u32, seconds: u32, guests: &mut [Guest], seed: u64) -> Soak {
    let mut dice = Rng::with_seed(seed);
    let mut police = Police::new(PoliceConfig::default());
    let mut soak = Soak {
        named: Vec::new(),
        contended: 0,
    };
    for second in 0..seconds {
        let wanted: f64 = guests.iter().map(Guest::wish).sum();
        let crowd = wanted / f64::from(host);
        if second % SAMPLE_S == 0 {
            let turn = turn(f64::from(host), guests);
            let usage = |guest: &Guest, dice: &mut Rng| {
                let wanted = guest.wish();
                // Turns do not come out even in so short a time.
                let noise = 0.9 + 0.2 * dice.f64();
                let used = (turn * wanted * noise).min(wanted);
                one(used, wanted - used)
            };
            let all = guests.iter();
            let sample: UseSample<usize> =
                all.map(|one| usage(one, &mut dice)).enumerate().collect();
            soak.contended += u32::from(crowd > 1.2);
            let found = police.sample(&sample);
            soak.named
                .extend(found.into_iter().map(|one| (second, one.guest)));
        }
        if second % PERIOD_S == 0 {
            for guest in guests.iter_mut() {
                guest.period(crowd, &mut dice);
                if guest.agent.is_some() && dice.u32(..20) == 0 {
                    guest.threads = [0, 1, 2, 50][dice.usize(..4)];
                }
            }
        }
    }
    soak
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn friendly_guests_are_never_named(
        seed in any::<u64>(),
        host in 2u32..5,
        guests in prop::collection::vec((1u32..5, 0u32..60), 3..20),
    ) {
        // Else none ever waits.
        prop_assume!(guests.iter().map(|(cpus, _)| cpus).sum::<u32>() > 2 * host);
        let guests = guests.into_iter().map(|(cpus, threads)| Guest::friendly(cpus, threads));
        let soak = soak(host, 20_000, &mut guests.collect::<Vec<_>>(), seed);
        prop_assert_eq!(soak.named, []);
        prop_assert!(soak.contended > 500, "{}", soak.contended);
    }

    /// Against the definition: none has more than it wants, all that there is is
    /// given, and one that wants more than it gets has as much as any, for its weight.
    #[test]
    fn levels_are_max_min_fair(
        guests in prop::collection::vec((0.0..4.0f64, 0.0..1.0f64, 0.5..4.0f64), 1..8),
    ) {
        let all = guests.iter().map(|&(wanted, part, weight)| CpuUse { used: wanted * part, wanted, weight });
        let used: f64 = all.clone().map(|one| one.used).sum();
        let level = level(all.clone());
        let given: f64 = all.map(|one| one.wanted.min(level * one.weight)).sum();
        prop_assert!((given - used).abs() < 1e-9 * (1.0 + used), "{given}, {used}");
    }
}

/// Allows for a while in which others want nothing, when it is not named: so it
/// is a matter of nearly all.
#[test]
fn a_greedy_guest_is_named_alone_and_nearly_always_within_a_minute() {
    const SOAKS: u64 = 300;
    let named_after = (0..SOAKS).map(|seed| {
        let mut dice = Rng::with_seed(seed);
        let count = dice.usize(2..6);
        let friendly = || Guest::friendly(dice.u32(1..5), dice.u32(1..60));
        let mut guests: Vec<Guest> = std::iter::repeat_with(friendly).take(count).collect();
        let greedy = guests.len();
        guests.push(Guest::greedy(4));
        let soak = soak(2, 600, &mut guests, seed);
        assert!(
            soak.named.iter().all(|(_, guest)| *guest == greedy),
            "seed {seed}: {:?}",
            soak.named
        );
        soak.named.first().map_or(u32::MAX, |(second, _)| *second)
    });
    let mut named_after: Vec<_> = named_after.collect();
    named_after.sort_unstable();
    let late = named_after.iter().filter(|after| **after >= 60).count();
    assert!(late <= 3, "late in {late} of {SOAKS}");
    assert_ne!(named_after.last(), Some(&u32::MAX), "never named");
}

/// The host's CPUs are all in use, and none waits for one.
#[test]
fn who_keeps_nobody_waiting_is_not_named() {
    let mut police = Police::new(PoliceConfig::default());
    for _ in 0..1_000 {
        let sample = [
            ("a", one(1.0, 0.0)),
            ("b", one(1.0, 0.0)),
            ("idle", one(0.0, 0.0)),
        ];
        assert_eq!(police.sample(&sample.into()), []);
    }
}

/// Tests a guest that waits for its own threads, or for a process that is no
/// guest.
#[test]
fn who_waits_alone_is_not_named() {
    let mut police = Police::new(PoliceConfig::default());
    for _ in 0..1_000 {
        let sample = [("a", one(1.5, 2.5)), ("b", one(0.5, 0.0))];
        assert_eq!(police.sample(&sample.into()), []);
    }
}

/// Tests a guest that has two threads where others have one, and cannot have
/// one and a half.
#[test]
fn nobody_is_asked_for_less_than_a_thread() {
    let named = |wanted: f64| {
        let mut police = Police::new(PoliceConfig::default());
        let sample = [
            ("a", one(0.4 * wanted, 0.6 * wanted)),
            ("b", one(0.4, 0.6)),
            ("c", one(0.4, 0.6)),
            ("d", one(0.4, 0.6)),
        ];
        let mut found = (0..100).flat_map(|_| police.sample(&sample.into()));
        found.next().map(|found| found.guest)
    };
    assert_eq!([2.0, 4.0].map(named), [None, Some("a")]);
}

#[test]
fn evidence_is_what_was_seen() {
    let mut police = Police::new(PoliceConfig::default());
    let mut found = Vec::new();
    for _ in 0..40 {
        let sample = [("greedy", one(1.5, 2.5)), ("modest", one(0.5, 0.5))];
        found.extend(police.sample(&sample.into()));
    }
    let wanted = Finding {
        guest: "greedy",
        before: 4.0,
        fell_to: 4.0,
        used: 1.5,
        share: 1.0,
        missed: 3,
    };
    assert_eq!(found.first(), Some(&wanted));
    assert!(found.iter().all(|one| one.guest == "greedy"));
}

#[test]
fn a_larger_share_is_no_greed_where_it_is_due() {
    let mut police = Police::new(PoliceConfig::default());
    for _ in 0..100 {
        let large = CpuUse {
            weight: 3.0,
            ..one(1.5, 2.5)
        };
        let sample = [("large", large), ("small", one(0.5, 0.5))];
        assert_eq!(police.sample(&sample.into()), []);
    }
}

#[test]
fn who_is_kept_from_what_it_wants_has_not_answered() {
    let named = |wanted: fn(f64) -> f64| {
        let mut police = Police::new(PoliceConfig::default());
        let mut found = Vec::new();
        for period in 0..80 {
            // Something else takes the host from it every other time.
            let used = [2.0, 1.0][period % 2];
            let greedy = one(used, wanted(used) - used);
            let sample = [("greedy", greedy), ("modest", one(0.2, 0.8))];
            found.extend(police.sample(&sample.into()));
        }
        found.len()
    };
    assert!(named(|_| 3.0) > 1);
    assert_eq!(named(|used| used), 0, "it wants less");
}
