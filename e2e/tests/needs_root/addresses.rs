//! Tests of addresses that VMs have outside the host.

use forkyard_e2e::{
    Host, eventually,
    outside::{self, HOST, SERVER},
};
use forkyard_types::VmView;
use std::net::Ipv4Addr;

const PORT: u16 = 8080;
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

#[test]
fn vms_are_reached_by_their_addresses_and_seen_with_them_outside() {
    let host = Host::new();
    let outside = host.outside();
    outside.learn_route(FAR, 32);
    outside.greet(SERVER, PORT);
    let near = [
        "run",
        "tiny",
        "--name",
        "near",
        "--net",
        "bridge",
        "--ip",
        "192.0.2.7",
    ];
    host.ok(near);
    let far: VmView = host.json([
        "run",
        "tiny",
        "--name",
        "far",
        "--net",
        "routed",
        "--ip",
        "203.0.113.7",
    ]);
    let leads: Vec<_> = far.published.iter().map(ToString::to_string).collect();
    assert_eq!(leads, ["203.0.113.7/routed"]);
    for name in ["near", "far"] {
        let serve =
            "while echo from $(hostname) | nc -l -p 80; do :; done >/dev/null 2>&1 </dev/null &";
        host.sh(name, serve);
    }
    let all = [("near", NEAR), ("far", FAR)];
    let is_reached = |name: &str, ip: Ipv4Addr| {
        assert!(outside.pings(ip), "{name}");
        // Between one listener and the next there is none.
        eventually("an answer outside", || {
            outside
                .ask(ip, 80)
                .is_ok_and(|said| said == format!("from {name}"))
        });
    };
    for (name, ip) in all {
        is_reached(name, ip);
        let seen = format!("nc -w 10 {SERVER} {PORT} </dev/null");
        assert_eq!(host.sh(name, &seen), format!("hello {ip}"));
    }
    // A clone reaches what its parent does, as the host.
    let clone = host.fork("near", 1).remove(0);
    let ask = format!("nc -w 10 {SERVER} {PORT} </dev/null");
    assert_eq!(host.sh(clone.name.as_str(), &ask), format!("hello {HOST}"));
    // A family reaches another's address as anything else outside, and nothing by another way.
    let over = format!("nc -w 10 {FAR} 80 </dev/null || true");
    eventually("an answer to the other VM", || {
        host.sh("near", &over) == "from far"
    });
    let inner = far.address.ip;
    let shut = host.sh(
        "near",
        &format!("nc -w 10 {inner} 80 </dev/null 2>&1 || echo shut"),
    );
    assert!(shut.ends_with("shut"), "{shut}");
    let here = move || outside::ask(NEAR, 80);
    eventually("an answer here", || {
        host.within(here).is_ok_and(|said| said == "from near")
    });

    host.kill_9("forkyardd");
    for (name, ip) in all {
        is_reached(name, ip);
        assert_eq!(host.vm(name).published.len(), 1, "{name}");
        is_reached(name, ip);
    }
    host.ok(["unpublish", "far", "203.0.113.7"]);
    assert!(!outside.pings(FAR) && outside.pings(NEAR));
    host.ok(["publish", clone.name.as_str(), "203.0.113.7/routed"]);
    assert!(outside.pings(FAR));
    host.ok(["rm", "near"]);
    assert!(!outside.pings(NEAR) && outside.pings(FAR));
    host.end();
}
