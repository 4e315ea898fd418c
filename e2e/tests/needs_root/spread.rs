//! Tickets of guests whose clones are on several hosts of a cluster.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{ListedVm, NodeView, VmInspect};
use std::collections::BTreeMap;

/// Script of a clone until it is let go on.
const UNTIL_TOLD: &str = "until [ -e /m/go ]; do sleep 0.2; done";

/// Two nodes, of which the first has room for one clone of `p`, which runs there.
fn two() -> Cluster {
    let mut cluster = Cluster::of_waking_nodes(2);
    cluster.kill_daemon(0);
    cluster.tell(0, "FORKYARD_OFFER_VCPUS", "2");
    cluster.start(0);
    cluster.join(1);
    cluster
        .host(0)
        .ok(["run", "tiny", "--name", "p", "--node", "h0"]);
    cluster.host(0).sh("p", "mkdir -p /m");
    cluster
}

/// VMs but `p`, and the nodes they are on.
fn clones(from: &Host) -> BTreeMap<String, String> {
    let vms: Vec<ListedVm> = from.json(["ps"]);
    let clones = vms.into_iter().filter(|it| it.vm.name.as_str() != "p");
    clones
        .map(|it| {
            let node = it
                .node
                .map_or_else(|| "here".to_owned(), |it| it.to_string());
            (it.vm.name.to_string(), node)
        })
        .collect()
}

/// Has `p` get three clones that do this, and join them.
fn begin(host: &Host, each: &str) {
    let script = format!(
        "vmfork ticket 3 >/m/t; n=$(vmfork clone $(cat /m/t)); \
         if [ $n = 0 ]; then touch /m/cloned; vmfork join $(cat /m/t) >/m/joining; \
         mv /m/joining /m/joined; else {each}; fi"
    );
    host.sh("p", &format!("({script}) </dev/null >/m/said 2>&1 &"));
}

/// Has p begin, and waits until it has three clones. Nothing runs in p until they are there: it
/// would be in them, too.
#[track_caller]
fn with_three(host: &Host, each: &str) -> BTreeMap<String, String> {
    begin(host, each);
    eventually("three clones", || clones(host).len() == 3);
    host.wait_in("p", "[ -e /m/cloned ]");
    clones(host)
}

/// Lets clones go on that wait for a file. What comes of it may cut off the client that says so.
fn let_go<'a>(from: &Host, clones: impl IntoIterator<Item = &'a String>) {
    for clone in clones {
        from.start(["exec", clone, "--", "touch", "/m/go"], "")
            .wait();
    }
}

/// Waits until what clones took of `h0` is given back, which is not at once when they are gone.
fn room_for_one(from: &Host) {
    eventually("room for one here", || {
        let nodes: Vec<NodeView> = from.json(["node", "ls"]);
        nodes
            .iter()
            .any(|node| node.name.as_str() == "h0" && node.taken.vcpus == 1)
    });
}

fn joined(host: &Host) -> String {
    host.wait_in("p", "[ -e /m/joined ]");
    host.sh("p", "cat /m/joined")
}

#[test]
fn a_guests_ticket_has_clones_on_other_hosts_and_its_join_has_their_statuses() {
    let mut cluster = two();
    let a = cluster.host(0);
    // What they print comes to the parent over the family's network.
    let job = "echo $FORKYARD_ID on $(hostname); exit 0";
    let told = a.sh(
        "p",
        &format!("vmfork run -n 3 --no-prefix -- sh -c '{job}'"),
    );
    let mut lines: Vec<_> = told.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(
        lines[0].starts_with("1 on p-") && lines[2].starts_with("3 on p-"),
        "{told}"
    );
    eventually("their end", || clones(a).is_empty());

    room_for_one(a);
    // Daemons come and go, wherever.
    let there = with_three(a, &format!("{UNTIL_TOLD}; vmfork exit $((n+20))"));
    let on = |node: &str| there.values().filter(|at| *at == node).count();
    assert_eq!((on("h1"), there.len()), (2, 3), "{there:?}");
    cluster.kill_daemon(0);
    cluster.kill_daemon(1);
    cluster.start(1);
    cluster.start(0);
    let a = cluster.host(0);
    let_go(a, there.keys());
    assert_eq!(joined(a), "1 21\n2 22\n3 23");
    eventually("their end", || clones(a).is_empty());
    assert_eq!(a.json::<VmInspect>(["inspect", "p"]).forks.len(), 2);

    // It ends as a substrate, of which each of them wakes one.
    a.ok(["substrate", "dock", "p", "--name", "s", "--kind", "private"]);
    a.ok([
        "substrate",
        "activate",
        "s",
        "--count",
        "2",
        "--to",
        "h1,here",
    ]);
    let there = clones(a);
    let nodes: Vec<_> = there.values().map(String::as_str).collect();
    assert_eq!(nodes, ["h0", "h1"], "{there:?}");
    for vm in there.keys() {
        let said = a.sh(vm, "hostname; cat /m/joined");
        assert_eq!(said, format!("{vm}\n1 21\n2 22\n3 23"));
    }
    a.ok(["rm", "--all"]);
    a.ok(["substrate", "rm", "s"]);
    cluster.end();
}

#[test]
fn a_ticket_that_is_killed_ends_clones_on_other_hosts_and_lost_hosts_end_a_join() {
    let cluster = two();
    let a = cluster.host(0);
    with_three(a, "sleep 600");
    // A request that waits for them is told that there is nothing to wait for any more.
    a.sh("p", "vmfork kill $(cat /m/t)");
    // What a node says of others may be a second old.
    eventually("their end", || clones(a).is_empty());
    a.wait_in("p", "! pidof vmfork");

    room_for_one(a);
    a.sh("p", "rm /m/cloned /m/said; rm -f /m/joined");
    let there = with_three(
        a,
        &format!("[ $n != 1 ] || {{ {UNTIL_TOLD}; vmfork exit 7; }}; sleep 600"),
    );
    cluster.cut(1);
    let here = there.iter().filter(|(_, node)| *node == "h0");
    let_go(a, here.map(|(clone, _)| clone));
    assert_eq!(joined(a), "1 7\n2 lost\n3 lost");
    // They ran on; they are not awaited when their host is heard of again.
    assert_eq!(clones(a).len(), 2);
    cluster.mend(1);
    eventually("their end", || clones(a).is_empty());
    cluster.end();
}
