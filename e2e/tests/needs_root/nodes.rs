//! Hosts that are nodes of one cluster: membership, where VMs and clones are, and
//! what becomes of them when a node or etcd dies.

use crate::cluster::{last_fork, made};
use forkyard_e2e::{Cluster, Host, Links, eventually};
use forkyard_types::{
    CloneResult, ForkPhase, ForkResponse, ListedVm, NodeState, NodeView, VmState,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Pages of data that only `p` has, which do not pack.
const FILLED: u64 = 6_300_000 / 4096;

fn state(from: &Host, node: &str) -> Option<NodeState> {
    let nodes: Vec<NodeView> = from.json(["node", "ls"]);
    let found = nodes.into_iter().find(|it| it.name.as_str() == node);
    found.map(|it| it.state)
}

fn listed(from: &Host) -> BTreeMap<String, ListedVm> {
    let vms: Vec<ListedVm> = from.json(["ps"]);
    let count = vms.len();
    let named = vms.into_iter().map(|it| (it.vm.name.to_string(), it));
    let named: BTreeMap<_, _> = named.collect();
    assert_eq!(named.len(), count, "each once");
    named
}

fn home(from: &Host, vm: &str) -> String {
    let node = listed(from).remove(vm).expect("listed").node;
    node.expect("of a cluster").to_string()
}

#[test]
fn clones_are_spread_over_nodes_and_found_from_each() {
    let mut cluster = Cluster::of_nodes(3);
    let etcd = cluster.etcd();
    cluster.tell(1, "FORKYARD_CLUSTER", etcd);
    let told = cluster.refused(1);
    assert!(told.contains("node invite"), "{told}");
    cluster.join(1);
    cluster.join(2);
    let [a, b, c] = [0, 1, 2].map(|number| cluster.host(number));
    let told = b.fails(["node", "invite"]);
    assert!(told.contains("h0"), "{told}");
    for node in ["h0", "h1", "h2"] {
        assert_eq!(state(c, node), Some(NodeState::Active));
    }

    // Asked of one node, run on another, forked by way of the third.
    b.ok(["run", "tiny", "--name", "p", "--node", "h0"]);
    assert_eq!(home(c, "p"), "h0");
    // By way of a node that does not have it, its vCPUs are scheduled where it is.
    let set: Value = c.json(["sched", "set", "p", "--level", "observe"]);
    assert_eq!(set["vms"][0]["name"], "p", "{set}");
    let there: Value = a.json(["sched", "show"]);
    assert_eq!(there["vms"][0]["pid"], set["vms"][0]["pid"]);
    c.fails(["sched", "show"]);
    c.ok(["sched", "release", "p"]);
    let fill = "mkdir -p /m /d && mount -t tmpfs m /m && \
        dd if=/dev/urandom of=/m/a bs=60k count=100 2>/dev/null && dd if=/dev/urandom of=/d/a bs=60k count=5 2>/dev/null";
    a.sh("p", fill);
    let before = a.sums("p", "/m/a /d/a");
    let answer: ForkResponse = c.json(["fork", "p", "-n", "6", "--spread"]);
    // Whichever node is asked how far which was.
    let over = last_fork(b);
    assert_eq!(over.len(), 3, "{over:?}");
    assert!(over.values().all(|host| host.phase == ForkPhase::Ready));
    assert_eq!(over.values().map(|host| host.ready).sum::<u16>(), 6);
    let clones = answer.clones.iter().map(|clone| match clone {
        CloneResult::Vm(vm) => vm.name.to_string(),
        CloneResult::Error(error) => panic!("a clone was not made: {error}"),
    });
    let clones: BTreeSet<_> = clones.collect();
    assert_eq!(clones.len(), 6);
    let mut homes = BTreeMap::new();
    for clone in &clones {
        // The last one in the list has the least to do with any of them.
        assert_eq!(c.sums(clone, "/m/a /d/a"), before, "{clone}");
        *homes.entry(home(b, clone)).or_insert(0) += 1;
    }
    // One network, on whichever node.
    let parent = listed(c).remove("p").expect("listed").vm.address.ip;
    for clone in &clones {
        c.sh(clone, &format!("ping -c 1 -W 60 {parent}"));
    }
    // p itself takes room, too.
    let spread = [("h0", 2), ("h1", 2), ("h2", 2)];
    let other = [("h0", 1), ("h1", 3), ("h2", 2)];
    let third = [("h0", 1), ("h1", 2), ("h2", 3)];
    let fair = [spread, other, third].map(|it| it.map(|(node, count)| (node.to_owned(), count)));
    assert!(fair.map(BTreeMap::from).contains(&homes), "{homes:?}");
    let taken = c.fails(["run", "tiny", "--name", "p"]);
    assert!(taken.contains("on node h0"), "{taken}");

    // Where no group passes clones are whole, too: each is served alone.
    cluster.deafen(2);
    cluster.count_groups();
    let sent = || Links::of(a);
    let sent_before = sent();
    let words = [
        "fork",
        "p",
        "-n",
        "2",
        "--to",
        "h1,h2",
        "--settle",
        "--settled",
    ];
    for (node, clone) in [b, c].iter().zip(made(a.json(words))) {
        assert_eq!(node.sums(clone.name.as_str(), "/m/a /d/a"), before);
        a.ok(["rm", clone.name.as_str()]);
    }
    let sent = sent();
    for host in [1, 2] {
        let alone = |links: &Links| links.with(cluster.address(host), "pages_sent");
        let alone = alone(&sent) - alone(&sent_before);
        assert!(alone > FILLED, "{alone} to host {host}: {sent:?}");
    }
    let group = sent.group("pages_sent") - sent_before.group("pages_sent");
    assert!(group < FILLED / 10, "{group} to both: {sent:?}");
    let [heard, deaf] = [1, 2].map(|host| cluster.of_groups(host));
    assert!(
        heard > 0 && deaf == 0,
        "{heard} and {deaf} frames to groups"
    );

    // Nodes by name, one of which takes nothing new: it costs its share.
    a.ok(["node", "drain", "h2"]);
    let words = ["fork", "p", "-n", "4", "--to", "h1,h2", "-o", "json"];
    let outcome = a.start(words, "").wait().exited(3);
    let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("JSON");
    let mut refused = 0;
    for clone in &answer.clones {
        match clone {
            CloneResult::Vm(vm) => assert_eq!(vm.host.as_deref(), Some("h1")),
            CloneResult::Error(why) => {
                assert!(why.message.contains("draining"), "{why}");
                refused += 1;
            }
        }
    }
    assert_eq!((answer.clones.len(), refused), (4, 2));
    let told = a.fails(["fork", "p", "--to", "h2"]);
    assert!(told.contains("draining"), "{told}");
    let told = a.fails(["fork", "p", "--to", "h9"]);
    assert!(told.contains("h9"), "{told}");
    cluster.end();
}

#[test]
fn a_dead_nodes_vms_are_lost_alone_and_it_can_be_forgotten() {
    let mut cluster = Cluster::of_nodes(2);
    cluster.join(1);
    let [a, b] = [0, 1].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "p"]);
    // The emptiest node is the one that does not have it.
    a.ok(["run", "tiny", "--name", "q", "--spread"]);
    assert_eq!(home(a, "q"), "h1");
    assert_eq!(b.sh("p", "hostname"), "p");

    cluster.die(1);
    let a = cluster.host(0);
    eventually("the loss", || state(a, "h1") == Some(NodeState::Lost));
    let lost = listed(a).remove("q").expect("still listed");
    assert!(lost.lost && lost.vm.silence.is_some());
    let told = a.exec_refused("q");
    assert!(told.contains("is lost"), "{told}");
    assert_eq!(a.sh("p", "hostname"), "p");
    a.ok(["node", "rm", "h1", "--force"]);
    assert_eq!(state(a, "h1"), None);
    assert!(!listed(a).contains_key("q"));
    // What was removed is no node any more, whatever it believes.
    cluster.start(1);
    let told = cluster.host(1).fails(["run", "tiny"]);
    assert!(told.contains("was removed"), "{told}");
    cluster.end();
}

