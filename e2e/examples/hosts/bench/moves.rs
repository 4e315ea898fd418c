//! A VM that moves between two hosts and back over a long link, while it writes memory: how long
//! it stands still, and how long a sibling on a third host hears nothing of it.
//!
//! The sibling sends a packet every 5 ms and has it sent back; its longest silence holds
//! everything: the stop, the last pages, the other host's load, and the network's change. Guests that are
//! emulated on a busy machine are silent for tens of milliseconds by themselves: that is measured, too, as long
//! as nothing moves.

use super::{Options, ms, parts::MOUNT};
use crate::report::Row;
use forkyard_e2e::{Cluster, LinkFaults, Links};
use forkyard_types::{MigrateResponse, VmView};
use std::{thread::sleep, time::Duration};

/// Time that frames may wait for the link, as in the buffers of a router.
const QUEUE: Duration = Duration::from_millis(100);
/// Memory that is written, in MiB, and pages to a MiB.
const WRITTEN: u32 = 32;
const PAGES: u32 = 256;
const PORT: &str = "9";
const EVERY_MS: &str = "5";

/// Moves over links of each round trip, at each rate of writing.
pub fn measure(options: &Options) -> Vec<Row> {
    let each = options.round_trips.iter();
    each.flat_map(|round_trip| over(options, *round_trip))
        .collect()
}

fn over(options: &Options, round_trip: u32) -> Vec<Row> {
    let network = |round_trip: u32| LinkFaults {
        rate: u64::from(options.far) * 1_000_000 / 8,
        queue: QUEUE,
        delay: Duration::from_millis(round_trip.into()) / 2,
        ..LinkFaults::default()
    };
    let cluster = Cluster::linked(3, network(0));
    let memory = options.memory.to_string();
    cluster
        .host(0)
        .ok(["run", "tiny", "--name", "p", "--memory", &memory]);
    cluster.host(0).sh("p", MOUNT);
    cluster.host(0).put_program("p", "prober", None);
    let to: Vec<VmView> = {
        let made = cluster
            .host(0)
            .ok(["fork", "p", "-n", "1", "--to", "h2", "--settle"]);
        drop(made);
        cluster.host(2).vms()
    };
    let sibling = to[0].name.to_string();
    cluster
        .host(0)
        .sh("p", &background(&format!("prober echo {PORT}")));
    let address = cluster.host(0).vm("p").address.ip.to_string();
    cluster.link().becomes(network(round_trip));
    let mut at = 0;
    let mut rows = Vec::new();
    for round in 0..options.rounds {
        for rate in &options.dirtying {
            let writes = (*rate > 0)
                .then(|| background(&format!("prober write {WRITTEN} {}", rate * PAGES)));
            if let Some(writes) = &writes {
                cluster.host(at).sh("p", writes);
            }
            let silent = |moves: &mut dyn FnMut() -> Option<MigrateResponse>| {
                let host = cluster.host(2);
                let ask = format!("prober ask {address} {PORT} {EVERY_MS} >/tmp/silence");
                host.sh(
                    &sibling,
                    &format!("rm -f /tmp/enough /tmp/silence; {}", background(&ask)),
                );
                sleep(Duration::from_secs(2));
                let moved = moves();
                sleep(Duration::from_secs(2));
                host.sh(&sibling, "touch /tmp/enough");
                host.wait_in(&sibling, "test -s /tmp/silence");
                let told = host.sh(&sibling, "cat /tmp/silence");
                let (longest, silences) = told.split_once('\n').unwrap_or((&told, ""));
                if !silences.is_empty() {
                    eprintln!(
                        "bench-cluster: moves, silent at, and for, ms: {}",
                        silences.replace('\n', ", ")
                    );
                }
                (moved, Duration::from_micros(longest.parse().unwrap_or(0)))
            };
            let (_, noise) = silent(&mut || None);
            let before = Links::of(cluster.host(at)).all("bytes_sent");
            let to = 1 - at;
            let (moved, silence) = silent(&mut || {
                let name = format!("h{to}");
                let words = ["migrate", "p", "--to", &name, "--if-stuck", "stop"];
                Some(cluster.host(at).json(words))
            });
            let Some(MigrateResponse { report, .. }) = moved else {
                continue;
            };
            let bytes = Links::of(cluster.host(at)).all("bytes_sent") - before;
            at = to;
            cluster.host(at).sh("p", "killall prober; true");
            cluster
                .host(at)
                .sh("p", &background(&format!("prober echo {PORT}")));
            let micros = Duration::from_micros;
            eprintln!(
                "bench-cluster: moves, {round_trip} ms, {rate} MiB/s: silent for {} ms ({} without a move), gap {} ms \
                 (stop {}, hand over {}, there {}), {} rounds, {} ahead, {} in the gap, {} s in all, {} MB",
                ms(silence),
                ms(noise),
                ms(micros(report.gap_us)),
                ms(micros(report.stop_us)),
                ms(micros(report.hand_over_us)),
                ms(micros(report.land_us)),
                report.rounds,
                report.pages_ahead,
                report.pages_last,
                report.total_us / 1_000_000,
                bytes / 1_000_000,
            );
            rows.push(Row {
                part: "moves",
                round,
                hosts: 1,
                clones: 1,
                memory: options.memory,
                fill: *rate,
                round_trip,
                way: "live",
                reporting: true,
                running: ms(micros(report.stop_us)),
                ready: ms(micros(report.gap_us)),
                done: ms(micros(report.total_us)),
                again: ms(silence),
                bytes,
                ..Row::default()
            });
        }
    }
    cluster.end();
    rows
}

fn background(command: &str) -> String {
    format!("({command}) >/dev/null 2>&1 </dev/null &")
}
