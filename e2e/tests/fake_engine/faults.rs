//! Machines that refuse, die or fall silent in the middle of something.

use crate::{MACHINE, former::sql};
use forkyard_e2e::{Fault, Host, eventually, is_sound};
use forkyard_types::{CloneResult, ForkResponse, VmState};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

#[test]
fn a_fork_that_the_machine_refuses_at_any_call_leaves_a_parent_that_runs_and_can_be_forked() {
    let host = Host::fake_with_p();
    let pid = host.vm("p").pid;
    for call in [
        "prepare_overlay",
        "ram",
        "stop",
        "freeze_disk",
        "save_descriptor",
    ] {
        host.faults().set(call, Fault::Refuse);
        let said = host.fails(["fork", "p", "-n", "2"]);
        assert!(
            said.contains(call) && said.contains("wants it refused"),
            "{said}"
        );
        assert!(!host.faults().is_set(call), "{call} was never called");
        is_sound(&host);
        let p = host.vm("p");
        assert_eq!((p.pid, p.state), (pid, VmState::Running), "{call}");
        assert_eq!(host.fork("p", 1).len(), 1, "{call}");
    }
    host.end();
}

#[test]
fn a_parent_whose_machine_does_not_go_on_after_a_fork_goes_on_by_itself() {
    let host = Host::fake_with_p();
    host.faults().set("cont", Fault::Refuse);
    host.fails(["fork", "p"]);
    eventually("the parent to go on", || {
        let asked = host
            .start(["exec", "--timeout", "1", "p", "hostname"], "")
            .wait();
        asked.code == Some(0)
    });
    host.fork("p", 1);
    is_sound(&host);
    host.end();
}

#[test]
fn a_clone_whose_state_is_refused_costs_no_other() {
    for fault in [Fault::Refuse, Fault::Kill, Fault::HangUp] {
        let host = Host::fake_with_p();
        host.ok(["ps"]);
        host.faults().set("load", fault);
        let words = ["fork", "p", "-n", "3", "-o", "json"];
        let outcome = host.start(words, "").wait();
        let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("JSON");
        let failed = answer.clones.iter();
        let failed = failed.filter(|clone| matches!(clone, CloneResult::Error(_)));
        assert_eq!(failed.count(), 1, "{fault:?}: {answer:?}");
        assert_eq!(host.vms().len(), 3, "{fault:?}");
        is_sound(&host);
        host.end();
    }
}

#[test]
fn a_parent_that_dies_in_the_middle_of_its_fork_is_stopped_and_says_so() {
    for call in ["stop", "freeze_disk", "save_descriptor", "cont"] {
        let host = Host::fake_with_p();
        host.faults().set(call, Fault::Kill);
        host.fails(["fork", "p", "-n", "2"]);
        host.wait_stopped("p");
        eventually("its shells to go", || host.processes(MACHINE).is_empty());
        is_sound(&host);
        host.ok(["start", "p"]);
        host.fork("p", 1);
        host.end();
    }
}

/// As on a disk that is full: it was said to be removed, and was there again under the next daemon.
#[test]
fn a_vm_that_cannot_be_taken_out_of_the_records_is_not_said_to_be_removed() {
    let host = Host::fake_with_p();
    host.fork("p", 1);
    let state = host.folder().join("state");
    let refuse = |what: &str| {
        format!(
            "CREATE TRIGGER no_{what} BEFORE {what} ON vm BEGIN SELECT RAISE(ABORT, 'no'); END;"
        )
    };
    sql(&state, &(refuse("DELETE") + &refuse("UPDATE")));
    let said = host.fails(["rm", "p-1"]);
    assert!(
        said.contains("cannot be taken out of the records yet"),
        "{said}"
    );
    sql(&state, "DROP TRIGGER no_DELETE; DROP TRIGGER no_UPDATE;");
    let count = format!(
        "import sqlite3; print(sqlite3.connect('{}/forkyard.db').execute(\"SELECT count(*) FROM vm WHERE name = 'p-1'\").fetchone()[0])",
        state.display()
    );
    eventually("its record to go", || host.python(&count).trim() == "0");
    is_sound(&host);
    host.end();
}

#[test]
fn a_boot_that_fails_leaves_nothing() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    for fault in [Fault::Refuse, Fault::Kill] {
        host.faults().set("boot", fault);
        host.fails(["run", "tiny", "--name", "q"]);
        assert_eq!(host.vms().len(), 1, "{fault:?}");
        is_sound(&host);
    }
    host.end();
}

#[test]
fn a_fork_none_of_whose_shells_can_be_made_fails_and_the_next_does_not() {
    let host = Host::fake_with_p();
    for fault in [Fault::Refuse, Fault::Kill] {
        host.faults().set("shell", fault);
        host.fails(["fork", "p"]);
        is_sound(&host);
        host.fork("p", 1);
    }
    host.end();
}

#[test]
fn a_clone_that_ends_as_it_begins_is_seen_to_end() {
    let host = Host::fake_with_p();
    let clones = host.fork("p", 2);
    let name = clones[0].name.as_str();
    host.start(["exec", name, "poweroff"], "").wait();
    host.wait_stopped(name);
    host.ok(["rm", name]);
    is_sound(&host);
    host.end();
}

#[test]
fn a_machine_that_is_held_up_while_it_is_taken_over_does_not_hold_up_the_others_forever() {
    let host = Host::fake_with_p();
    host.fork("p", 2);
    host.kill_9("forkyardd");
    host.faults().set("adopt", Fault::Wait);
    let listing = host.start(["ps"], "");
    eventually("a machine to be held up", || {
        host.faults().holds_up("adopt")
    });
    assert!(!listing.is_over(), "the next daemon waits for it");
    host.faults().clear("adopt");
    listing.wait().exited(0);
    let states: Vec<_> = host.vms().iter().map(|vm| vm.state).collect();
    assert_eq!(states, [VmState::Running; 3]);
    is_sound(&host);
    host.end();
}

