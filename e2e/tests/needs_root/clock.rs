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
/// Largest error of a clock on a machine that has time for it, beside what it takes to be told of it.
const OFF: Duration = Duration::from_millis(200);

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
}

/// Asks a guest for its time, between two looks at the host's.
#[track_caller]
fn told(host: &Host, vm: &str) -> [Duration; 3] {
    let before = now();
    let told = host.ok(["exec", vm, "--", "witness", "clock"]);
    let told = Duration::from_nanos(told.parse().expect("a number"));
    [before, told, now()]
}

/// A guest's clock is as right as the answer by which it is set is quick, and a command is several
/// such answers. One that is not set is off by the standstill.
#[track_caller]
fn is_right(host: &Host, vm: &str) {
    let asked = [(); 3].map(|()| told(host, vm));
    let slowest = asked
        .iter()
        .map(|[before, _, after]| *after - *before)
        .max();
    let off = OFF.max(slowest.expect("three")).min(STANDSTILL / 4);
    for [before, told, after] in asked {
        assert!(
            before - off < told && told < after + off,
            "{vm}: {told:?} is not between {before:?} and {after:?}, nor {off:?} beside"
        );
    }
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
