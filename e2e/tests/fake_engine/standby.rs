//! VMs of a substrate that are kept ready.

use crate::substrates::{activate, substrates};
use forkyard_e2e::{Fault, Host, eventually, is_sound};
use forkyard_types::{ByteCount, StandbyView, SubstrateInspect, VmView};

fn with_s() -> Host {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 3");
    let dock = ["substrate", "dock", "p", "--name", "s", "--kind"];
    host.start(dock.iter().chain(&["public"]), "")
        .wait()
        .exited(0);
    host
}

fn standby(host: &Host) -> StandbyView {
    substrates(host).remove(0).standby.expect("kept ready")
}

fn keep(host: &Host, count: &str) {
    let words = ["substrate", "standby", "s", "--memory", "65536", "--count"];
    host.start(words.iter().chain(&[count]), "")
        .wait()
        .exited(0);
}

fn machines(host: &Host) -> usize {
    host.processes(host.machine()).len()
}

#[test]
fn what_is_ready_is_taken_with_its_own_name_and_network_and_made_anew() {
    let host = with_s();
    keep(&host, "2");
    eventually("two are ready", || standby(&host).ready == 2);
    // No user sees them.
    assert!(host.vms().is_empty());
    assert!(substrates(&host)[0].vms.is_empty());
    let words = ["s", "--as", "web", "--net", "nat", "--max-clones", "1"];
    let web = activate(&host, &words).remove(0);
    assert_eq!(standby(&host).hits, 1);
    assert_eq!(host.sh("web", "peek 7; hostname"), "3\nweb");
    assert_eq!((web.parent, web.member.0), (None, 0));
    host.fork("web", 1);
    host.fails(["fork", "web", "-n", "1"]);
    host.json::<VmView>(["run", "--from", "s", "--name", "x", "--label", "a=b"]);
    assert_eq!(host.sh("x", "hostname"), "x");
    assert_ne!(host.vm("x").family, web.family);
    let labelled: Vec<VmView> = host.json(["ps", "--label", "a=b"]);
    assert_eq!(labelled.len(), 1);
    // A name that is taken costs none, and more than are ready are made as without.
    host.fails(["substrate", "activate", "s", "--as", "x"]);
    eventually("two are ready again", || standby(&host).ready == 2);
    let many = activate(&host, &["s", "--count", "4", "--as", "y"]);
    assert_eq!(many.len(), 4);
    let seen = standby(&host);
    assert!(seen.hits >= 4 && seen.hits + seen.misses == 6, "{seen:?}");
    // No more of them than are wanted, and then none.
    keep(&host, "1");
    eventually("one is ready", || standby(&host).ready == 1);
    keep(&host, "0");
    assert_eq!(substrates(&host)[0].standby, None);
    host.ok(["rm", "--all"]);
    is_sound(&host);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn a_daemon_that_is_killed_leaves_none_and_the_next_keeps_as_many_ready() {
    let host = with_s();
    keep(&host, "2");
    eventually("two are ready", || standby(&host).ready == 2);
    host.kill_9("forkyardd");
    eventually("two are ready again", || standby(&host).ready == 2);
    eventually("and no others", || machines(&host) == 2);
    // A substrate goes with what is ready of it.
    host.ok(["substrate", "rm", "s"]);
    is_sound(&host);
    assert_eq!(machines(&host), 0);
    host.end();
}

#[test]
fn one_that_is_broken_or_cannot_be_made_costs_no_activation() {
    let host = with_s();
    keep(&host, "1");
    eventually("one is ready", || standby(&host).ready == 1);
    // It dies unseen, and as it is taken.
    host.processes(host.machine()).remove(0).kill();
    activate(&host, &["s", "--as", "a"]);
    assert_eq!(host.sh("a", "hostname"), "a");
    eventually("one is ready", || standby(&host).ready == 1);
    host.faults().set("cont", Fault::Kill);
    activate(&host, &["s", "--as", "b"]);
    assert_eq!(host.sh("b", "hostname"), "b");
    // One more cannot be made, and why is said until it can.
    eventually("one is ready", || standby(&host).ready == 1);
    host.faults().set("shell", Fault::Refuse);
    keep(&host, "2");
    eventually("it is said", || standby(&host).problem.is_some());
    host.faults().clear("shell");
    eventually("two are ready", || {
        let seen = standby(&host);
        (seen.ready, seen.problem) == (2, None)
    });
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn as_many_are_ready_as_demand_asks_for_and_memory_has_room_for() {
    let host = with_s();
    keep(&host, "auto");
    let seen = standby(&host);
    assert_eq!((seen.wanted, seen.ready), (0, 0), "nothing was ever wanted");
    activate(&host, &["s", "--count", "3"]);
    eventually("as many as came at once", || standby(&host).ready == 3);
    activate(&host, &["s", "--count", "3", "--as", "z"]);
    let seen = standby(&host);
    assert_eq!((seen.hits, seen.misses), (3, 3), "{seen:?}");
    eventually("they are made anew", || standby(&host).ready >= 3);
    let tight = ["substrate", "standby", "s", "--count", "9", "--memory", "1"];
    host.ok(tight);
    eventually("as many as have room", || {
        let seen = standby(&host);
        let taken = u64::from(seen.ready) * seen.each.0;
        seen.limit.0 == 1 << 20 && seen.ready == seen.wanted && taken <= seen.limit.0
    });
    assert!(standby(&host).wanted < 9, "{:?}", standby(&host));
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn those_with_a_larger_disk_are_kept_beside_the_others_and_taken_by_its_size() {
    let host = with_s();
    let seen: SubstrateInspect = host.json(["substrate", "inspect", "s"]);
    let disk = ByteCount(seen.sizes.disk.0 + (64 << 20));
    let size = format!("{}M", disk.0 >> 20);
    let words = ["substrate", "standby", "s", "--memory", "65536"];
    let keep = |more: &[&str]| drop(host.start(words.iter().chain(more), "").wait().exited(0));
    keep(&["--count", "1", "--vm-disk", &size]);
    let larger = || substrates(&host).remove(0).standby_larger.remove(0);
    eventually("one is ready", || larger().ready == 1);
    assert_eq!(larger().disk, disk);
    // One that is wanted as it was docked is another.
    activate(&host, &["s"]);
    assert_eq!(larger().hits, 0);
    let vm = activate(&host, &["s", "--as", "web", "--disk", &size]).remove(0);
    assert_eq!((larger().hits, vm.name.as_str()), (1, "web"));
    let too_small = [
        "substrate",
        "standby",
        "s",
        "--count",
        "1",
        "--vm-disk",
        "1M",
    ];
    host.fails(too_small);
    keep(&["--count", "0", "--vm-disk", &size]);
    assert!(substrates(&host)[0].standby_larger.is_empty());
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}
