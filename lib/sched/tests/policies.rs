//! Promises of each policy, held against runs of the simulator on machines that
//! take nothing for themselves.

#![allow(clippy::unwrap_used, reason = "tests")]

use forkyard_sched::{
    CpuReservation, CpuSet, DomainId, Extra, Nanos, Parallel, Params, Policy, PolicySettings,
    State, Warp,
    sim::{Costs, DomainSetup, Load, Outcome, Setup, Simulation, simulate},
};
use proptest::prelude::*;

fn hog(name: &str, vcpus: usize, weight: u32) -> DomainSetup {
    let mut domain = DomainSetup::new(name, vcpus, Load::Hog);
    domain.params.weight = weight;
    domain
}

fn sleeper(name: &str, vcpus: usize) -> DomainSetup {
    let load = Load::Build {
        work: Nanos::millis(3),
        hold: Nanos::micros(50),
        io_every: 2,
        io: Nanos::millis(4),
    };
    DomainSetup::new(name, vcpus, load)
}

fn free(cpus: usize, policy: Policy, domains: Vec<DomainSetup>) -> Setup {
    Setup {
        costs: Costs::FREE,
        ..Setup::new(cpus, policy, domains)
    }
}

fn run(setup: &Setup) -> Outcome {
    simulate(setup).expect("a good setup")
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(12)
    }
}

