//! The daemon is killed before the Nth thing it does, for N from first to last:
//! the next one finds every VM whole or removes all of it.
//!
//! Some of the steps are tried each time; `FORKYARD_E2E_STEPS=1` tries all.

use forkyard_e2e::{Host, eventually, steps};
use forkyard_types::{Diagnosis, VmInspect, VmState, VmView};
use std::collections::BTreeSet;

const QEMU: &str = "qemu-system-x86_64";

/// Kills the daemon at steps of what `words` ask for; `undo` makes it possible
/// to ask again.
fn sweep<const N: usize>(host: &Host, words: [&str; N], few: u64, undo: impl Fn(&Host)) {
    host.steps().count_only();
    host.ok(words);
    let total = host.steps().stop();
    undo(host);
    let mut reached = 0;
    for step in steps::chosen(total, few) {
        host.steps().kill_at(step);
        let command = host.start(words, "").wait();
        host.steps().stop();
        let call = host.steps().died_before();
        eprintln!("{}: {step} of {total}, {call}", words[0]);
        // Threads take turns as they like: there may be fewer steps this time. And
        // one that died before it was asked has a successor that is.
        match command.code {
            Some(0) => {}
            Some(_) | None => reached += 1,
        }
        is_sound(host);
        undo(host);
    }
    assert!(reached > 0, "the daemon was never killed");
}

/// What runs is whole, what is recorded is true, and there is nothing else on a host.
#[track_caller]
pub(crate) fn is_sound(host: &Host) {
    let mut vms = host.vms();
    vms.retain(|vm| vm.host.is_none());
    for vm in &vms {
        if vm.state == VmState::Running {
            assert_eq!(host.sh(vm.name.as_str(), "hostname"), vm.name.as_str());
        }
    }
    let distinct = |what: &str, key: fn(&VmView) -> String| {
        let keys: BTreeSet<_> = vms.iter().map(key).collect();
        assert_eq!(keys.len(), vms.len(), "two VMs with one {what}: {vms:#?}");
    };
    distinct("address", |vm| vm.address.ip.to_string());
    distinct("MAC", |vm| vm.address.mac.to_string());
    distinct("name", |vm| vm.name.to_string());
    nothing_left_over(host);
    // One that was removed may take a moment, and so may one that is kept warm.
    eventually("the processes that are recorded and no others", || {
        let warm = vms.iter().map(|vm| {
            let inspected: VmInspect = host.json(["inspect", vm.name.as_str()]);
            usize::from(inspected.warm)
        });
        let warm: usize = warm.sum();
        let qemus = host.processes(QEMU).into_iter().map(|qemu| qemu.pid);
        let qemus: BTreeSet<_> = qemus.collect();
        let recorded: BTreeSet<_> = vms.iter().filter_map(|vm| vm.pid).collect();
        recorded.is_subset(&qemus) && qemus.len() == recorded.len() + warm
    });
}

/// There is nothing on a host that belongs to nobody. What is just ending may be seen, and
/// not be in the records any more; what was left behind stays until somebody repairs it.
#[track_caller]
pub(crate) fn nothing_left_over(host: &Host) {
    let mut last = Vec::new();
    eventually("nothing to be left over", || {
        let seen = host.json::<Diagnosis>(["doctor"]).leftovers;
        if seen != last {
            eprintln!("left over: {seen:?}");
            last.clone_from(&seen);
        }
        seen.is_empty()
    });
}

fn remove_all_but_p(host: &Host) {
    for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", vm.name.as_str()]);
    }
}

fn remove_all(host: &Host) {
    host.ok(["rm", "--all"]);
}

fn with_p() -> Host {
    let host = Host::with_steps();
    host.ok(["run", "tiny", "--name", "p"]);
    host
}

