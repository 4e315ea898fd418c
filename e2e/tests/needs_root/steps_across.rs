//! A daemon is killed before the Nth thing it does for a fork to another host: that of
//! the host whose VM is forked, and that of the host where clones are made.
//!
//! Some of the steps are tried each time; `FORKYARD_E2E_STEPS=1` tries all.

use crate::cluster::{FILES, FILL, PARTLY};
use forkyard_e2e::{Cluster, Outcome, eventually, is_sound, steps};
use forkyard_types::{CloneResult, ForkResponse, VmName, VmState};
use std::collections::BTreeSet;

/// A clone on each of two hosts.
const FORK: [&str; 7] = ["fork", "p", "-n", "2", "--to", "here,h1", "-ojson"];

/// Of so many of the last steps one in so many is tried each time.
const LAST: u64 = 30;
const BETWEEN: usize = 6;

/// Kills the daemon of one host at steps of a fork of `p`, whose files have these sums.
fn sweep(cluster: &mut Cluster, dying: usize, few: u64, sums: &str) {
    let pid = cluster.host(0).vm("p").pid;
    // As it will be each time: one that has just taken over copies everything.
    cluster.kill_daemon(dying);
    cluster.start(dying);
    cluster.host(dying).steps().count_only();
    let outcome = cluster.host(0).start(FORK, "").wait().exited(0);
    let total = cluster.host(dying).steps().stop();
    announced_run(cluster, &outcome, sums);
    remove_all_but_p(cluster);
    let mut reached = 0;
    // What is between the hosts comes last.
    let last = (total - LAST..=total).step_by(BETWEEN);
    for step in steps::chosen(total, few).into_iter().chain(last) {
        cluster.host(dying).steps().kill_at(step);
        let outcome = cluster.host(0).start(FORK, "").wait();
        cluster.host(dying).steps().stop();
        let call = cluster.host(dying).steps().died_before();
        let code = outcome.code;
        eprintln!("fork, host {dying}: {step} of {total}, {call}: {code:?}");
        reached += u32::from(!call.is_empty());
        cluster.replace_daemon(dying);
        announced_run(cluster, &outcome, sums);
        let p = cluster.host(0).vm("p");
        assert_eq!((p.pid, p.state), (pid, VmState::Running));
        for host in [0, 1] {
            is_sound(cluster.host(host));
        }
        remove_all_but_p(cluster);
    }
    assert!(reached > 0, "the daemon was never killed");
}

/// Clones that the client was told of are there and whole.
fn announced_run(cluster: &Cluster, outcome: &Outcome, sums: &str) {
    if ![Some(0), Some(PARTLY)].contains(&outcome.code) {
        return;
    }
    let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("JSON");
    for clone in answer.clones {
        if let CloneResult::Vm(vm) = clone {
            let host = cluster.host(usize::from(vm.host.is_some()));
            assert_eq!(host.sums(vm.name.as_str(), FILES), sums, "{}", vm.name);
        }
    }
}

/// Removes all but `p`, and checks that what either host has of it is known
/// where `p` is, and goes with it.
fn remove_all_but_p(cluster: &Cluster) {
    let [here, there] = [0, 1].map(|number| cluster.host(number));
    eventually("what is there to be known here", || {
        let known: BTreeSet<VmName> = here.vms().into_iter().map(|vm| vm.name).collect();
        there.vms().iter().all(|vm| known.contains(&vm.name))
    });
    for vm in here.vms().iter().filter(|vm| vm.parent.is_some()) {
        // One that was on its way to its end may have come there.
        here.start(["rm", vm.name.as_str()], "").wait();
    }
    eventually("all clones to have gone", || {
        here.vms().len() == 1 && there.vms().is_empty()
    });
}

#[test]
fn a_daemon_killed_at_any_step_of_a_fork_to_another_host_leaves_whole_clones_or_none() {
    let mut cluster = Cluster::with_steps(2);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    cluster.host(0).sh("p", FILL);
    let sums = cluster.host(0).sums("p", FILES);
    sweep(&mut cluster, 0, 3, &sums);
    sweep(&mut cluster, 1, 3, &sums);
    cluster.end();
}
