//! Guests that want too much, and what a QEMU that a guest has taken over could do.

use forkyard_e2e::Host;
use std::{collections::BTreeSet, fs};

#[test]
fn a_fork_bomb_is_refused_and_its_neighbours_do_not_notice() {
    let host = Host::new();
    let bounds = [
        ("FORKYARD_GUEST_CLONES", "3"),
        ("FORKYARD_GUEST_GENERATIONS", "2"),
        ("FORKYARD_GUEST_FORKS", "6"),
    ];
    host.start_with(["run", "tiny", "--name", "p"], bounds)
        .wait()
        .exited(0);
    host.ok(["run", "tiny", "--name", "q"]);
    let says = |script: &str| {
        let words = ["exec", "p", "--", "sh", "-c", script];
        let outcome = host.start(words, "").wait();
        format!("{}{}", outcome.text(), outcome.stderr)
    };
    let deep = says("vmfork run -n 1 -- vmfork run -n 1 -- vmfork run -n 1 -- true");
    assert!(deep.contains("2 deep"), "{deep}");
    let wide = says("vmfork run -n 200 -- true");
    assert!(wide.contains("3 of 200"), "{wide}");
    let often = says("while vmfork run -n 1 -- true; do :; done");
    assert!(often.contains("6 times within a minute"), "{often}");

    // What was granted to one is nothing to the other, who may do as before.
    let ticket = host.ok(["exec", "p", "--", "vmfork", "ticket", "1"]);
    host.fails(["exec", "q", "--", "vmfork", "kill", &ticket]);
    host.fails(["exec", "q", "--", "vmfork", "join", &ticket]);
    host.ok(["exec", "q", "--", "vmfork", "run", "-n", "2", "--", "true"]);
    // Nor is he bound who forks p from outside.
    host.fork("p", 4);
    host.end();
}

#[test]
fn a_qemu_has_no_rights_no_network_and_a_user_of_its_own() {
    let host = Host::with_p([]);
    let clone = host.fork("p", 1).remove(0);
    let mut users = BTreeSet::new();
    let daemon = host.processes("forkyardd").remove(0).pid;
    for vm in [host.vm("p"), clone] {
        let pid = vm.pid.expect("it runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            value.unwrap_or_else(|| panic!("{name} in {status}"))
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0".repeat(16), "{set} of {}", vm.name);
        }
        assert_eq!(field("NoNewPrivs"), "1", "{}", vm.name);
        assert_eq!(field("Seccomp"), "2", "{}", vm.name);
        let ids: BTreeSet<_> = field("Uid").split('\t').collect();
        assert_eq!(ids.len(), 1, "real, effective and all others: {ids:?}");
        assert!(!ids.contains("0"), "{} is root", vm.name);
        assert!(users.insert(field("Uid").to_owned()), "two VMs, one user");
        let network = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).expect("a network");
        assert_ne!(network(pid), network(daemon), "{}", vm.name);
    }
    host.end();
}
