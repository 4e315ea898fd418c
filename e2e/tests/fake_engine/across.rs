//! Substrates that are activated on other hosts: which VMs there are, and what is left of what failed.

use crate::substrates::{activate, waits_for_made};
use forkyard_e2e::{Cluster, Fault, Host, Process, eventually, is_sound};
use forkyard_types::{ActivateResponse, CloneResult, ListedVm, NodeView, SubstrateInspect, VmView};
use std::collections::BTreeSet;

const DOCK: [&str; 7] = ["substrate", "dock", "p", "--name", "s", "--kind", "public"];

fn docked_at_first(cluster: &Cluster) {
    let host = cluster.host(0);
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 3");
    host.ok(DOCK);
}

/// VMs that a host has itself.
fn own(host: &Host) -> Vec<VmView> {
    let vms = host.vms().into_iter();
    vms.filter(|vm| vm.host.is_none()).collect()
}

fn names(vms: &[VmView]) -> Vec<&str> {
    vms.iter().map(|vm| vm.name.as_str()).collect()
}

/// Waits until a host owes no other any page: what is away has come.
fn all_has_come(host: &Host) {
    eventually("all pages to have come", || {
        own(host).iter().all(|vm| vm.awaits.is_empty())
    });
}

#[test]
fn vms_are_made_on_the_hosts_that_are_named_and_outlive_the_one_that_had_the_substrate() {
    let mut cluster = Cluster::fake(3);
    docked_at_first(&cluster);
    let made = activate(
        cluster.host(0),
        &["s", "--count", "5", "--to", "h1,here,h2"],
    );
    assert_eq!(names(&made), ["s-1", "s-2", "s-3", "s-4", "s-5"]);
    let places: Vec<_> = made.iter().map(|vm| vm.host.as_deref()).collect();
    let (h1, h2) = (Some("h1"), Some("h2"));
    assert_eq!(places, [None, None, h1, h1, h2]);
    let families: BTreeSet<_> = made.iter().map(|vm| vm.family).collect();
    assert_eq!(families.len(), 5, "each founds its own");
    for (host, there) in [(0, &made[..2]), (1, &made[2..4]), (2, &made[4..])] {
        let host = cluster.host(host);
        for vm in there {
            let name = vm.name.as_str();
            assert_eq!(host.sh(name, "peek 7 && hostname"), format!("3\n{name}"));
        }
    }
    // Names that are taken elsewhere are not given again.
    let more = activate(cluster.host(0), &["s", "--count", "2", "--to", "h1"]);
    assert_eq!(names(&more), ["s-6", "s-7"]);
    all_has_come(cluster.host(1));
    all_has_come(cluster.host(2));
    cluster.host(0).ok(["rm", "s-1", "s-2"]);
    cluster.host(0).ok(["substrate", "rm", "s"]);
    cluster.kill_daemon(0);
    cluster.host(0).kill_whole_pager();
    // By other daemons, too.
    cluster.kill_daemon(1);
    cluster.start(1);
    let host = cluster.host(1);
    assert_eq!(host.sh("s-3", "peek 7"), "3");
    host.ok(["fork", "s-3"]);
    assert_eq!(host.sh("s-3-1", "peek 7"), "3");
    for number in [1, 2] {
        cluster.host(number).ok(["rm", "--all"]);
    }
    cluster.start(0);
    cluster.end();
}

fn activation(host: &Host, words: &[&str]) -> (Option<i32>, Vec<CloneResult>) {
    let all = [&["-o", "json", "substrate", "activate"], words].concat();
    let outcome = host.start(all, "").wait();
    let answer: ActivateResponse =
        serde_json::from_slice(&outcome.stdout).unwrap_or_else(|_| panic!("{}", outcome.stderr));
    (outcome.code, answer.vms)
}

fn made(all: &[CloneResult]) -> Vec<&str> {
    let vms = all.iter().filter_map(|one| match one {
        CloneResult::Vm(vm) => Some(vm.name.as_str()),
        CloneResult::Error(_) => None,
    });
    vms.collect()
}

fn why(all: &[CloneResult]) -> Vec<&str> {
    let errors = all.iter().filter_map(|one| match one {
        CloneResult::Vm(_) => None,
        CloneResult::Error(error) => Some(error.message.as_str()),
    });
    errors.collect()
}

#[test]
fn a_host_that_fails_costs_its_own_vms_and_keeps_nothing_of_them() {
    let mut cluster = Cluster::fake(3);
    docked_at_first(&cluster);
    let words = ["s", "--count", "3", "--to", "here,h1,h2"];
    // Its machine refuses the state.
    cluster.host(1).faults().set("load", Fault::Refuse);
    let (code, all) = activation(cluster.host(0), &words);
    assert_eq!((code, made(&all)), (Some(3), vec!["s-1", "s-3"]));
    assert!(why(&all)[0].contains("host h1"), "{:?}", why(&all));
    assert!(own(cluster.host(1)).is_empty());
    is_sound(cluster.host(1));
    // Its daemon is gone.
    cluster.kill_daemon(1);
    let (code, all) = activation(cluster.host(0), &words);
    assert_eq!((code, made(&all)), (Some(3), vec!["s-2", "s-5"]));
    assert!(why(&all)[0].contains("host h1"), "{:?}", why(&all));
    // A name that is taken there alone.
    cluster.start(1);
    cluster.host(1).ok(["run", "tiny", "--name", "s-6"]);
    let (code, all) = activation(cluster.host(0), &["s", "--as", "s-6", "--to", "h1"]);
    assert_eq!((code, made(&all).len()), (Some(1), 0));
    assert!(why(&all)[0].contains("s-6"), "{:?}", why(&all));
    assert_eq!(names(&own(cluster.host(1))), ["s-6"]);
    is_sound(cluster.host(1));
    let refused = cluster
        .host(0)
        .fails(["substrate", "activate", "s", "--to", "h7"]);
    assert!(refused.contains("h7"), "{refused}");
    (0..3).for_each(|number| drop(cluster.host(number).ok(["rm", "--all"])));
    cluster.host(0).ok(["substrate", "rm", "s"]);
    cluster.end();
}

