//! Every page right and every run ended, whatever the network does: each run
//! follows from its seed, which a failure names.

mod everything;
mod figures;
mod forgery;
mod plot;
mod slow;
mod world;

use forkyard_transfer::{Complete, Push, Run, flow};
use forkyard_types::{PageCount, PageNo};
use plot::{Cut, Ending, Job, LARGEST, Outcome, Plot, Rng, Which, is_zero};
use std::collections::BTreeSet;
use std::time::Duration;
use world::{PATIENCE, World};

/// Runs of each kind.
const SEEDS: u64 = 250;

/// A client that starts at once and waits for each of the pages in turn.
fn job(wants: impl IntoIterator<Item = u64>) -> Job {
    Job {
        image: 0,
        starts: Duration::ZERO,
        wants: wants.into_iter().map(PageNo).collect(),
        at_once: 1,
        thinks: Duration::from_micros(20),
        complete: Complete::No,
        multicast: true,
        deaf: Vec::new(),
        cuts: Vec::new(),
        slow: None,
        dies: None,
    }
}

fn run(first: u64, pages: u64) -> Run {
    Run {
        first: PageNo(first),
        pages: PageCount(pages),
    }
}

/// Some clients that want some pages in some way.
fn draw(seed: u64, rng: &mut Rng) -> Plot {
    let pages = 16 + rng.below(LARGEST - 16);
    let mut plot = Plot::new(seed, pages);
    for _ in 0..1 + rng.below(4) {
        let first = rng.below(pages);
        let wants: Vec<_> = match rng.below(3) {
            0 => (first..pages).collect(),
            1 => (0..rng.below(30)).map(|_| rng.below(pages)).collect(),
            _ => (0..pages).rev().step_by(3).collect(),
        };
        plot.jobs.push(Job {
            starts: rng.millis(0, 30),
            at_once: usize::try_from(1 + rng.below(8)).expect("few"),
            thinks: rng.millis(0, 3),
            complete: if rng.chance(40.0) {
                Complete::Yes
            } else {
                Complete::No
            },
            ..job(wants)
        });
    }
    plot.push = [Push::Nothing, Push::WorkingSet, Push::Everything]
        [usize::try_from(rng.below(3)).expect("few")];
    if rng.chance(50.0) {
        plot.working_set = vec![run(rng.below(pages), 5), run(rng.below(pages), 200)];
    }
    if rng.chance(20.0) {
        plot.disjoint = vec![run(rng.below(pages), rng.below(20))];
    }
    if rng.chance(20.0) {
        plot.gone = (0..3).map(|_| PageNo(rng.below(pages))).collect();
        // Zero pages are never gone.
        plot.gone.retain(|page| !is_zero(*page));
    }
    if rng.chance(30.0) {
        plot.law = flow::FlowLaw::Paper(flow::RateBounds::default());
    }
    plot.multicast = rng.chance(80.0);
    plot.datagram = [640, 1400, 8900][usize::try_from(rng.below(3)).expect("few")];
    let network = &mut plot.network;
    network.rate =
        [2_000_000, 125_000_000, 1_250_000_000][usize::try_from(rng.below(3)).expect("few")];
    network.queue = [20_000, 256 << 10][usize::try_from(rng.below(2)).expect("few")];
    network.delay = Duration::from_micros(20 + rng.below(3000));
    plot
}

fn served(outcome: &Outcome, seed: u64) {
    for (n, ending) in outcome.endings.iter().enumerate() {
        assert_eq!(
            *ending,
            Ending::Served,
            "seed {seed}, client {n}: {outcome:?}"
        );
    }
}

#[test]
fn any_load_is_served_on_a_good_network() {
    for seed in 0..SEEDS {
        let plot = draw(seed, &mut Rng(seed));
        served(&World::new(plot).run(), seed);
    }
}

#[test]
fn any_load_is_served_though_packets_are_lost_doubled_and_late() {
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 10_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(10) as f64;
        plot.network.twice = rng.below(10) as f64;
        plot.network.late = rng.below(30) as f64;
        plot.network.late_by = rng.millis(0, 20);
        served(&World::new(plot).run(), seed);
    }
}