#[test]
fn a_node_without_its_lease_fences_itself_and_goes_on_when_it_has_it_again() {
    let mut cluster = Cluster::of_nodes(1);
    cluster.kill_daemon(0);
    // A daemon of its own would open to guests what the node closes to them.
    let host = cluster.host(0);
    let program = host.dist().join("bin/forkyard").display().to_string();
    let unset = [
        "CLUSTER",
        "NODE",
        "ADVERTISE",
        "LEASE",
        "ETCD_INSECURE",
        "FENCE",
    ];
    let unset = unset.map(|name| format!("--unset=FORKYARD_{name}"));
    let words = [&unset[..], &[program, "ps".into()]].concat();
    let refused = host
        .start_program("/usr/bin/env", words, "")
        .wait()
        .exited(4);
    let told = &refused.stderr;
    assert!(told.contains("a node of a cluster"), "{told}");
    cluster.tell(0, "FORKYARD_FENCE", "pause");
    cluster.start(0);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let is = |cluster: &Cluster, state| listed(cluster.host(0))["p"].vm.state == state;
    cluster.stop_etcd();
    eventually("the fence", || is(&cluster, VmState::Paused));
    let refused = cluster.host(0).fails(["run", "tiny"]);
    assert!(refused.contains("lost its lease"), "{refused}");
    // What the fence holds is let go also by the next daemon.
    cluster.kill_daemon(0);
    cluster.start(0);
    assert!(is(&cluster, VmState::Paused));
    cluster.start_etcd();
    eventually("the lease", || is(&cluster, VmState::Running));
    assert_eq!(cluster.host(0).sh("p", "hostname"), "p");
    cluster.end();
}