#[test]
fn vms_of_which_the_one_that_asked_has_not_heard_are_ended() {
    let mut cluster = Cluster::fake(2);
    docked_at_first(&cluster);
    let pagers = cluster.host(1).processes("forkyard-pager");
    // None is made there without the pager's help.
    pagers.iter().for_each(Process::stop);
    let asked = cluster
        .host(0)
        .start(["substrate", "activate", "s", "--to", "h1"], "");
    eventually("the other to have been asked", || {
        waits_for_made(cluster.host(1))
    });
    cluster.kill_daemon(0);
    asked.wait();
    pagers.iter().for_each(Process::go_on);
    eventually("it to be made all the same", || {
        own(cluster.host(1)).len() == 1
    });
    cluster.start(0);
    eventually("it to be ended", || own(cluster.host(1)).is_empty());
    is_sound(cluster.host(1));
    cluster.host(0).ok(["substrate", "rm", "s"]);
    cluster.end();
}

#[test]
fn what_a_host_has_of_a_substrate_is_not_sent_there() {
    let cluster = Cluster::fake(2);
    docked_at_first(&cluster);
    let (here, there) = (cluster.host(0), cluster.host(1));
    // Of its disk nothing but what differs from the guest image, which both have.
    let first = activate(here, &["s", "--to", "h1"]).remove(0);
    all_has_come(there);
    let sent = sent_to(here);
    let data: SubstrateInspect = here.json(["substrate", "inspect", "s"]);
    let parts = data.parts.expect("docked");
    // Most pages are zero, and take a few bytes together.
    assert!(sent < parts.disk.raw.0 / 8, "{sent} bytes: {parts:?}");
    // Nothing of what is there for VMs that run: what is said to each other apart.
    activate(here, &["s", "--to", "h1"]);
    let again = sent_to(here) - sent;
    assert!(again < 4096, "{again} bytes");
    there.ok(["rm", "--all"]);
    assert_eq!(first.host.as_deref(), Some("h1"));
    // Nothing of what was pulled there.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    here.ok(["substrate", "push", "s", &path]);
    let pulled = format!("{path}/s");
    let key = here.ok(["substrate", "key"]);
    there.ok(["substrate", "pull", &pulled, "--trust", key.trim()]);
    let vm = activate(here, &["s", "--as", "web", "--to", "h1"]).remove(0);
    assert!(vm.awaits.is_empty());
    assert!(sent_to(here) - sent < 8192);
    let refused = there.fails(["substrate", "rm", "s"]);
    assert!(refused.contains("web lies over"), "{refused}");
    there.ok(["rm", "--all"]);
    for host in [here, there] {
        host.ok(["substrate", "rm", "s"]);
    }
    cluster.end();
}

/// Bytes that a host has sent to others.
fn sent_to(host: &Host) -> u64 {
    let metrics = host.get("/metrics");
    let lines = metrics.lines();
    let sent = lines.filter(|line| line.starts_with("forkyard_link_bytes_sent_total"));
    sent.map(|line| {
        let value = line.rsplit_once(' ').expect("a value").1;
        value.parse::<u64>().expect("a number")
    })
    .sum()
}

#[test]
fn a_cluster_spreads_them_by_the_room_that_it_has_reserved() {
    let mut cluster = Cluster::of_fake_nodes(3);
    cluster.join(1);
    cluster.join(2);
    docked_at_first(&cluster);
    let host = cluster.host(0);
    let all = activate(host, &["s", "--count", "6", "--spread"]);
    let per_host = |name: Option<&str>| all.iter().filter(|vm| vm.host.as_deref() == name).count();
    assert_eq!([None, Some("h1"), Some("h2")].map(per_host), [2, 2, 2]);
    for vm in &all {
        // Whichever node is asked.
        assert_eq!(host.sh(vm.name.as_str(), "peek 7"), "3");
    }
    // They take room, and their names, in the whole cluster.
    let taken = all[5].name.as_str();
    let refused = host.fails(["substrate", "activate", "s", "--as", taken, "--to", "h1"]);
    assert!(refused.contains(&format!("{taken} already")), "{refused}");
    let listed: Vec<ListedVm> = host.json(["ps"]);
    assert_eq!(listed.len(), 6);
    let nodes: Vec<NodeView> = host.json(["node", "ls"]);
    assert!(nodes.iter().all(|node| node.taken.vcpus == 2), "{nodes:?}");
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    cluster.end();
}
