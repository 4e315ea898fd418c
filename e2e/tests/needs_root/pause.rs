//! A VM that its user has stand still.

use forkyard_e2e::Host;
use forkyard_types::{VmState, VmView};

/// Counts for as long as it runs.
const COUNT: &str = "(i=0; while :; do i=$((i+1)); echo $i >/m/count.new; mv /m/count.new /m/count; sleep 0.02; done) </dev/null >/dev/null 2>&1 &";

/// Has a VM count, and waits until there is a count to be read.
#[track_caller]
fn begin(host: &Host, vm: &str) {
    host.sh(vm, COUNT);
    host.wait_in(vm, "[ -s /m/count ]");
}

#[track_caller]
fn count(host: &Host, vm: &str) -> u64 {
    host.sh(vm, "cat /m/count").parse().expect("a number")
}

#[track_caller]
fn counts_beyond(host: &Host, vm: &str, count: u64) {
    host.wait_in(vm, &format!("[ $(cat /m/count) -gt {count} ]"));
}

#[track_caller]
fn counts_on(host: &Host, vm: &str) {
    counts_beyond(host, vm, count(host, vm));
}

#[test]
fn a_paused_vm_is_forked_as_it_stands_and_goes_on_where_it_was() {
    let host = Host::with_woken_p([]);
    begin(&host, "p");
    let paused: Vec<VmView> = host.json(["pause", "p"]);
    assert_eq!(paused[0].state, VmState::Paused);
    host.ok(["pause", "p"]);
    let told = host.exec_refused("p");
    assert!(told.contains("forkyard resume"), "{told}");

    let clones = host.fork("p", 2);
    host.ok(["fork", "p", "--live"]);
    assert_eq!(host.vm("p").state, VmState::Paused);
    for clone in &clones {
        let name = clone.name.as_str();
        assert_eq!(
            (clone.state, host.sh(name, "hostname").as_str()),
            (VmState::Running, name)
        );
        counts_on(&host, name);
    }
    let told = count(&host, "p-1");
    // Well ahead of its parent.
    counts_beyond(&host, "p-1", told + 50);

    host.ok(["resume", "p"]);
    host.ok(["resume", "p"]);
    assert_eq!(host.vm("p").state, VmState::Running);
    assert!(
        count(&host, "p") < count(&host, "p-1"),
        "it stood still while its clones counted"
    );
    counts_on(&host, "p");
    host.fork("p", 1);
    host.end();
}

#[test]
fn a_pause_outlives_the_daemon_and_a_paused_vm_ends_like_any_other() {
    let host = Host::with_woken_p([]);
    begin(&host, "p");
    host.fork("p", 1);
    host.ok(["pause", "p", "p-1"]);
    host.kill_9("forkyardd");
    for vm in host.vms() {
        assert_eq!(vm.state, VmState::Paused, "{}", vm.name);
    }
    host.fork("p", 1);
    counts_on(&host, "p-2");
    assert_eq!(host.vm("p").state, VmState::Paused);
    host.ok(["resume", "p"]);
    counts_on(&host, "p");
    host.ok(["stop", "p-1"]);
    assert_eq!(host.vm("p-1").state, VmState::Stopped);
    host.ok(["pause", "p"]);
    host.end();
}
