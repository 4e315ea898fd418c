//! Four parents on four hosts that fork, have a job done, end their clones, and
//! fork again, all to the same hosts (SnowFlock, section 4.5.3: 4 × 32 clones, five
//! times; there each fetches from four parents, as here).
//!
//! Each cycle the job is done once more by the same clones, which have what it
//! takes by then: what a fork costs is the difference. A clone that fails, or
//! whose job does, ends the measurement.

use super::{
    Options, ms,
    parts::{Forked, all, fill, fork, looks_up, passed, remove, run_parent},
};
use crate::report::Row;
use forkyard_e2e::{Cluster, Links};
use std::{thread, time::Instant};

const PARENTS: u8 = 4;
const CYCLES: u16 = 5;

/// One row for each parent's cycle.
pub fn measure(options: &Options, hosts: u8) -> Vec<Row> {
    let count = hosts.max(PARENTS);
    // So many clones on few processors take minutes until the last is ready.
    let cluster = Cluster::told(count, &[("FORKYARD_PATIENCE", "1800")]);
    cluster.limit(options.link);
    for parent in 0..PARENTS {
        let host = cluster.host(parent.into());
        run_parent(host, &name(parent), options);
        host.sh(&name(parent), &fill(options));
    }
    let rows = thread::scope(|scope| {
        let cluster = &cluster;
        let parents =
            (0..PARENTS).map(|parent| scope.spawn(move || cycles(options, cluster, parent, count)));
        let parents: Vec<_> = parents.collect();
        let rows = parents
            .into_iter()
            .flat_map(|parent| parent.join().expect("its cycles"));
        rows.collect()
    });
    cluster.end();
    rows
}

fn name(parent: u8) -> String {
    format!("p{parent}")
}

fn cycles(options: &Options, cluster: &Cluster, parent: u8, hosts: u8) -> Vec<Row> {
    let home = usize::from(parent);
    let to: Vec<_> = (0..usize::from(hosts))
        .filter(|host| *host != home)
        .collect();
    let (name, job) = (name(parent), looks_up(options));
    let cycle = |round| {
        let before = Links::of(cluster.host(home));
        let begun = Instant::now();
        let Forked { made, .. } = fork(cluster, (home, &name), &to, options.clones, &[]);
        let ready = begun.elapsed();
        all(cluster, &made, &job);
        let done = begun.elapsed();
        let again = Instant::now();
        all(cluster, &made, &job);
        let again = again.elapsed();
        let row = passed(cluster, home, &before);
        remove(cluster, &made);
        eprintln!("bench-cluster: agility, {name}, cycle {round}, {done:.1?}, {again:.1?}");
        Row {
            part: "agility",
            round,
            hosts: hosts - 1,
            clones: options.clones,
            way: "multicast",
            reporting: true,
            ready: ms(ready),
            done: ms(done),
            again: ms(again),
            ..row
        }
    };
    (0..CYCLES).map(cycle).collect()
}