#[test]
fn a_daemon_killed_at_any_step_of_a_fork_costs_neither_parent_nor_order() {
    let host = with_p();
    let pid = host.vm("p").pid;
    sweep(&host, ["fork", "p", "-n", "2"], 12, |host| {
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
fn a_daemon_killed_at_any_step_of_a_fork_that_is_warm_live_or_of_a_paused_vm_costs_no_more() {
    let host = Host::with_steps();
    host.ok(["run", "tiny", "--name", "p", "--warm", "2"]);
    let pid = host.vm("p").pid;
    let undo = |host: &Host| {
        remove_all_but_p(host);
        let p = host.vm("p");
        assert_eq!((p.pid, p.state), (pid, VmState::Running));
        host.wait_warm("p", 2);
    };
    undo(&host);
    sweep(&host, ["fork", "p", "-n", "2"], 4, undo);
    sweep(&host, ["fork", "p", "--live"], 3, undo);
    let go_on = |host: &Host| {
        // Whichever it was, it is not in between.
        host.ok(["resume", "p"]);
        undo(host);
        assert_eq!(host.sh("p", "hostname"), "p");
    };
    sweep(&host, ["pause", "p"], 2, go_on);
    host.ok(["pause", "p"]);
    sweep(&host, ["resume", "p"], 2, |host| {
        if host.vm("p").state == VmState::Running {
            assert_eq!(host.sh("p", "hostname"), "p");
        }
        host.ok(["pause", "p"]);
    });
    go_on(&host);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_checkpoint_keeps_it_whole_or_not_at_all() {
    let host = with_p();
    sweep(&host, ["checkpoint", "p", "--name", "c"], 5, |host| {
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
    sweep(&host, ["fork", "c", "-n", "2"], 3, remove_clones);
    sweep(&host, ["rm", "c"], 3, |_| keep());
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_boot_or_a_removal_leaves_a_vm_or_nothing() {
    let host = Host::with_steps();
    let run = ["run", "tiny", "--name", "p"];
    sweep(&host, run, 5, remove_all);
    host.ok(run);
    sweep(&host, ["rm", "p"], 5, |host| {
        if host.vms().is_empty() {
            host.ok(run);
        }
    });
    remove_all(&host);
    host.nothing_left();
}

#[test]
fn a_parallel_job_ends_though_the_daemon_is_killed_at_any_step_of_it() {
    let host = with_p();
    host.sh("p", "mkdir -p /m && mount -t tmpfs m /m");
    let job = "(vmfork run -n 2 -- sh -c 'exit 5' >/m/out 2>&1 </dev/null || echo $? >/m/code) \
        >/dev/null 2>&1 </dev/null &";
    let begin = || host.start(["exec", "p", "--", "sh", "-c", job], "").wait();
    // Whoever asks may be the one whose daemon dies.
    let told = || {
        let words = ["exec", "p", "--", "cat", "/m/code"];
        let outcome = host.start(words, "").wait();
        // The file is there a moment before what is written to it.
        let text = (outcome.code == Some(0)).then(|| outcome.text());
        text.filter(|text| !text.is_empty())
    };
    let forget = || host.sh("p", "rm -f /m/code /m/out");
    host.steps().count_only();
    begin();
    eventually("the job", || told().as_deref() == Some("5"));
    let total = host.steps().stop();
    forget();
    for step in steps::chosen(total, 8) {
        host.steps().kill_at(step);
        let begun = begin().code == Some(0);
        let mut code = None;
        if begun {
            eventually("the job's end", || {
                code = told();
                code.is_some()
            });
        }
        host.steps().stop();
        let call = host.steps().died_before();
        eprintln!("vmfork run: {step} of {total}, {call}: {code:?}");
        // Otherwise the guest may have heard of it all the same.
        eventually("the job to be over", || {
            host.sh("p", "pidof vmfork || true").is_empty()
        });
        if begun {
            let said = host.sh("p", "cat /m/out");
            let failed = code.as_deref() != Some("5");
            assert!(
                !failed || !said.is_empty(),
                "it failed and does not say why"
            );
        }
        eventually("its clones to go", || host.vms().len() == 1);
        is_sound(&host);
        forget();
    }
    host.end();
}
