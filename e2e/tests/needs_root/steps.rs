//! The daemon is killed before the Nth thing it does, for N from first to last:
//! the next one finds every VM whole or removes all of it.
//!
//! Some of the steps are tried each time; `FORKYARD_E2E_STEPS=1` tries all. These are the
//! sweeps that need a guest; those that do not are in `fake_engine/steps.rs`.

use forkyard_e2e::{Host, eventually, is_sound, steps, sweep};
use forkyard_types::VmState;

fn remove_all_but_p(host: &Host) {
    for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", vm.name.as_str()]);
    }
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
    sweep(&host, ["fork", "p", "-n", "2"], 5, |host| {
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
fn a_parallel_job_ends_though_the_daemon_is_killed_at_any_step_of_it() {
    let host = with_p();
    host.sh("p", "mkdir -p /m && mount -t tmpfs m /m");
    let job = "(vmfork run -n 2 -- sh -c 'exit 5' >/m/out 2>&1 </dev/null || echo $? >/m/code) \
        >/dev/null 2>&1 </dev/null &";
    let begin = || host.start(["exec", "p", "--", "sh", "-c", job], "").wait();
    // The client that asks may be the one whose daemon dies.
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