#[test]
fn hosts_that_multicast_does_not_reach_are_served_all_the_same() {
    for seed in 0..SEEDS / 2 {
        let mut rng = Rng(seed + 20_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(3) as f64;
        for job in &mut plot.jobs {
            job.multicast = rng.chance(40.0);
        }
        served(&World::new(plot).run(), seed);
    }
}

#[test]
fn what_is_captured_or_forged_installs_nothing_and_is_counted() {
    let mut forged = (0, 0);
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 30_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.replayed = 10.0;
        plot.network.forged = 30.0;
        plot.network.loss = rng.below(3) as f64;
        let outcome = World::new(plot).run();
        served(&outcome, seed);
        forged.0 += outcome.forged.0;
        forged.1 += outcome.forged.1;
    }
    // Each of them was counted as refused, and nothing else happened.
    assert!(forged.0 > 20 * SEEDS && forged.1 > 20 * SEEDS, "{forged:?}");
}

#[test]
fn client_that_is_cut_off_recovers_or_is_told_and_no_other_suffers() {
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 40_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(3) as f64;
        let from = rng.millis(0, 60);
        let long = rng.chance(50.0);
        let to = from + if long { 3 * PATIENCE } else { PATIENCE / 3 };
        plot.jobs[0].cuts = vec![Cut {
            when: from..to,
            which: Which::Both,
        }];
        let outcome = World::new(plot).run();
        for (n, ending) in outcome.endings.iter().enumerate() {
            match ending {
                Ending::Served => {}
                Ending::Lost(..) if n == 0 && long => {}
                Ending::Lost(..) | Ending::Died => panic!("seed {seed}, client {n}: {ending:?}"),
            }
        }
    }
}

#[test]
fn death_of_a_client_harms_no_other() {
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 50_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(5) as f64;
        plot.jobs[0].dies = Some(rng.millis(0, 60));
        let outcome = World::new(plot).run();
        let others = &outcome.endings[1..];
        assert!(
            others.iter().all(|e| *e == Ending::Served),
            "seed {seed}: {others:?}"
        );
    }
}

#[test]
fn death_of_the_server_is_told_to_all_that_wait_and_names_their_pages() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 60_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(5) as f64;
        plot.servers[0].dies = vec![(rng.millis(0, 40), None)];
        let outcome = World::new(plot).run();
        for (ending, wanting) in outcome.endings.iter().zip(&outcome.wanting) {
            match ending {
                Ending::Served => assert!(wanting.is_empty(), "seed {seed}"),
                Ending::Lost(_, waited) => {
                    lost += 1;
                    let waited: BTreeSet<_> = waited.iter().copied().collect();
                    assert!(waited.is_subset(wanting), "seed {seed}");
                }
                Ending::Died => panic!("seed {seed}: nobody was to die"),
            }
        }
    }
    assert!(
        lost > SEEDS / 2,
        "the server is to die early enough to be missed: {lost}"
    );
}

#[test]
fn client_that_is_not_heard_is_told_though_the_group_still_reaches_it() {
    let mut plot = Plot::new(6, 400);
    let slow = Duration::from_millis(80);
    plot.jobs = vec![
        Job {
            thinks: slow,
            ..job(0..400)
        };
        3
    ];
    // It goes on to hear what the others ask for, and signs when they ask for nothing.
    plot.jobs[0].wants.reverse();
    plot.jobs[0].cuts = vec![Cut {
        when: slow..Duration::MAX,
        which: Which::Out,
    }];
    let outcome = World::new(plot).run();
    let [first, others @ ..] = &outcome.endings[..] else {
        panic!("three clients");
    };
    assert!(matches!(first, Ending::Lost(..)), "{outcome:?}");
    assert!(others.iter().all(|ending| *ending == Ending::Served));
}

#[test]
fn server_started_again_goes_on() {
    for seed in 0..SEEDS {
        let mut rng = Rng(seed + 70_000);
        let mut plot = draw(seed, &mut rng);
        plot.network.loss = rng.below(5) as f64;
        let dies = rng.millis(0, 40);
        plot.servers[0].dies = vec![(dies, Some(dies + rng.millis(1, 1500)))];
        served(&World::new(plot).run(), seed);
    }
}

