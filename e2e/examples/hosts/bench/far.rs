//! Forks to one host at the far end of a long link: hosts are joined by the network in user
//! space, which delays every frame and has one rate for all.
//!
//! One parent is forked `--rounds` times for each round trip: the first time nothing is
//! known of what its clones want, later what earlier ones waited for.

use super::{
    Options, ms,
    parts::{Forked, all, fill, fork, passed, remove, run_parent},
};
use crate::report::Row;
use forkyard_e2e::{Cluster, LinkFaults, Links};
use std::time::{Duration, Instant};

/// Time that frames may wait for the link, as in the buffers of a router.
const QUEUE: Duration = Duration::from_millis(100);

/// Forks over links of each round trip.
pub fn measure(options: &Options) -> Vec<Row> {
    let each = options.round_trips.iter();
    each.flat_map(|round_trip| over(options, *round_trip))
        .collect()
}

fn over(options: &Options, round_trip: u32) -> Vec<Row> {
    let network = LinkFaults {
        rate: u64::from(options.far) * 1_000_000 / 8,
        queue: QUEUE,
        delay: Duration::from_millis(round_trip.into()) / 2,
        ..LinkFaults::default()
    };
    let cluster = Cluster::linked(2, network);
    run_parent(cluster.host(0), "p", options);
    cluster.host(0).sh("p", &fill(options));
    let rounds = 0..options.rounds;
    let rows = rounds.map(|round| {
        let there = Links::of(cluster.host(1));
        let before = Links::of(cluster.host(0));
        let begun = Instant::now();
        let Forked { made, running } = fork(&cluster, (0, "p"), &[1], 1, &[]);
        let ready = begun.elapsed();
        let waited = Links::of(cluster.host(1)).all("pages_waited") - there.all("pages_waited");
        all(&cluster, &made, "true");
        let done = begun.elapsed();
        let row = passed(&cluster, 0, &before);
        let in_all = Links::of(cluster.host(1)).all("pages_waited") - there.all("pages_waited");
        remove(&cluster, &made);
        eprintln!(
            "bench-cluster: far, {round_trip} ms, fork {}: running {}, ready {}, first command {} ms; \
             {waited} pages waited for until ready, {in_all} until the command's end",
            round + 1,
            ms(running),
            ms(ready),
            ms(done - ready),
        );
        Row {
            part: "far",
            round,
            hosts: 1,
            clones: 1,
            memory: options.memory,
            fill: options.fill,
            round_trip,
            way: if round == 0 { "first fork" } else { "later forks" },
            reporting: true,
            running: ms(running),
            ready: ms(ready),
            done: ms(done),
            waited: in_all,
            ..row
        }
    });
    let rows = rows.collect();
    cluster.end();
    rows
}
