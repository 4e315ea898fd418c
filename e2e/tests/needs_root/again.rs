//! VMs that boot again.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{VmState, VmView};

/// Has a guest do something that ends it, and the command that asks for it.
fn end_by(host: &Host, vm: &str, what: &str) {
    host.start(["exec", vm, "--", "sh", "-c", what], "").wait();
}

#[test]
fn a_vm_boots_again_as_what_it_was_or_stays_stopped() {
    // One that was woken, as the second of an image is: QEMU has loaded its devices.
    let host = Host::with_woken_p([]);
    a_vm_that_reboots_or_is_started_has_its_disk_name_and_address_and_a_clone_says_why_not(&host);
    host.ok(["rm", "p-1", "p-2"]);
    a_daemon_that_is_killed_while_a_vm_boots_again_leaves_it_stopped(&host);
    host.end();
}

#[track_caller]
fn a_vm_that_reboots_or_is_started_has_its_disk_name_and_address_and_a_clone_says_why_not(
    host: &Host,
) {
    let first = host.vm("p");
    host.sh("p", "echo kept >/kept; echo gone >/opt/forkyard/gone");
    host.fork("p", 1);
    let again = |before: &VmView| {
        eventually("the VM to be back", || {
            let now = host.vm("p");
            now.state == VmState::Running && now.epoch != before.epoch
        });
        let now = host.vm("p");
        assert_eq!(
            (now.id, now.address, now.failure.as_deref()),
            (first.id, first.address, None)
        );
        assert_eq!(
            host.sh(
                "p",
                "hostname; cat /kept; ls /opt/forkyard/gone 2>/dev/null || true"
            ),
            "p\nkept"
        );
        now
    };
    end_by(host, "p", "reboot");
    let second = again(&first);
    assert_ne!(second.pid, first.pid);
    // As good as any other: it is forked, and reaches its clones.
    host.fork("p", 1);
    let clone = host.vm("p-2");
    host.sh("p", &format!("ping -c 1 -W 60 {}", clone.address.ip));

    // At once, and without a word on its console.
    end_by(host, "p-2", "echo b >/proc/sysrq-trigger");
    host.wait_stopped("p-2");
    let told = host.vm("p-2").failure.expect("a reason");
    assert!(told.starts_with("its guest restarted"), "{told}");
    assert!(told.contains("a clone cannot boot again"), "{told}");
    let told = host.fails(["start", "p-2"]);
    assert!(told.contains("is a clone"), "{told}");

    host.ok(["stop", "p"]);
    let stopped = host.vm("p");
    assert_eq!((stopped.state, stopped.failure), (VmState::Stopped, None));
    let started: Vec<VmView> = host.json(["start", "p"]);
    assert_eq!(started[0].state, VmState::Running);
    let third = again(&second);
    // No harm done to one that runs.
    host.ok(["start", "p"]);
    assert_eq!(host.vm("p").epoch, third.epoch);

    end_by(host, "p", "echo c >/proc/sysrq-trigger");
    host.wait_stopped("p");
    let told = host.vm("p").failure.expect("a reason");
    assert!(told.contains("kernel gave up"), "{told}");
    assert_eq!(host.vm("p-1").state, VmState::Running);

    end_by(host, "p-1", "poweroff -f");
    host.wait_stopped("p-1");
    assert_eq!(host.vm("p-1").failure, None);
}

#[track_caller]
fn a_daemon_that_is_killed_while_a_vm_boots_again_leaves_it_stopped(host: &Host) {
    for _ in 0..2 {
        let start = host.start(["start", "p"], "");
        eventually("a QEMU", || {
            host.vm("p").state == VmState::Starting
                && !host.processes("qemu-system-x86_64").is_empty()
        });
        host.kill_9("forkyardd");
        let _ = start.wait();
        assert_eq!(host.vm("p").state, VmState::Stopped);
        assert_eq!(host.processes("qemu-system-x86_64").len(), 0);
    }
    host.ok(["start", "p"]);
    assert_eq!(host.sh("p", "hostname"), "p");
}