#[test]
fn who_interrupts_a_command_is_told_that_its_work_goes_on() {
    let host = Host::fake_with_p();
    for (words, call, signal, code) in [
        (["checkpoint", "p"], "freeze_disk", Signal::SIGINT, 130),
        (["fork", "p"], "freeze_disk", Signal::SIGTERM, 143),
        (["fork", "p"], "freeze_disk", Signal::SIGHUP, 129),
        (["pause", "p"], "stop", Signal::SIGINT, 130),
    ] {
        host.faults().set(call, Fault::Wait);
        let running = host.start(words, "");
        eventually("it to listen", || running.handles_interrupts());
        running.signal(signal);
        let outcome = running.wait().exited(code);
        let said = outcome.stderr;
        assert!(said.contains("it goes on"), "{words:?}: {said}");
        host.faults().clear(call);
    }
    host.end();
}

#[test]
fn a_connection_to_a_machine_that_breaks_costs_the_fork_and_not_the_vm() {
    let host = Host::fake_with_p();
    host.faults().set("freeze_disk", Fault::HangUp);
    host.fails(["fork", "p"]);
    eventually("the parent to be forked again", || {
        let asked = host.start(["fork", "p"], "").wait();
        asked.code == Some(0)
    });
    assert_eq!(host.sh("p", "hostname"), "p");
    is_sound(&host);
    host.end();
}

#[test]
fn a_second_daemon_on_the_same_records_is_refused_and_told_by_whom() {
    let host = Host::fake_with_p();
    let run = host.folder().join("second");
    let folder = run.display().to_string();
    let told = host.start_with(["ps"], [("FORKYARD_RUN_DIR", folder.as_str())]);
    let told = told.wait().exited(4).stderr;
    let first = host.folder().join("run").display().to_string();
    assert!(told.contains(&first) && told.contains("records"), "{told}");
    is_sound(&host);
    assert_eq!(host.vm("p").state, VmState::Running);
    // One that takes over from a daemon that is dead does not ask long whether it is.
    host.kill_9("forkyardd");
    host.ok(["exec", "p", "hostname"]);
    host.end();
}

#[test]
fn a_daemon_that_is_told_to_end_while_it_starts_leaves_nothing() {
    let host = Host::fake();
    for (wait, signal) in [
        (0, Signal::SIGINT),
        (5, Signal::SIGHUP),
        (10, Signal::SIGTERM),
        (20, Signal::SIGHUP),
        (40, Signal::SIGINT),
        (80, Signal::SIGHUP),
        (160, Signal::SIGTERM),
    ] {
        let lock = host.folder().join("run/lock");
        let _ = fs::remove_file(&lock);
        let daemon = host.start_program("forkyardd", [""; 0], "");
        // It takes over the host from now on.
        eventually("it to begin", || lock.exists());
        sleep(Duration::from_millis(wait));
        daemon.signal(signal);
        daemon.wait();
        host.nothing_left();
    }
}

#[test]
fn no_vm_may_write_a_slice_that_others_lie_over_whoever_is_gone() {
    let host = Host::fake_with_p();
    host.fork("p", 1);
    let disks = host.folder().join("state/vms");
    let owners = || {
        let slices = files_below(&disks).into_iter();
        let slices = slices.filter(|path| path.extension().is_some_and(|it| it == "qcow2"));
        slices.map(|path| {
            let about = fs::metadata(&path).expect("there");
            (path, about.uid(), about.mode() & 0o777)
        })
    };
    let is_sealed = |(_, uid, mode): &(PathBuf, u32, u32)| (*uid, *mode) == (0, 0o440);
    let frozen: Vec<_> = owners().filter(is_sealed).collect();
    assert_eq!(frozen.len(), 1, "{:?}", owners().collect::<Vec<_>>());
    host.ok(["rm", "p"]);
    // Likely as the user that p ran as.
    host.ok(["run", "tiny", "--name", "q"]);
    let own = disks.join(host.vm("q").id.as_str());
    let is_of_q = |path: &PathBuf| path.starts_with(&own);
    let (of_q, others): (Vec<_>, Vec<_>) = owners().partition(|(path, ..)| is_of_q(path));
    let users: Vec<_> = of_q.iter().map(|(_, uid, _)| *uid).collect();
    assert!(others.iter().any(is_sealed), "{others:?}");
    assert!(
        others.iter().all(|(_, uid, _)| !users.contains(uid)),
        "{of_q:?} {others:?}"
    );
    // A daemon of an earlier version left them to the VM's user, also what a checkpoint alone needs.
    host.ok(["checkpoint", "q", "--name", "k"]);
    host.ok(["rm", "q"]);
    let sealed: Vec<_> = owners().filter(is_sealed).collect();
    assert_eq!(sealed.len(), 2, "{sealed:?}");
    for (path, ..) in &sealed {
        std::os::unix::fs::chown(path, Some(1_900_000_000), None).expect("given");
    }
    host.kill_9("forkyardd");
    eventually("them to be sealed", || {
        host.ok(["ps"]);
        owners().filter(is_sealed).count() == sealed.len()
    });
    host.end();
}

/// Every file below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let (folders, mut files): (Vec<_>, Vec<_>) = entries
        .map(|entry| entry.path())
        .partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_below(folder)));
    files
}
