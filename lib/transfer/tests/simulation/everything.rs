//! All that can go wrong, at once: whatever it is, every page is right, every run ends,
//! and no client is given up that could be served.

use super::draw;
use crate::plot::{Cut, Ending, Fate, Outcome, Plot, Rng, Span, Which};
use crate::world::{PATIENCE, World};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Runs; most that fail fail in a few of a thousand.
const SEEDS: u64 = 4000;
/// More packets no client needs: of its questions each brings about at most one other.
const MOST_PACKETS: u64 = 1000;
/// The seed to run alone.
const ONE: &str = "SIMULATION_SEED";
/// All that lasts shorter than this, together with all else on both sides, is over
/// before any patience is.
const SHORT: u64 = 500;

/// Some time at the start of the run, or once in a while for much longer than any peer's
/// patience lasts, or for good.
fn trouble(rng: &mut Rng) -> Span {
    let from = rng.millis(0, 150);
    from..match rng.below(16) {
        0 => from + 3 * PATIENCE,
        1 => Duration::MAX,
        _ => from + rng.millis(2, SHORT),
    }
}

fn is_long(span: &Span) -> bool {
    span.end - span.start >= PATIENCE
}

fn cuts(rng: &mut Rng) -> Vec<Cut> {
    let count = [0, 0, 1, 2][usize::try_from(rng.below(4)).expect("few")];
    let cut = |_| Cut {
        when: trouble(rng),
        which: [Which::In, Which::Out, Which::Both][usize::try_from(rng.below(3)).expect("few")],
    };
    (0..count).map(cut).collect()
}

fn deaf(rng: &mut Rng) -> Vec<Span> {
    let mut spans: Vec<_> = (0..rng.below(4)).map(|_| trouble(rng)).collect();
    spans.retain(|_| rng.chance(50.0));
    spans
}

fn fate(rng: &mut Rng) -> Fate {
    let mut dies = Vec::new();
    let mut from = Duration::ZERO;
    while rng.chance(25.0) && dies.len() < 2 {
        from += rng.millis(0, 80);
        let again = rng.chance(90.0).then(|| from + rng.millis(1, SHORT));
        dies.push((from, again));
        match again {
            Some(again) => from = again,
            None => break,
        }
    }
    Fate {
        cuts: cuts(rng),
        dies,
    }
}

fn plot(seed: u64) -> Plot {
    let mut rng = Rng(seed + 80_000);
    let mut plot = draw(seed, &mut rng);
    let images = 1 + rng.below(2);
    plot.servers = (0..images).map(|_| fate(&mut rng)).collect();
    plot.deaf = deaf(&mut rng);
    let more = draw(seed, &mut Rng(seed + 90_000)).jobs;
    plot.jobs.extend(more.into_iter().take(2));
    for job in &mut plot.jobs {
        job.image = usize::try_from(rng.below(images)).expect("few");
        job.wants.retain(|page| page.0 < plot.pages.0);
        job.multicast = rng.chance(90.0);
        job.deaf = deaf(&mut rng);
        job.cuts = cuts(&mut rng);
        job.dies = rng.chance(12.0).then(|| rng.millis(0, 120));
    }
    let network = &mut plot.network;
    network.loss = rng.below(10) as f64;
    network.twice = rng.below(10) as f64;
    network.late = rng.below(30) as f64;
    network.late_by = rng.millis(0, 20);
    network.replayed = rng.below(8) as f64;
    network.forged = rng.below(8) as f64;
    plot
}

/// Events of all runs: each has to happen often, or the runs show nothing of
/// it.
#[derive(Debug, Default)]
struct Seen {
    served: u64,
    lost: u64,
    died: u64,
    forged: (u64, u64),
    regrouped: u64,
    group: u64,
}

impl Seen {
    fn add(&mut self, outcome: &Outcome) {
        for ending in &outcome.endings {
            *match ending {
                Ending::Served => &mut self.served,
                Ending::Lost(..) => &mut self.lost,
                Ending::Died => &mut self.died,
            } += 1;
        }
        self.forged.0 += outcome.forged.0;
        self.forged.1 += outcome.forged.1;
        self.regrouped += outcome.regrouped;
        self.group += u64::from(outcome.sent.group_bytes * 2 > outcome.sent.bytes);
    }
}

/// Runs it; no peer may be given up without a reason.
fn run(seed: u64) -> Outcome {
    let plot = plot(seed);
    let outcome = World::new(plot.clone()).run();
    for ((n, ending), job) in outcome.endings.iter().enumerate().zip(&plot.jobs) {
        let Fate { cuts, dies } = &plot.servers[job.image];
        let cut_off = job.cuts.iter().chain(cuts).any(|cut| is_long(&cut.when));
        let dead = dies.iter().any(|(_, again)| again.is_none());
        match ending {
            Ending::Served => {}
            Ending::Lost(..) if cut_off || dead => {}
            Ending::Died if job.dies.is_some() => {}
            Ending::Lost(..) | Ending::Died => {
                panic!("seed {seed}, client {n}: {ending:?} for no reason")
            }
        }
    }
    for (n, received) in outcome.received.iter().enumerate() {
        let packets = received.packets;
        assert!(
            packets < MOST_PACKETS,
            "seed {seed}, client {n}: it sent {packets} packets"
        );
    }
    outcome
}

fn why(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

#[test]
fn whatever_goes_wrong_at_once_every_page_is_right_and_every_run_ends() {
    if let Some(seed) = std::env::var(ONE).ok().and_then(|seed| seed.parse().ok()) {
        println!("{:#?}\n{:#?}", plot(seed), run(seed));
        return;
    }
    let (next, seen, failed) = (
        AtomicU64::new(0),
        Mutex::new(Seen::default()),
        Mutex::new(Vec::new()),
    );
    thread::scope(|scope| {
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return;
                }
                match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                    Ok(outcome) => seen.lock().expect("unharmed").add(&outcome),
                    Err(panic) => failed.lock().expect("unharmed").push((seed, why(&*panic))),
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("unharmed");
    let first = failed.iter().min();
    assert!(
        failed.is_empty(),
        "{} of {SEEDS} runs failed, of seeds {:?}; {first:?}; to repeat one: {ONE}={} cargo test \
         --release -p forkyard-transfer --test simulation whatever -- --nocapture",
        failed.len(),
        failed
            .iter()
            .map(|(seed, _)| seed)
            .take(20)
            .collect::<Vec<_>>(),
        first.map_or(0, |(seed, _)| *seed),
    );
    let seen = seen.into_inner().expect("unharmed");
    let often = [
        seen.served / 10,
        seen.lost,
        seen.died,
        seen.regrouped,
        seen.group * 10,
        seen.forged.0 / 10,
        seen.forged.1 / 10,
    ];
    assert!(often.iter().all(|times| *times > SEEDS / 8), "{seen:?}");
}

#[test]
fn run_follows_from_its_seed() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| format!("{:?}", run(seed)));
        assert_eq!(one, other, "seed {seed}");
    }
}
