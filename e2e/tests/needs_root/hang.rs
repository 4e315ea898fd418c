//! Tests that a silent peer counts as failed: no request waits for ever.

use forkyard_e2e::{Host, Outcome, eventually};
use forkyard_types::{ApiError, CloneResult, ErrorKind, ForkResponse, VmView};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const QEMU: &str = "qemu-system-x86_64";

/// Splits the outcomes of the clones of a fork.
fn clones(outcome: &Outcome) -> (Vec<VmView>, Vec<ApiError>) {
    let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("an answer");
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    for clone in answer.clones {
        match clone {
            CloneResult::Vm(vm) => made.push(*vm),
            CloneResult::Error(error) => errors.push(error),
        }
    }
    (made, errors)
}

#[test]
fn a_shell_an_agent_or_a_pager_that_hangs_fails_what_needs_it_and_nothing_else() {
    let host = Host::new();
    let words = ["run", "tiny", "--name", "p", "--warm", "2"];
    // Longer than a healthy peer takes to answer, on a busy machine, too.
    host.start_with(words, [("FORKYARD_PATIENCE", "10")])
        .wait()
        .exited(0);
    host.put_agent_worker("p");
    host.sh("p", "mkdir -p /etc/forkyard/clone.d");
    host.wait_warm("p", 2);
    host.fork("p", 1);
    host.wait_warm("p", 2);

    // Of the clones of p one has a QEMU that stands still; of those of p-1 one
    // has an agent that does, in the middle of its hooks.
    let hang = "#!/bin/sh\ncase $(hostname) in *[13579]) kill -STOP $(agent-worker);; esac\n";
    host.put("p-1", "/etc/forkyard/clone.d/10-hang", hang);
    let named: Vec<_> = host.vms().iter().filter_map(|vm| vm.pid).collect();
    let shells = host.processes(QEMU);
    let shell = shells.iter().find(|qemu| !named.contains(&qemu.pid));
    shell.expect("a warm shell").stop();
    let forks = ["p", "p-1"].map(|vm| host.start(["fork", vm, "-n", "2", "-o", "json"], ""));
    for fork in forks {
        let outcome = fork.wait().exited(3);
        let (made, errors) = clones(&outcome);
        let [error] = &errors[..] else {
            panic!("{}: {errors:?}", outcome.words);
        };
        assert_eq!(error.kind, ErrorKind::Timeout, "{error:?}");
        for vm in made {
            assert_eq!(host.sh(vm.name.as_str(), "hostname"), vm.name.as_str());
        }
    }
    assert_eq!(
        host.vms().len(),
        4,
        "nothing is listed of those that failed"
    );

    // The pager is asked for an image, and says nothing.
    host.sh("p-1", "rm /etc/forkyard/clone.d/10-hang");
    host.wait_warm("p", 2);
    let pager = host.processes("forkyard-pager").remove(0);
    pager.stop();
    let told = host.fails(["fork", "p-1"]);
    let pid = Pid::from_raw(i32::try_from(pager.pid).expect("a pid"));
    kill(pid, Signal::SIGCONT).expect("it is there");
    // Or the parent's machine, which needs a page of it first.
    let which = ["pager", "QMP"].iter().any(|it| told.contains(it));
    assert!(which, "{told}");
    // It does now what it was asked then, and it is not needed any more.
    eventually("nothing left of it", || {
        host.start(["doctor"], "").wait().code == Some(0)
    });
    host.fork("p-1", 1);
    for vm in host.vms() {
        assert_eq!(host.sh(vm.name.as_str(), "hostname"), vm.name.as_str());
    }

    // An agent hangs while its daemon lives: it says so, and why nothing can be done.
    let words = ["exec", "p", "--", "sh", "-c"];
    let waiting = host.start(["exec", "p", "--", "sleep", "1000"], "");
    let stop = "w=$(agent-worker); (sleep 60; kill -CONT $w) & kill -STOP $w";
    let stopping = host.start(words.into_iter().chain([stop]).collect::<Vec<_>>(), "");
    // Forks in a row, none of which finds it still, hide nothing.
    eventually("p to be silent", || {
        host.start(["fork", "p"], "").wait();
        host.vm("p").silence.is_some()
    });
    for words in [["fork", "p"], ["pause", "p"]] {
        let told = host.fails(words);
        assert!(told.contains("answers no more"), "{told}");
    }
    let told = host.exec_refused("p");
    assert!(told.contains("answers no more"), "{told}");
    let told = host.fails(["cp", "p:/etc/hostname", "/dev/null"]);
    assert!(told.contains("answers no more"), "{told}");
    eventually("p to answer", || host.vm("p").silence.is_none());
    let told = stopping.wait().exited(125).stderr;
    assert!(told.contains("answers no more"), "{told}");
    assert_eq!(host.sh("p", "hostname"), "p");
    // So is one that was under way; its client had said why it waited.
    let told = waiting.wait().exited(125).stderr;
    assert!(told.contains("the command is waited for"), "{told}");
    host.end();
}
