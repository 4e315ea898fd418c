//! The daemon is killed before the Nth thing it does: the next one finds every VM whole or
//! removes all of it.
//!
//! Of a fork each step is tried, of what is less often done some; `FORKYARD_E2E_STEPS=1`
//! tries all.

use forkyard_e2e::{Host, is_sound, sweep};
use forkyard_types::VmState;

/// More steps than anything takes: every one is tried.
const ALL: u64 = u64::MAX;
/// Steps that are tried of the others, spread evenly.
const SOME: u64 = 16;

fn with_p<const N: usize>(options: [&str; N]) -> Host {
    let host = Host::fake().counted();
    let words = ["run", "tiny", "--name", "p"];
    let run: Vec<_> = words.iter().chain(&options).collect();
    host.start(run, "").wait().exited(0);
    host
}

fn remove_all_but_p(host: &Host) {
    for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", vm.name.as_str()]);
    }
}

fn remove_all(host: &Host) {
    host.ok(["rm", "--all"]);
}

#[test]
fn a_daemon_killed_at_every_step_of_a_fork_costs_neither_parent_nor_order() {
    let host = with_p([]);
    let pid = host.vm("p").pid;
    sweep(&host, ["fork", "p", "-n", "2"], ALL, |host| {
        remove_all_but_p(host);
        let p = host.vm("p");
        assert_eq!((p.pid, p.state), (pid, VmState::Running));
    });
    // It has been through all that, and can still be forked.
    host.fork("p", 2);
    is_sound(&host);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_pause_or_of_what_follows_one_costs_nothing() {
    let host = with_p([]);
    let pid = host.vm("p").pid;
    let go_on = |host: &Host| {
        // Whichever it was, it is not in between.
        host.ok(["resume", "p"]);
        assert_eq!(host.sh("p", "hostname"), "p");
        assert_eq!(host.vm("p").pid, pid);
    };
    sweep(&host, ["pause", "p"], SOME, go_on);
    host.ok(["pause", "p"]);
    sweep(&host, ["fork", "p", "-n", "1"], SOME, |host| {
        remove_all_but_p(host);
        assert_eq!(host.vm("p").state, VmState::Paused);
    });
    sweep(&host, ["resume", "p"], SOME, |host| {
        host.ok(["pause", "p"]);
    });
    go_on(&host);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_checkpoint_keeps_it_whole_or_not_at_all() {
    let host = with_p([]);
    sweep(&host, ["checkpoint", "p", "--name", "c"], SOME, |host| {
        if host.vms().iter().any(|vm| vm.name.as_str() == "c") {
            host.fork("c", 1);
        }
        remove_all_but_p(host);
    });
    let keep = || {
        if !host.vms().iter().any(|vm| vm.name.as_str() == "c") {
            host.ok(["checkpoint", "p", "--name", "c"]);
        }
    };
    let remove_clones = |host: &Host| {
        let kept = host.vm("c").id;
        for clone in host.vms().iter().filter(|vm| vm.parent == Some(kept)) {
            host.ok(["rm", clone.name.as_str()]);
        }
    };
    keep();
    sweep(&host, ["fork", "c", "-n", "2"], SOME, remove_clones);
    sweep(&host, ["rm", "c"], SOME, |_| keep());
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_boot_or_a_removal_leaves_a_vm_or_nothing() {
    let host = Host::fake().counted();
    let run = ["run", "tiny", "--name", "p"];
    sweep(&host, run, 5, remove_all);
    host.ok(run);
    sweep(&host, ["rm", "p"], SOME, |host| {
        if host.vms().is_empty() {
            host.ok(run);
        }
    });
    remove_all(&host);
    host.nothing_left();
}
