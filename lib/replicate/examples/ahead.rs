//! Prints how sending ahead by fixed and by learned parameters does on generated traces: the table in
//! docs/simulations.md.

use forkyard_replicate::{
    Knobs,
    replay::{ReplayWork, SendStrategy, replay},
};

/// Length of a trace, bytes a second, and seed.
const MINUTES: u64 = 240;
const RATE: u64 = 256 << 10;
const SEED: u64 = 1;

fn main() {
    println!(
        "| work | way | local in 10 s after a move, % | sent ahead, MiB | fetched, MiB | K, S at the end |"
    );
    println!("|---|---|---|---|---|---|");
    let table = |k, s| SendStrategy::Table(Knobs { k, s });
    let ways = [
        ("on demand", SendStrategy::OnDemand),
        (
            "the paper's: K 1000, S 1",
            SendStrategy::Fixed(Knobs::default()),
        ),
        (
            "the paper's, table learned",
            SendStrategy::Table(Knobs::default()),
        ),
        ("K 1000, S 0, table learned", table(1000.0, 0.0)),
        ("K 1000, S 16, table learned", table(1000.0, 16.0)),
        ("learned, price 0", SendStrategy::Learned { price: 0.0 }),
        ("learned, price 0.02", SendStrategy::Learned { price: 0.02 }),
        ("learned, price 0.1", SendStrategy::Learned { price: 0.1 }),
    ];
    for work in ReplayWork::ALL {
        for (name, way) in ways {
            let of = replay(work, way, MINUTES, RATE, SEED);
            println!(
                "| {}, {} moves | {name} | {:.1} | {} | {} | {}, {} |",
                work.name(),
                of.moves,
                of.local_part() * 100.0,
                of.sent >> 8,
                of.fetched >> 8,
                of.knobs.k,
                of.knobs.s
            );
        }
    }
}