/// Those that let no CPU idle while any waits.
const CONSERVING: [Policy; 10] = [
    Policy::Rr,
    Policy::Bvt,
    Policy::Credit,
    Policy::Credit2,
    Policy::Cfs,
    Policy::Balance,
    Policy::Procco,
    Policy::Cpuco,
    Policy::Sbco,
    Policy::Speed,
];

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_cpu_idles_while_anybody_waits(
        cpus in 1usize..5,
        sleepers in prop::collection::vec(1usize..4, 1..4),
        hogs in 0usize..3,
        seed in any::<u64>(),
    ) {
        for policy in CONSERVING {
            let mut domains: Vec<_> = sleepers.iter().map(|&n| sleeper("s", n.min(cpus))).collect();
            domains.extend((0..hogs).map(|_| hog("h", 1, 256)));
            let mut engine = Simulation::new(&Setup { seed, ..free(cpus, policy, domains) }).unwrap();
            for step in 1..400 {
                engine.run_until(Nanos::micros(1_237 * step));
                let world = engine.world();
                let idle = world.cpus().any(|cpu| world[cpu].running.is_none());
                let waits = world.vcpus().find(|(_, view)| view.state() == State::Waiting);
                prop_assert!(!idle || waits.is_none(), "{policy} at {}: {waits:?}\n{}", world.now, engine.policy().dump(world));
            }
        }
    }

    #[test]
    fn nobody_starves(
        cpus in 1usize..4,
        vcpus in prop::collection::vec(1usize..4, 1..5),
        seed in any::<u64>(),
    ) {
        for policy in Policy::ALL {
            let mut domains: Vec<_> = vcpus.iter().map(|&n| hog("h", n.min(cpus), 256)).collect();
            domains.push(sleeper("s", cpus));
            let setup = Setup { seed, ..free(cpus, policy, domains) };
            let mut engine = Simulation::new(&setup).unwrap();
            let mut had = Vec::new();
            for second in 1..6 {
                engine.run_until(Nanos::secs(second));
                let world = engine.world();
                let ran: Vec<_> = world.vcpus().map(|(vcpu, _)| world.ran(vcpu)).collect();
                for (n, (now, then)) in ran.iter().zip(had.iter()).enumerate() {
                    prop_assert!(now > then, "{policy}: v{n} had nothing in second {second}\n{}", engine.policy().dump(world));
                }
                had = ran;
            }
        }
    }

    #[test]
    fn nobody_starves_beside_gangs(
        cpus in 2usize..4,
        gangs in 1usize..4,
        seed in any::<u64>(),
    ) {
        for policy in [Policy::Procco, Policy::Cpuco] {
            let mut domains: Vec<_> = (0..gangs).map(|_| hog("gang", cpus, 256)).collect();
            domains.push(sleeper("alone", 1));
            let mut engine = Simulation::new(&Setup { seed, ..free(cpus, policy, domains) }).unwrap();
            let mut had = Nanos::ZERO;
            for second in 1..6 {
                engine.run_until(Nanos::secs(second));
                let world = engine.world();
                let (alone, _) = world.vcpus().last().unwrap();
                let now = world.ran(alone);
                prop_assert!(now > had, "{policy}: nothing in second {second}\n{}", engine.policy().dump(world));
                had = now;
            }
        }
    }

    #[test]
    fn shares_follow_weights_on_one_cpu(weights in prop::collection::vec(64u32..1024, 2..5), seed in any::<u64>()) {
        let all: u32 = weights.iter().sum();
        for policy in [Policy::Bvt, Policy::Credit, Policy::Credit2, Policy::Cfs, Policy::Balance, Policy::Sbco, Policy::Procco] {
            let domains = weights.iter().map(|&w| hog("h", 1, w)).collect();
            let outcome = run(&Setup { seed, length: Nanos::secs(20), ..free(1, policy, domains) });
            // Credit keeps account at its ticks alone: one that has little gets a third more,
            // beside one that has nearly everything.
            let off = if policy == Policy::Credit { 0.05 } else { 0.001 };
            for (domain, weight) in outcome.domains.iter().zip(&weights) {
                let wanted = f64::from(*weight) / f64::from(all);
                prop_assert!((domain.share - wanted).abs() < off, "{policy}: {} for {wanted}", domain.share);
            }
        }
    }

    #[test]
    fn balance_never_stacks_siblings(
        cpus in 2usize..6,
        vms in 1usize..4,
        seed in any::<u64>(),
        sleepy in any::<bool>(),
    ) {
        for policy in [Policy::Balance, Policy::Procco, Policy::Cpuco, Policy::Sbco] {
            let vm = |_| if sleepy { sleeper("vm", cpus) } else { hog("vm", cpus, 256) };
            let setup = Setup { seed, length: Nanos::secs(5), ..free(cpus, policy, (0..vms).map(vm).collect()) };
            let outcome = run(&setup);
            prop_assert_eq!(outcome.stacked.hits, 0, "{}", policy);
            prop_assert!(outcome.stacked.cases > 0);
        }
    }

    #[test]
    fn reservations_that_fit_are_kept_in_every_period(
        wants in prop::collection::vec((1u64..20, 1u64..40), 1..5),
        seed in any::<u64>(),
    ) {
        for policy in [Policy::Sedf, Policy::Atropos] {
            // As many as fit on one CPU, and others that have nothing reserved.
            let mut room = 1_000_000;
            let mut domains = Vec::new();
            for (slice, longer) in &wants {
                let reservation = CpuReservation {
                    slice: Nanos::millis(*slice),
                    period: Nanos::millis(slice + longer),
                    extra: Extra::No,
                };
                if reservation.millionths() < room {
                    room -= reservation.millionths();
                    let mut domain = hog("reserved", 1, 256);
                    domain.params.reservation = Some(reservation);
                    domains.push(domain);
                }
            }
            let reserved = domains.len();
            domains.push(sleeper("other", 2));
            domains.push(hog("other", 1, 256));
            let setup = Setup { seed, ..free(1, policy, domains.clone()) };
            let mut engine = Simulation::new(&setup).unwrap();
            // Any window of two periods holds a whole one.
            let mut had = vec![(Nanos::millis(25), Nanos::ZERO); reserved];
            engine.run_until(Nanos::millis(25));
            for (n, had) in had.iter_mut().enumerate() {
                had.1 = engine.world().ran(forkyard_sched::VcpuId::from_place(n));
            }
            for step in 25..2_000 {
                engine.run_until(Nanos::millis(step));
                for (n, (since, ran)) in had.iter_mut().enumerate() {
                    let reservation = domains[n].params.reservation.unwrap();
                    let now = engine.world().now;
                    if now.minus(*since) >= reservation.period.scale(2, 1) {
                        let total = engine.world().ran(forkyard_sched::VcpuId::from_place(n));
                        prop_assert!(
                            total.minus(*ran) >= reservation.slice,
                            "{policy}: {} in {} of {reservation:?}", total.minus(*ran), now.minus(*since)
                        );
                        (*since, *ran) = (now, total);
                    }
                }
            }
            // And no more than that, on the whole.
            let outcome = engine.outcome();
            for (domain, setup) in outcome.domains.iter().zip(&domains[..reserved]) {
                let reservation = setup.params.reservation.unwrap();
                let part = reservation.slice.as_f64() / reservation.period.as_f64();
                prop_assert!((domain.share - part).abs() < 0.03, "{policy}: {} of {part}", domain.share);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_outcome_to_the_last_bit(seed in any::<u64>()) {
        for policy in Policy::ALL {
            let domains = vec![sleeper("a", 2), hog("b", 2, 512)];
            let setup = Setup { seed, length: Nanos::secs(2), ..Setup::new(2, policy, domains) };
            prop_assert_eq!(run(&setup), run(&setup));
        }
    }
}

#[test]
fn atropos_refuses_what_it_could_not_keep_and_sedf_shortens_it() {
    // The thesis' example (§2.2.4): 118 % in all.
    let reserved = |slice, period| {
        let mut domain = hog("d", 1, 256);
        domain.params.reservation = Some(CpuReservation {
            slice: Nanos::millis(slice),
            period: Nanos::millis(period),
            extra: Extra::No,
        });
        domain
    };
    let domains = vec![reserved(90, 500), reserved(20, 50), reserved(30, 50)];
    let refused = simulate(&free(1, Policy::Atropos, domains.clone()));
    assert!(refused.is_err());
    let outcome = run(&free(1, Policy::Sedf, domains));
    for (domain, part) in outcome.domains.iter().zip([0.18, 0.4, 0.6]) {
        let kept = part / 1.18;
        assert!(
            (domain.share - kept).abs() < 0.03,
            "{} of {kept}",
            domain.share
        );
    }
}

#[test]
fn credit_keeps_caps_and_deals_the_rest_to_others() {
    // The thesis' table 2.1: weights 64, 64 and 128, the second capped.
    let mut capped = hog("capped", 1, 64);
    capped.params.cap = Some(10);
    let setup = free(
        1,
        Policy::Credit,
        vec![hog("a", 1, 64), capped.clone(), hog("c", 1, 128)],
    );
    let shares: Vec<f64> = run(&setup).domains.iter().map(|d| d.share).collect();
    for (share, wanted) in shares.iter().zip([0.3, 0.1, 0.6]) {
        assert!((share - wanted).abs() < 0.02, "{shares:?}");
    }
    // Alone it is still capped: the CPU idles.
    let outcome = run(&free(1, Policy::Credit, vec![capped]));
    assert!((outcome.domains[0].share - 0.1).abs() < 0.01, "{outcome:?}");
    assert!((outcome.idle - 0.9).abs() < 0.01);
}

#[test]
fn credit_shares_by_domain_and_over_all_cpus() {
    for policy in [Policy::Credit, Policy::Credit2] {
        let heads = if policy == Policy::Credit { 4 } else { 2 };
        let domains = vec![hog("few", 2, 256), hog("many", heads, 256)];
        let outcome = run(&free(2, policy, domains));
        assert!(
            (outcome.domains[0].share - 0.5).abs() < 0.03,
            "{policy}: {outcome:?}"
        );
    }
}

#[test]
fn a_warp_lowers_latency_and_takes_no_share() {
    let answers = |warp| {
        let load = Load::Requests {
            every: Nanos::millis(20),
            work: Nanos::micros(500),
        };
        let mut server = DomainSetup::new("server", 1, load);
        server.params.warp = warp;
        let domains = vec![server, hog("a", 1, 256), hog("b", 1, 256), hog("c", 1, 256)];
        let outcome = run(&free(1, Policy::Bvt, domains));
        (
            outcome.domains[0].latency.unwrap().p99,
            outcome.domains[1].share,
        )
    };
    let (plain, _) = answers(None);
    let warp = Warp {
        back: Nanos::millis(50),
        limit: Nanos::millis(5),
        rest: Nanos::ZERO,
    };
    let (warped, hog) = answers(Some(warp));
    assert!(warped < plain / 2.0, "{warped} after {plain}");
    assert!(hog > 0.3, "{hog}");
    // One that would warp for ever may not: a hog gains nothing beyond its limit.
    let mut greedy = hog_with_warp(Warp {
        rest: Nanos::secs(1),
        ..warp
    });
    greedy.name = "greedy".into();
    let outcome = run(&free(1, Policy::Bvt, vec![greedy, self::hog("b", 1, 256)]));
    assert!((outcome.domains[0].share - 0.5).abs() < 0.02, "{outcome:?}");
}

fn hog_with_warp(warp: Warp) -> DomainSetup {
    let mut domain = hog("w", 1, 256);
    domain.params.warp = Some(warp);
    domain
}

fn spinners(cpus: usize, vms: usize) -> Vec<DomainSetup> {
    let load = Load::Barrier {
        work: Nanos::micros(500),
        jitter: 0.0,
        spin: None,
    };
    (0..vms)
        .map(|n| DomainSetup::new(format!("vm{n}"), cpus, load.clone()))
        .collect()
}

#[test]
fn gangs_keep_spinning_siblings_together() {
    let rounds = |policy| {
        let outcome = run(&Setup {
            length: Nanos::secs(5),
            ..free(2, policy, spinners(2, 2))
        });
        outcome.domains.iter().map(|d| d.rate).sum::<f64>()
    };
    let (alone, default) = (2_000.0, rounds(Policy::Cfs));
    for policy in [Policy::Procco, Policy::Cpuco] {
        let gang = rounds(policy);
        assert!(gang > 0.9 * alone, "{policy}: {gang}");
        assert!(gang > default, "{policy}: {gang} after {default}");
    }
}

#[test]
fn speed_balancing_gives_each_its_turn_on_the_fast_cpu() {
    // Three on two: one that is alone runs twice as fast.
    let load = Load::Barrier {
        work: Nanos::secs(2),
        jitter: 0.0,
        spin: None,
    };
    let mut domain = DomainSetup::new("spmd", 3, load);
    domain.params = Params {
        parallel: Parallel::Yes,
        ..Params::default()
    };
    let rate = |policy, knobs| {
        let setup = Setup {
            knobs,
            length: Nanos::secs(200),
            ..free(2, policy, vec![domain.clone()])
        };
        run(&setup).domains[0].rate
    };
    let still = PolicySettings {
        migration: forkyard_sched::Migration::Stay,
        ..PolicySettings::default()
    };
    let stay = rate(Policy::Credit, still);
    let speed = rate(Policy::Speed, still);
    // The bound is 4/3 (§3.3, V = 1): 2·T against 1.5·T.
    assert!(
        speed > 1.2 * stay && speed < 1.35 * stay,
        "{speed} after {stay}"
    );
    // One that is not marked is left where it is.
    domain.params.parallel = Parallel::No;
    let setup = Setup {
        knobs: still,
        ..free(2, Policy::Speed, vec![domain])
    };
    assert_eq!(run(&setup).migrations, 0.0);
}

#[test]
fn a_vcpu_stays_within_its_affinity() {
    for policy in Policy::ALL {
        let mut bound = hog("bound", 2, 256);
        bound.affinity = vec![CpuSet::of([forkyard_sched::CpuId(1)])];
        let setup = free(3, policy, vec![bound, hog("free", 3, 256), sleeper("s", 3)]);
        let mut engine = Simulation::new(&setup).unwrap();
        for step in 1..500 {
            engine.run_until(Nanos::millis(step * 3));
            let world = engine.world();
            for vcpu in &world[DomainId(0)].vcpus {
                if let State::Running(cpu) = world[*vcpu].state() {
                    assert_eq!(cpu.0, 1, "{policy}");
                }
            }
        }
    }
}

#[test]
fn stacking_under_chance_is_what_arithmetic_says() {
    // 3/7 with two VMs of four vCPUs on four CPUs.
    let seeds = 1..=40u64;
    let part = |seed| {
        let setup = Setup {
            seed,
            length: Nanos::secs(1),
            ..free(4, Policy::Cfs, vec![hog("a", 4, 256), hog("b", 4, 256)])
        };
        run(&setup).stacked.part()
    };
    let mean = seeds.map(part).sum::<f64>() / 40.0;
    assert!((mean - 3.0 / 7.0).abs() < 0.08, "{mean}");
}
