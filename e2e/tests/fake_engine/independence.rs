//! Disks that come to depend on nothing.

use crate::substrates::{activate, substrates};
use forkyard_e2e::{Fault, Host, eventually, is_sound, sweep};
use forkyard_types::{VmInspect, VmState};
use std::process::Command;

const WAIT: [&str; 3] = ["independent", "x", "--wait"];

fn with_s(host: Host) -> Host {
    host.start(["run", "tiny", "--name", "p"], "")
        .wait()
        .exited(0);
    host.sh("p", "poke 7 3");
    host.ok(["substrate", "dock", "p", "--name", "s", "--kind", "public"]);
    host
}

fn inspect(host: &Host, vm: &str) -> VmInspect {
    host.json(["inspect", vm])
}

/// Reads which file a slice says it lies over.
fn backing(vm: &VmInspect) -> Option<String> {
    let slice = &vm.disk[0].path;
    let told = Command::new("qemu-img")
        .args(["info", "-U", "--output=json", slice])
        .output()
        .expect("installed");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    told["backing-filename"].as_str().map(str::to_owned)
}

/// Writes to a VM's slice as its guest would, or reads in its lowest one.
fn io(vm: &VmInspect, words: &str) {
    let reads = words.starts_with("read");
    let slice = match reads {
        true => vm.disk.last(),
        false => vm.disk.first(),
    };
    // Without what it lies over, which is not needed for this: only the daemon sees that.
    let alone = serde_json::json!({
        "driver": "qcow2",
        "backing": null,
        "file": {"driver": "file", "filename": slice.expect("a disk").path},
    });
    // What is read may be copied at the moment.
    let how: &[&str] = match reads {
        true => &["-U", "-r"],
        false => &[],
    };
    let done = Command::new("qemu-io")
        .args(how)
        .args(["-c", words, &format!("json:{alone}")])
        .output()
        .expect("installed");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success() && !said.contains("failed"),
        "{words}: {said}"
    );
}

#[test]
fn a_vm_becomes_independent_and_its_substrate_can_go() {
    let host = with_s(Host::fake());
    let vm = activate(&host, &["s", "--as", "x"]).remove(0);
    let before = inspect(&host, "x");
    assert!(!before.independence.independent && !before.independence.wanted);
    assert!(backing(&before).is_some());
    io(&before, "write -P 7 1M 64k");
    host.fails(["substrate", "rm", "s"]);
    // A clone's slice keeps what it lies over, and its parent goes on by itself.
    let clone = host.fork("x", 1).remove(0);
    host.ok(WAIT);
    let after = inspect(&host, "x");
    assert!(
        after.independence.independent && after.disk.len() == 1,
        "{after:?}"
    );
    assert_eq!(backing(&after), None);
    io(&after, "read -P 7 1M 64k");
    host.fails(["substrate", "rm", "s"]);
    host.ok(["rm", clone.name.as_str()]);
    host.ok(["substrate", "rm", "s"]);
    assert!(substrates(&host).is_empty());
    assert_eq!(
        (host.vm("x").pid, host.vm("x").state),
        (vm.pid, VmState::Running)
    );
    // Nothing that a VM does needs it.
    assert_eq!(host.sh("x", "peek 7"), "3");
    let clone = host.fork("x", 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "peek 7"), "3");
    assert!(inspect(&host, "x").independence.independent);
    assert!(!inspect(&host, clone.name.as_str()).independence.independent);
    host.kill_9("forkyardd");
    host.ok(["stop", "x"]);
    host.ok(["start", "x"]);
    io(&inspect(&host, "x"), "read -P 7 1M 64k");
    host.ok(["rm", clone.name.as_str()]);
    // It can be docked in turn, over its image as any other.
    host.ok(["substrate", "dock", "x", "--name", "t", "--kind", "private"]);
    let again = activate(&host, &["t", "--as", "y", "--independent"]).remove(0);
    eventually("it depends on nothing", || {
        inspect(&host, again.name.as_str()).independence.independent
    });
    io(&inspect(&host, "y"), "read -P 7 1M 64k");
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "t"]);
    is_sound(&host);
    host.end();
}

#[test]
fn a_copy_that_fails_is_tried_again_and_told_of() {
    let host = with_s(Host::fake());
    activate(&host, &["s", "--as", "x"]);
    host.faults().set("own_disk", Fault::Refuse);
    host.ok(["independent", "x"]);
    eventually("it is told", || {
        let seen = inspect(&host, "x").independence;
        seen.problem.is_some() || seen.independent
    });
    host.ok(WAIT);
    assert_eq!(inspect(&host, "x").independence.problem, None);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn a_machine_that_dies_in_the_middle_has_its_disk_and_goes_on_when_it_starts() {
    let host = with_s(Host::fake());
    activate(&host, &["s", "--as", "x"]);
    io(&inspect(&host, "x"), "write -P 7 1M 64k");
    host.faults().set("own_disk", Fault::Kill);
    host.ok(["independent", "x"]);
    eventually("it has ended", || host.vm("x").state == VmState::Stopped);
    let stopped = inspect(&host, "x");
    assert!(stopped.independence.wanted, "{stopped:?}");
    host.fails(["independent", "x"]);
    host.ok(["start", "x"]);
    host.ok(WAIT);
    io(&inspect(&host, "x"), "read -P 7 1M 64k");
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_leaves_a_disk_that_is_a_slice_or_its_own() {
    let host = with_s(Host::fake().counted());
    let make = |host: &Host| {
        activate(host, &["s", "--as", "x"]);
        io(&inspect(host, "x"), "write -P 7 1M 64k");
    };
    make(&host);
    sweep(&host, WAIT, 20, |host| {
        // Whichever it was, it reads the same, and the next daemon goes on.
        io(&inspect(host, "x"), "read -P 7 1M 64k");
        host.ok(WAIT);
        let seen = inspect(host, "x");
        assert_eq!((backing(&seen), seen.disk.len()), (None, 1));
        host.ok(["rm", "x"]);
        make(host);
    });
    host.ok(["rm", "x"]);
    host.ok(["substrate", "rm", "s"]);
    is_sound(&host);
    host.end();
}
