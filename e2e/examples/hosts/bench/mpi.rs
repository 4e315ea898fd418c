//! An MPI job of four ranks on two hosts: room for so few on each that a VM which has mpirun
//! forked for it has clones on both. The room is handed out by etcd's allocator, and by Slurm.
//!
//! The job is a ring of bench/apps, forked for, and once more on clones that have done it
//! before. A wrong result, or ranks that are all on one host, end the measurement.

use super::{Options, ms};
use crate::report::Row;
use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::ListedVm;
use std::{collections::BTreeSet, fs, thread::sleep, time::Duration};

const RANKS: u16 = 4;
/// Room on each host: for the VM and two clones, on the first.
const CPUS: u32 = 3;
const OFFER: &str = "FORKYARD_OFFER_VCPUS";
const RING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/apps/ring.c");

/// One row for each round and allocator.
pub fn measure(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in ["slurm", "etcd"] {
        let mut cluster = match way {
            "slurm" => Cluster::of_nodes_in_slurm(2, CPUS),
            _ => {
                let mut cluster = Cluster::of_nodes(2);
                (0..2).for_each(|number| cluster.tell(number, OFFER, CPUS.to_string()));
                cluster.kill_daemon(0);
                cluster.start(0);
                cluster
            }
        };
        cluster.join(1);
        let host = cluster.host(0);
        let memory = options.memory.max(256).to_string();
        host.ok([
            "run", "mpi", "--name", "m", "--node", "h0", "--memory", &memory,
        ]);
        host.put("m", "/root/ring.c", fs::read(RING).expect("a ring"));
        host.sh("m", "cd /root && mpicc -O1 ring.c -o ring");
        for round in 0..options.rounds {
            at_rest(&cluster, way);
            let done = ring(host, &timed("vmfork mpirun -n 4 ./ring 10"));
            at_rest(&cluster, way);
            let warm = format!("./ring 10 >/dev/null; {}", timed("mpirun ./ring 10"));
            let again = ring(host, &format!("vmfork hosts -n 4 -- sh -c 'mpirun {warm}'"));
            eprintln!("bench-cluster: mpi, {way}, round {round}: {done:.1?}, {again:.1?}");
            rows.push(Row {
                part: "mpi",
                round,
                hosts: 2,
                clones: RANKS,
                way,
                reporting: true,
                done: ms(done),
                again: ms(again),
                ..Row::default()
            });
        }
        // The record of a job's room goes with that.
        at_rest(&cluster, way);
        cluster.end();
    }
    rows
}

/// Waits until nothing but the VM has room of Slurm's, which takes back that of a job a while
/// after its end.
fn at_rest(cluster: &Cluster, way: &str) {
    if way == "slurm" {
        eventually("the end of a job's allocation", || {
            cluster.slurm("squeue", &["-h"]).lines().count() == 1
        });
    }
}

/// A command that says how many milliseconds it took, by the guest's clock.
fn timed(command: &str) -> String {
    format!("s=$(date +%s%N); {command}; e=$(date +%s%N); echo took $(((e - s) / 1000000))")
}

/// Has the ring run, and checks its result and where its ranks were; the time that it says.
fn ring(host: &Host, job: &str) -> Duration {
    let job = format!("cd /root && {job}");
    let running = host.start(["exec", "m", "--", "sh", "-c", &job], "");
    let mut nodes = BTreeSet::new();
    while !running.is_over() {
        let vms: Vec<ListedVm> = host.json(["ps"]);
        let clones = vms.into_iter().filter(|it| it.vm.parent.is_some());
        nodes.extend(clones.filter_map(|it| it.node));
        sleep(Duration::from_millis(500));
    }
    let outcome = running.wait().exited(0);
    let said = outcome.text();
    assert!(said.contains("40 steps, sum 6: right"), "{said}");
    assert_eq!(nodes.len(), 2, "ranks on both hosts");
    let took = said.lines().find_map(|line| line.strip_prefix("took "));
    let took = took.and_then(|took| took.parse().ok()).expect("a time");
    Duration::from_millis(took)
}
