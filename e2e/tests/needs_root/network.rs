//! Tests of a family's rights beyond its own network.

use forkyard_e2e::{
    Host, eventually,
    outside::{self, HOST, PRIVATE, RESOLVER, SERVER},
};
use forkyard_types::{Diagnosis, VmInspect, VmView};
use std::{fs, net::Ipv4Addr};

const PORT: u16 = 8080;

fn forwards(host: &Host) -> bool {
    let switch = host.within(|| fs::read_to_string("/proc/sys/net/ipv4/ip_forward"));
    switch.expect("read").trim() == "1"
}

#[test]
fn clones_have_their_parents_way_out_and_are_known_to_their_siblings_at_once() {
    let host = Host::new();
    let outside = host.outside();
    for address in [SERVER, PRIVATE] {
        outside.greet(address, PORT);
    }
    host.ok([
        "run", "tiny", "--name", "p", "--net", "nat", "--rate", "50mbit",
    ]);
    assert!(forwards(&host));
    let seen: Diagnosis = host.json(["doctor"]);
    assert!(
        seen.notes.iter().any(|note| note.contains("ip_forward")),
        "{seen:?}"
    );
    // Asked for before it is there: the parent remembers that there was no answer.
    host.sh("p", "ping -c 1 -W 1 10.128.0.3 || true");
    let neighbour = || host.sh("p", "awk '$1 == \"10.128.0.3\" { print $4 }' /proc/net/arp");
    assert!(
        ["", "00:00:00:00:00:00"].contains(&neighbour().as_str()),
        "{}",
        neighbour()
    );
    let clone = host.fork("p", 2).remove(0);
    assert_eq!(clone.address.ip, Ipv4Addr::new(10, 128, 0, 3));
    // The clone has said where it is; no host has asked again.
    eventually("the clone is known", || {
        neighbour() == clone.address.mac.to_string()
    });
    for name in ["p-1", "p-2", "p"] {
        let ask = |address: Ipv4Addr| format!("nc -w 10 {address} {PORT} </dev/null");
        assert_eq!(
            host.sh(name, &ask(SERVER)),
            format!("hello {HOST}"),
            "{name}"
        );
        let shut = host.sh(name, &format!("{} 2>&1 || echo shut", ask(PRIVATE)));
        assert!(shut.ends_with("shut"), "{name}: {shut}");
        let resolvers = host.sh(name, "cat /etc/resolv.conf");
        assert_eq!(resolvers, format!("nameserver {RESOLVER}"), "{name}");
    }
    let policy = host.json::<VmInspect>(["inspect", "p-2"]).network;
    assert_eq!(
        policy.rate.map(|rate| rate.to_string()),
        Some("50mbit".into())
    );
    let one = clone.address.ip;
    host.sh("p-2", &format!("ping -c 1 -W 60 {one}"));
    // A client that asks, rather than the agent that is told.
    let script = "#!/bin/sh\n[ $1 = bound ] && echo $ip $router $dns >/m/bound\n";
    host.sh("p-2", "mkdir -p /m && mount -t tmpfs m /m");
    host.put("p-2", "/bin/bound", script);
    let ask = "device=$(ls /sys/class/net | grep -v lo); busybox udhcpc -f -n -q -t 10 -i $device -s /bin/bound 2>&1";
    let told = host.sh("p-2", ask);
    let lease = format!("{} {} {RESOLVER}", host.vm("p-2").address.ip, "10.128.0.1");
    assert_eq!(host.sh("p-2", "cat /m/bound"), lease, "{told}");
    host.ok(["rm", "--all"]);
    host.nothing_left();
    assert!(!forwards(&host), "it was off before");
}

#[test]
fn clones_of_a_vm_that_is_flooded_while_it_holds_still_hear_and_are_heard() {
    let host = Host::with_woken_p([]);
    let flooder = host.fork("p", 1).remove(0).name;
    let (flooder, p) = (flooder.as_str(), host.vm("p").address.ip);
    let leave =
        |vm: &str, script: &str| host.sh(vm, &format!("({script}) >/dev/null 2>&1 </dev/null &"));
    // Its end of what it says would be the flood's.
    leave("p", "sleep 600 | nc -l -p 9 >/dev/null");
    leave(
        flooder,
        &format!("while [ ! -e /m/enough ]; do nc {p} 9 </dev/zero; done"),
    );
    let arrived = || {
        let count = host.sh("p", "cat /sys/class/net/e*/statistics/rx_packets");
        count.parse::<u64>().expect("a number")
    };
    let begun = arrived();
    eventually("a flood", || arrived() > begun + 1000);
    let clones = host.fork("p", 3);
    let still = arrived();
    eventually("the flood to go on", || arrived() > still);
    host.sh(flooder, "touch /m/enough; killall nc || true");
    let pings = |from: &str, to: &VmView| {
        let ping = format!("ping -c 1 -W 2 {}", to.address.ip);
        // Behind what is left of the flood.
        host.wait_in(from, &ping);
    };
    let others = [host.vm("p"), host.vm(flooder)];
    for clone in &clones {
        for other in &others {
            pings(clone.name.as_str(), other);
            pings(other.name.as_str(), clone);
        }
    }
    host.end();
}

#[test]
fn a_published_port_survives_forks_and_its_daemon_and_ends_with_its_vm() {
    let host = Host::new();
    let outside = host.outside();
    outside.greet(SERVER, PORT);
    let words = [
        "run",
        "tiny",
        "--name",
        "p",
        "--publish",
        "8080:80",
        "-p",
        "127.0.0.1:8081:80",
    ];
    let p: VmView = host.json(words);
    let published: Vec<_> = p.published.iter().map(ToString::to_string).collect();
    assert_eq!(published, ["8080:80/tcp", "127.0.0.1:8081:80/tcp"]);
    host.sh(
        "p",
        "while echo from $(hostname) | nc -l -p 80; do :; done >/dev/null 2>&1 </dev/null &",
    );
    // Between one listener and the next there is none.
    let from_outside = || {
        eventually("an answer outside", || outside.ask(HOST, PORT).is_ok());
        outside.ask(HOST, PORT).unwrap_or_else(|_| "from p".into())
    };
    let from_here = |port| {
        let ask = move || outside::ask(Ipv4Addr::LOCALHOST, port);
        eventually("an answer here", || {
            host.within(ask).is_ok_and(|said| said == "from p")
        });
    };
    assert_eq!(from_outside(), "from p");
    from_here(PORT);
    from_here(8081);
    assert!(outside.ask(HOST, 8081).is_err(), "for the loopback alone");

    host.fork("p", 2);
    assert_eq!(from_outside(), "from p");
    host.kill_9("forkyardd");
    assert_eq!(from_outside(), "from p");
    assert_eq!(host.vm("p").published, p.published);
    assert_eq!(host.vm("p-1").published, []);
    assert_eq!(from_outside(), "from p");
    from_here(PORT);
    let told = host.fails(["run", "tiny", "--publish", "8080:1"]);
    assert!(
        told.contains("8080") && told.contains("another port"),
        "{told}"
    );
    let shut = format!("nc -w 10 {SERVER} {PORT} </dev/null 2>&1 || echo shut");
    assert!(
        host.sh("p-1", &shut).ends_with("shut"),
        "it may be reached, not reach"
    );

    host.ok(["stop", "p"]);
    assert_eq!(host.vm("p").published, []);
    assert!(outside.ask(HOST, PORT).is_err());
    let free = || std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).is_ok();
    assert!(host.within(free), "the port is free for others");
    host.end();
}
