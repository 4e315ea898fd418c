//! One host whose link is far slower than those of the others of its group.

use super::{job, served};
use crate::plot::{Job, LARGEST, Outcome, Plot, Rng, Slow};
use crate::world::World;
use forkyard_transfer::Complete;
use forkyard_types::{PageCount, PageNo};
use std::time::Duration;

/// Runs of each kind.
const SEEDS: u64 = 10;
/// So much slower it is.
const TIMES: u64 = 20;

/// Clients that want everything, the last of them perhaps over a slow link.
fn plot(seed: u64, clients: usize, slow: Option<Slow>) -> Plot {
    let mut rng = Rng(seed + 100_000);
    let mut plot = Plot::new(seed, 12_000 + rng.below(4000));
    plot.ahead = 512;
    plot.network.rate = [125_000_000, 25_000_000][usize::from(rng.chance(80.0))];
    plot.network.delay = Duration::from_micros(50 + rng.below(1000));
    plot.network.loss = [0.0, 0.0, 1.0][usize::try_from(rng.below(3)).expect("few")];
    let all = Job {
        complete: Complete::Yes,
        ..job([])
    };
    plot.jobs = vec![all.clone(); clients];
    plot.jobs.extend(slow.map(|slow| Job {
        slow: Some((Duration::ZERO..Duration::MAX, slow)),
        ..all
    }));
    plot
}

/// Returns the time at which the last of the first `clients` had everything.
fn took(outcome: &Outcome, clients: usize) -> Duration {
    let ended = outcome.ended[..clients].iter().flatten();
    ended.max().copied().expect("somebody ended")
}

#[test]
fn host_on_a_slow_link_does_not_hold_up_the_others_of_its_group() {
    for seed in 0..SEEDS / 2 {
        let others = 3 + usize::try_from(seed % 5).expect("few");
        let rate = plot(seed, 0, None).network.rate / TIMES;
        let queue = [rate / 20, rate / 4][usize::from(seed.is_multiple_of(2))];
        let slow = Slow { rate, queue };
        let run = |clients, slow| {
            let outcome = World::new(plot(seed, clients, slow)).run();
            served(&outcome, seed);
            outcome
        };
        let (all, free, alone) = (
            run(others, Some(slow)),
            run(others, None),
            run(0, Some(slow)),
        );
        let [held, free] = [&all, &free].map(|outcome| took(outcome, others));
        assert!(
            held * 10 < free * 13,
            "seed {seed}, {others} others: {held:?}, without the slow one {free:?}"
        );
        // Nor is the slow one the worse for it.
        assert!(
            all.took * 10 < alone.took * 13,
            "seed {seed}, {others} others: {:?}, alone {:?}",
            all.took,
            alone.took
        );
    }
}

#[test]
fn host_whose_link_is_slow_for_a_while_leaves_the_group_and_comes_back() {
    for seed in 0..SEEDS / 2 {
        let mut plot = plot(seed, 4, None);
        plot.pages = PageCount(LARGEST * 60);
        // All read the same all the time.
        for job in &mut plot.jobs {
            job.complete = Complete::No;
            job.at_once = 32;
            job.thinks = Duration::from_millis(20);
            job.wants = (0..plot.pages.0).map(PageNo).collect();
        }
        let rate = 200_000;
        let slow = Slow {
            rate,
            queue: rate / 10,
        };
        let from = Duration::from_millis(200);
        plot.jobs[0].slow = Some((from..from * 3, slow));
        let outcome = World::new(plot).run();
        served(&outcome, seed);
        // It was told of the group, to leave it, and of it again; the others once.
        assert_eq!(outcome.listened, [3, 1, 1, 1], "seed {seed}");
    }
}
