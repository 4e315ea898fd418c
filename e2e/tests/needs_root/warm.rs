//! Shells made ready before a fork is requested.

use forkyard_e2e::Host;
use std::collections::BTreeSet;

#[test]
fn a_fork_from_warm_shells_starts_no_qemu_and_sees_what_was_written_after_they_started() {
    let host = Host::with_p(["--warm", "2"]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/d/old bs=64k count=64 2>/dev/null; sync",
    );
    host.wait_warm("p", 2);
    for round in 1..=2 {
        host.wait_warm("p", 2);
        let ready: BTreeSet<_> = host
            .processes("qemu-system-x86_64")
            .into_iter()
            .map(|q| q.pid)
            .collect();
        // New clusters, and old ones written over, and the file system's own.
        host.sh("p", &format!("dd if=/dev/urandom of=/m/new bs=64k count=128 2>/dev/null; cp /m/new /d/new{round}; dd if=/dev/urandom of=/d/old bs=64k count=16 conv=notrunc 2>/dev/null; mkdir /d/{round}; sync"));
        let script = format!("md5sum /m/new /d/new{round} /d/old; ls -d /d/*");
        let told = host.sh("p", &script);
        for clone in host.fork("p", 2) {
            assert!(
                ready.contains(&clone.pid.expect("it runs")),
                "{} was not warm",
                clone.name
            );
            let name = clone.name.as_str();
            host.sh(name, "sync; echo 3 >/proc/sys/vm/drop_caches");
            assert_eq!(host.sh(name, &script), told, "{name}");
            host.ok(["rm", name]);
        }
    }
    host.end();
}

#[test]
fn a_fork_of_more_than_are_warm_makes_the_rest() {
    let host = Host::with_p(["--warm", "1"]);
    host.wait_warm("p", 1);
    for clone in host.fork("p", 3) {
        assert_eq!(
            host.sh(clone.name.as_str(), "hostname"),
            clone.name.as_str()
        );
    }
    host.end();
}
