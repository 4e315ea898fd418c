//! Clocks of VMs that stood still.

use forkyard_e2e::Host;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Length of each standstill.
const STANDSTILL: Duration = Duration::from_secs(20);
/// Largest error of a clock, beside what it takes to be told of it.
const OFF: Duration = Duration::from_millis(200);

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
}

#[track_caller]
fn is_right(host: &Host, vm: &str) {
    let before = now();
    let told = host.ok(["exec", vm, "--", "witness", "clock"]);
    let told = Duration::from_nanos(told.parse().expect("a number"));
    let after = now();
    assert!(
        before - OFF < told && told < after + OFF,
        "{vm}: {told:?} is not between {before:?} and {after:?}"
    );
}

#[test]
fn clocks_of_a_vm_that_was_paused_and_of_a_clone_whose_load_was_held_up_are_right() {
    let host = Host::with_p(["--warm", "1"]);
    host.put_program("p", "witness", None);
    host.ok(["pause", "p"]);
    sleep(STANDSTILL);
    host.ok(["resume", "p"]);
    is_right(&host, "p");

    // Between the moment a clone is given its identity and the moment it hears that, its QEMU
    // stands still.
    host.wait_warm("p", 1);
    let parent = host.vm("p").pid.expect("it runs");
    let qemus = host.processes("qemu-system-x86_64");
    let shell = qemus.iter().find(|qemu| qemu.pid != parent);
    let shell = shell.expect("a warm shell");
    shell.stop();
    let forking = host.start(["fork", "p"], "");
    sleep(STANDSTILL);
    let pid = Pid::from_raw(i32::try_from(shell.pid).expect("a pid"));
    kill(pid, Signal::SIGCONT).expect("it is there");
    forking.wait().exited(0);
    is_right(&host, "p-1");
    is_right(&host, "p");
    host.end();
}
