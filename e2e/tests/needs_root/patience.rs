//! Tests of requests that are not waited for; and of a guest's console, which
//! waits for its user.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{ForkStarted, VmState, VmView};

#[test]
fn a_vm_that_is_not_waited_for_is_listed_at_once_and_runs_soon() {
    let host = Host::new();
    let p: VmView = host.json(["run", "tiny", "--name", "p", "--no-wait"]);
    assert_eq!(p.state, VmState::Starting);
    assert_eq!(host.vm("p").id, p.id);
    let taken = host.fails(["run", "tiny", "--name", "p", "--no-wait"]);
    assert!(taken.contains('p'), "{taken}");

    let late = host.start(["run", "tiny", "--name", "q", "--timeout", "0"], "");
    let late = late.wait().exited(5);
    assert!(late.stderr.contains("forkyard ps"), "{}", late.stderr);
    for name in ["p", "q"] {
        eventually("it to run", || host.vm(name).state == VmState::Running);
        assert_eq!(host.sh(name, "hostname"), name);
    }

    let begun: ForkStarted = host.json(["fork", "p", "-n", "2", "--no-wait"]);
    let of_fork = || {
        host.vms()
            .into_iter()
            .filter(|vm| vm.fork == Some(begun.fork))
    };
    eventually("the clones", || of_fork().count() == 2);
    for clone in of_fork() {
        let name = clone.name.as_str();
        assert_eq!(host.sh(name, "hostname"), name);
    }
    let none = host.fails(["fork", "nobody", "--no-wait"]);
    assert!(none.contains("nobody"), "{none}");
    a_command_typed_at_the_console_is_carried_out_and_answered_there(&host, "q");
    host.end();
}

#[test]
fn a_vm_that_is_removed_while_it_boots_is_no_more() {
    let host = Host::new();
    host.ok(["run", "tiny", "--name", "p", "--no-wait"]);
    host.ok(["rm", "p"]);
    host.end();
}

#[track_caller]
fn a_command_typed_at_the_console_is_carried_out_and_answered_there(host: &Host, vm: &str) {
    let typed = "\necho said-$((40+2)) && poweroff\n";
    let sat = host.start(["console", vm], typed).wait().exited(0);
    assert!(sat.text().contains("said-42"), "{}", sat.text());
    eventually("its end", || host.vm(vm).state == VmState::Stopped);
    let over = host.fails(["console", vm]);
    assert!(over.contains("not running"), "{over}");
}
