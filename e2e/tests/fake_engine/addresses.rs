//! Addresses that VMs have outside the host: which VM has which, and what is left of them.

use crate::substrates::activate;
use forkyard_e2e::{Cluster, Host};
use forkyard_types::VmView;
use std::net::UdpSocket;

const DOCK: [&str; 7] = ["substrate", "dock", "p", "--name", "s", "--kind", "public"];

fn shown(vm: &VmView) -> String {
    let leads: Vec<_> = vm.published.iter().map(ToString::to_string).collect();
    leads.join(" ")
}

/// Addresses that the host takes packets for.
fn taken(host: &Host, ips: &[&'static str]) -> Vec<bool> {
    let ips = ips.to_vec();
    host.within(move || {
        let is_own = |ip: &&str| UdpSocket::bind((*ip, 0)).is_ok();
        ips.iter().map(is_own).collect()
    })
}

#[test]
fn vms_of_a_substrate_have_an_address_each_which_their_clones_do_not_have() {
    let host = Host::fake();
    let _outside = host.outside();
    host.ok(["run", "tiny", "--name", "p"]);
    host.ok(DOCK);
    let range = ["--net", "bridge", "--ip", "192.0.2.7-192.0.2.8"];
    let words = [&["s", "--as", "w", "--count", "2"], &range[..]].concat();
    let made = activate(&host, &words);
    let each: Vec<_> = made.iter().map(shown).collect();
    assert_eq!(each, ["192.0.2.7/bridge", "192.0.2.8/bridge"]);
    let name = made[0].name.as_str();
    assert_eq!(host.fork(name, 1)[0].published, []);
    let ips = ["192.0.2.7", "192.0.2.8", "192.0.2.9"];
    assert_eq!(taken(&host, &ips), [true, true, false]);
    // One that is taken costs the others, too, before any is made.
    let count = host.vms().len();
    let again = ["--net", "bridge", "--ip", "192.0.2.8-192.0.2.9"];
    let words = [&["substrate", "activate", "s", "--count", "2"], &again[..]].concat();
    let refused = host.start(words.iter(), "").wait().exited(1);
    assert!(refused.stderr.contains("192.0.2.8"), "{}", refused.stderr);
    for wrong in [
        // Three addresses for two.
        &["--ip", "192.0.2.20-192.0.2.22", "--count", "2"][..],
        &["--ip", "192.0.2.20", "--ip", "192.0.2.20"],
        &["--ip", "192.0.2.1"],
        // The neighbour.
        &["--ip", "192.0.2.2"],
        &["--ip", "192.0.2.255"],
        &["--ip", "198.51.100.9"],
        &["--ip", "10.128.0.7"],
    ] {
        let words = [&["substrate", "activate", "s", "--net", "bridge"], wrong].concat();
        let outcome = host.start(words.iter(), "").wait().exited(1);
        assert!(!outcome.stderr.is_empty(), "{wrong:?}");
    }
    let loopback = ["run", "tiny", "--net", "routed", "--ip", "127.0.0.1"];
    host.start(loopback, "").wait().exited(2);
    host.fails(["run", "tiny", "--net", "routed", "--ip", "192.0.2.7"]);
    assert_eq!(host.vms().len(), count, "nothing was made");
    host.ok(["rm", name]);
    // The clone keeps the family, and the address is free.
    assert_eq!(taken(&host, &ips), [false, true, false]);
    host.ok(["publish", made[1].name.as_str(), "192.0.2.7/bridge"]);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn an_address_is_kept_over_daemons_and_boots_and_given_back() {
    let host = Host::fake();
    let _outside = host.outside();
    let near = ["--net", "bridge", "--ip", "192.0.2.7"];
    let words = [&["run", "tiny", "--name", "p"], &near[..]].concat();
    host.start(words.iter(), "").wait().exited(0);
    // One that joins has that family's way out, and an address of its own all the same.
    let joins = [
        "run", "tiny", "--name", "q", "--join", "p", "--net", "routed",
    ];
    let words = [&joins[..], &["--ip", "203.0.113.7"]].concat();
    host.start(words.iter(), "").wait().exited(0);
    let ips = ["192.0.2.7", "203.0.113.7"];
    let all = || (shown(&host.vm("p")), shown(&host.vm("q")));
    let both = ("192.0.2.7/bridge".into(), "203.0.113.7/routed".into());
    assert_eq!(all(), both);
    host.kill_9("forkyardd");
    assert_eq!(all(), both);
    assert_eq!(taken(&host, &ips), [true, true]);
    host.fails(["publish", "q", "192.0.2.7/routed"]);
    host.ok(["restart", "q"]);
    assert_eq!(all(), both);
    host.ok(["stop", "p"]);
    assert_eq!(taken(&host, &ips), [false, true]);
    host.ok(["start", "p"]);
    assert_eq!(all(), both);
    assert_eq!(taken(&host, &ips), [true, true]);
    host.ok(["unpublish", "q", "203.0.113.7"]);
    let none = host.fails(["unpublish", "q", "203.0.113.7"]);
    assert!(none.contains("203.0.113.7"), "{none}");
    assert_eq!(taken(&host, &ips), [true, false]);
    let diagnosis = host.ok(["doctor"]);
    assert!(!diagnosis.contains("203.0.113.7"), "{diagnosis}");
    host.ok(["rm", "p"]);
    assert_eq!(taken(&host, &ips), [false, false]);
    host.end();
}

#[test]
fn an_address_moves_with_its_vm_and_each_host_gives_those_of_the_vms_that_it_makes() {
    let cluster = Cluster::fake(2);
    let host = cluster.host(0);
    host.ok(["run", "tiny", "--name", "p"]);
    host.ok(DOCK);
    let range = ["--net", "routed", "--ip", "203.0.113.5-203.0.113.7"];
    let words = ["s", "--as", "w", "--count", "3", "--to", "h1,here,h1"];
    let made = activate(host, &[&words[..], &range].concat());
    let mut each: Vec<_> = made.iter().map(shown).collect();
    each.sort();
    let routed = |n: u8| format!("203.0.113.{n}/routed");
    assert_eq!(each, [routed(5), routed(6), routed(7)]);
    let here = made.iter().find(|vm| vm.host.is_none()).expect("one here");
    let ips = ["203.0.113.5", "203.0.113.6", "203.0.113.7"];
    let at = |n| taken(cluster.host(n), &ips);
    let (before, there) = (at(0), at(1));
    assert_eq!(before.iter().filter(|it| **it).count(), 1);
    assert!(before.iter().zip(&there).all(|(here, there)| here != there));
    host.ok(["migrate", here.name.as_str(), "--to", "h1"]);
    assert_eq!(at(0), [false; 3]);
    assert_eq!(at(1), [true; 3]);
}
