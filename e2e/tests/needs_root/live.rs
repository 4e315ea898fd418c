//! Forks that spare the parent, and forks that come soon after another.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{CloneResult, ForkReport, ForkResponse, VmInspect};

/// Forks live; every clone must be made.
fn live(host: &Host, vm: &str, count: u16) -> ForkResponse {
    let count = count.to_string();
    let forked: ForkResponse = host.json(["fork", vm, "--live", "--count", &count]);
    let failed = |clone: &CloneResult| matches!(clone, CloneResult::Error(_));
    assert!(!forked.clones.iter().any(failed), "{:?}", forked.clones);
    forked
}

fn last_report(host: &Host, vm: &str) -> ForkReport {
    let inspected: VmInspect = host.json(["inspect", vm]);
    inspected.forks.last().cloned().expect("it was forked")
}

/// Pages that a fork copied, before the pause and in it.
fn copied(report: &ForkReport) -> u64 {
    report.pages_ahead.0 + report.pages_captured.0
}

#[test]
fn memory_of_a_live_fork_is_of_one_instant_while_the_guest_writes_it() {
    let host = Host::with_woken_p([]);
    host.put_program("p", "witness", None);
    for round in ["first", "again"] {
        let file = format!("/m/{round}");
        host.sh(
            "p",
            &format!("witness sweep {file} </dev/null >/dev/null 2>&1 &"),
        );
        host.wait_in("p", &format!("[ $(cat {file}) = begun ]"));
        let forked = live(&host, "p", 2);
        // Copied ahead, or there would have been nothing to be torn.
        assert!(forked.report.pages_ahead.0 > 6144, "{:?}", forked.report);
        // It has been written while it was forked; from here on it only takes time.
        host.sh("p", "killall witness");
        for clone in &forked.clones {
            let CloneResult::Vm(vm) = clone else { continue };
            let name = vm.name.as_str();
            host.wait_in(name, "! pidof witness");
            assert_eq!(
                host.sh(name, &format!("cat {file}")),
                "begun whole",
                "{name}"
            );
        }
    }
    host.end();
}

#[test]
fn a_live_fork_copies_little_while_the_parent_stands_still() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/ballast bs=64k count=512 2>/dev/null",
    );
    let told = host.sums("p", "/m/ballast");
    let report = live(&host, "p", 1).report;
    assert!(report.pages_ahead.0 > 8192, "{report:?}");
    assert!(
        report.pages_captured.0 * 8 < report.pages_ahead.0,
        "{report:?}"
    );
    assert_eq!(host.sums("p-1", "/m/ballast"), told);

    // A clone's memory is a view of an image; what it wrote is copied ahead.
    host.sh(
        "p-1",
        "dd if=/dev/urandom of=/m/more bs=64k count=256 2>/dev/null",
    );
    let told = host.sums("p-1", "/m/ballast /m/more");
    let report = live(&host, "p-1", 1).report;
    assert!(report.pages_ahead.0 > 4096, "{report:?}");
    assert_eq!(host.sums("p-2", "/m/ballast /m/more"), told);
    host.end();
}

#[test]
fn a_fork_after_another_copies_what_was_written_in_between() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/old bs=64k count=512 2>/dev/null",
    );
    host.fork("p", 1);
    let first = last_report(&host, "p");
    assert!(copied(&first) > 8192, "{first:?}");
    // Its image must outlive its clones: the next one lies over it.
    host.ok(["rm", "p-1"]);
    // It gives up nothing: of a guest that has freed much, all is copied anew once it tells.
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/new bs=64k count=64 2>/dev/null; dd if=/dev/urandom of=/m/old bs=64k count=16 conv=notrunc 2>/dev/null",
    );
    let told = host.sums("p", "/m/old /m/new");
    host.fork("p", 1);
    let second = last_report(&host, "p");
    assert!(copied(&second) > 1024, "{second:?}");
    assert!(copied(&second) * 2 < copied(&first), "{second:?}");
    assert_eq!(host.sums("p-2", "/m/old /m/new"), told);

    // A daemon that takes over has no notes: it begins again.
    host.kill_9("forkyardd");
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/newer bs=64k count=16 2>/dev/null",
    );
    let told = host.sums("p", "/m/old /m/new /m/newer");
    for _ in 0..2 {
        let clone = host.fork("p", 1).remove(0);
        assert_eq!(
            host.sums(clone.name.as_str(), "/m/old /m/new /m/newer"),
            told
        );
    }
    let third = last_report(&host, "p");
    assert!(copied(&third) * 2 < copied(&first), "{third:?}");
    host.end();
}

#[test]
fn a_vm_that_forks_again_and_again_keeps_a_shallow_disk() {
    let host = Host::with_p([]);
    let mut wrote = Vec::new();
    for round in 0..10 {
        let file = format!("/d/{round}");
        host.sh(
            "p",
            &format!("dd if=/dev/urandom of={file} bs=20k count=5 2>/dev/null; sync"),
        );
        wrote.push(file);
        let clone = host.fork("p", 1).remove(0);
        host.ok(["rm", clone.name.as_str()]);
    }
    let depth = || {
        let inspected: VmInspect = host.json(["inspect", "p"]);
        inspected.disk.len()
    };
    eventually("a shallow disk", || depth() < 7);
    let files = wrote.join(" ");
    let told = host.sums("p", &files);
    host.sh("p", "echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(host.sums("p", &files), told);
    let clone = host.fork("p", 1).remove(0);
    let name = clone.name.as_str();
    host.sh(name, "echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(host.sums(name, &files), told);
    // It goes on with the slices it has.
    host.ok(["rm", "p"]);
    host.sh(name, "echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(host.sums(name, &files), told);
    host.end();
}