#[test]
fn clones_in_lockstep_cost_hardly_more_than_one() {
    let mut plot = Plot::new(1, 400);
    plot.jobs = vec![job(0..300); 16];
    let outcome = World::new(plot).run();
    served(&outcome, 1);
    // A fifth is zero; 240 pages are data.
    assert!(outcome.sent.pages < 400, "{:?}", outcome.sent);
    assert!(outcome.sent.lockstep > 5 * 240, "{:?}", outcome.sent);
}

#[test]
fn disjoint_pages_go_to_who_asks_alone() {
    let mut plot = Plot::new(2, 400);
    plot.disjoint = vec![run(0, 400)];
    plot.jobs = (0..4).map(|n| job(n * 100..(n + 1) * 100)).collect();
    let outcome = World::new(plot.clone()).run();
    served(&outcome, 2);
    let ahead: u64 = outcome.received.iter().map(|r| r.ahead).sum();
    assert_eq!(ahead, 0, "{outcome:?}");
    plot.disjoint.clear();
    let outcome = World::new(plot).run();
    let ahead: u64 = outcome.received.iter().map(|r| r.ahead).sum();
    assert!(ahead > 500, "{outcome:?}");
}

#[test]
fn disjoint_pages_are_pushed_to_nobody_by_any_way() {
    let mut plot = Plot::new(5, 400);
    plot.push = Push::Everything;
    plot.working_set = vec![run(90, 20)];
    plot.disjoint = vec![run(100, 200)];
    for multicast in [true, false] {
        // One asks for what lies before them, one for some of them, and stays for long.
        let stays = Job {
            thinks: Duration::from_millis(100),
            ..job([50, 150])
        };
        plot.jobs = vec![stays.clone(), job(0..50), stays];
        plot.jobs
            .iter_mut()
            .for_each(|job| job.multicast = multicast);
        let outcome = World::new(plot.clone()).run();
        served(&outcome, 5);
        let pushed = outcome.sent.pushed;
        assert!(pushed > 50, "{outcome:?}");
        for received in &outcome.received {
            // Pages 100 to 299 are marked; some zero ones come with others.
            let came = received.ahead + received.zero + received.waited;
            assert!(came < 250, "{outcome:?}");
        }
    }
}

#[test]
fn end_game_leaves_the_group_alone() {
    let mut plot = Plot::new(3, 400);
    plot.jobs = vec![job(0..400), job(0..400)];
    // It starts when the others have everything.
    plot.jobs.push(Job {
        starts: Duration::from_millis(900),
        ..job(0..400)
    });
    let outcome = World::new(plot).run();
    served(&outcome, 3);
    let [first, _, last] = &outcome.received[..] else {
        panic!("three clients");
    };
    assert!(first.twice < 30, "{outcome:?}");
    assert_eq!(last.ahead, 0, "{outcome:?}");
}

#[test]
fn pushed_pages_come_before_they_are_asked_for() {
    let mut plot = Plot::new(4, 400);
    plot.push = Push::Everything;
    plot.jobs = vec![
        Job {
            thinks: Duration::from_millis(2),
            ..job(0..400)
        };
        8
    ];
    let outcome = World::new(plot.clone()).run();
    served(&outcome, 4);
    assert!(outcome.sent.pushed > 250, "{:?}", outcome.sent);
    let asked: u64 = outcome.received.iter().map(|r| r.asked).sum();
    plot.push = Push::Nothing;
    let without = World::new(plot).run();
    let asked_without: u64 = without.received.iter().map(|r| r.asked).sum();
    assert!(
        asked * 4 < asked_without,
        "{asked}, without {asked_without}"
    );
}

#[test]
fn one_packet_lost_in_a_hundred_costs_less_than_a_tenth_of_the_time() {
    let took = |seed, clients, loss| {
        let mut plot = Plot::new(seed, 8000);
        plot.network.loss = loss;
        plot.jobs = vec![
            Job {
                complete: Complete::Yes,
                ..job([])
            };
            clients
        ];
        let outcome = World::new(plot).run();
        served(&outcome, seed);
        outcome.took
    };
    for clients in [1, 4] {
        // Of all together: what is lost last, or twice, costs one of them twice as much.
        let of_all = |loss| (0..12).map(|seed| took(seed, clients, loss)).sum();
        let [clean, lossy]: [Duration; 2] = [0.0, 1.0].map(of_all);
        assert!(
            lossy * 10 < clean * 11,
            "{clients} clients: {lossy:?} against {clean:?}"
        );
    }
}
