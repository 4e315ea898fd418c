//! The command line: what it answers, and how it exits.

use forkyard_e2e::Host;
use forkyard_types::{Diagnosis, ForkResponse, GuestImage, VmInspect, VmState, VmView};
use std::fs;

#[test]
fn a_vm_is_commanded_forked_stopped_and_removed() {
    let host = Host::with_woken_p([]);
    a_command_in_a_guest_is_as_if_it_ran_here(&host);
    clones_are_named_after_their_founder_and_place(&host);
    a_stopped_vm_keeps_its_record_until_it_is_removed(&host);
    host.nothing_left();
}

#[track_caller]
fn clones_are_named_after_their_founder_and_place(host: &Host) {
    let clones = host.fork("p", 8);
    for (n, clone) in (1..).zip(&clones) {
        assert_eq!(clone.name.as_str(), format!("p-{n}"));
        assert_eq!(clone.member.0, n);
        assert_eq!(clone.state, VmState::Running);
    }
    // A name that is taken is not taken away, and a place is never used twice.
    host.ok(["rm", "p-8"]);
    let next = host.fork("p", 1);
    assert_eq!(next[0].name.as_str(), "p-9");
    let clones = clones.iter().chain(&next);
    for clone in clones.filter(|clone| clone.member.0 != 8) {
        host.ok(["rm", clone.name.as_str()]);
    }
}

#[test]
fn every_answer_is_json_of_the_published_types() {
    let host = Host::new();
    let p: VmView = host.json(["run", "tiny", "--name", "p", "--memory", "128"]);
    assert_eq!(
        (p.name.as_str(), p.memory.0, p.vcpus, p.accel.as_str()),
        ("p", 128 << 20, 1, "tcg")
    );
    let fork: ForkResponse = host.json(["fork", "p"]);
    assert_eq!(fork.clones.len(), 1);
    let report = fork.report;
    assert!(
        report.pages_captured.0 > 0 && report.pause_us > 0 && report.ready_us >= report.running_us,
        "{report:?}"
    );
    let clone: VmInspect = host.json(["inspect", "p-1"]);
    assert_eq!(
        (clone.vm.parent, clone.vm.fork),
        (Some(p.id), Some(fork.fork))
    );
    let image = clone.memory_image.expect("a clone's memory is a view");
    assert_eq!(
        (image.pages, image.users > 0),
        (report.pages_captured, true)
    );
    assert!(
        clone.disk.len() >= 2,
        "its own slice, over its parent's: {:?}",
        clone.disk
    );
    let parent: VmInspect = host.json(["inspect", &p.id.to_string()]);
    assert_eq!((parent.memory_image, parent.forks), (None, vec![report]));
    let images: Vec<GuestImage> = host.json(["image", "ls"]);
    assert!(
        images
            .iter()
            .any(|image| image.name == "tiny" && image.built.is_some()),
        "{images:?}"
    );
    let well: Diagnosis = host.json(["doctor"]);
    assert!(
        well.problems.is_empty() && well.leftovers.is_empty(),
        "{well:?}"
    );
    let stopped: Vec<VmView> = host.json(["stop", "p-1"]);
    assert_eq!(stopped[0].state, VmState::Stopped);
    let removed: Vec<VmView> = host.json(["rm", "p-1", "p"]);
    assert_eq!(removed.len(), 2);
    host.end();
}

#[test]
fn errors_are_told_and_exit_as_the_help_says() {
    let host = Host::new();
    for words in [
        &["fork", "x"][..],
        &["inspect", "x"],
        &["rm", "x"],
        &["stop", "x"],
    ] {
        let outcome = host.start(words, "").wait().exited(1);
        assert!(
            outcome.stderr.contains("\"x\"") && outcome.stderr.contains("forkyard ps"),
            "{}",
            outcome.stderr
        );
    }
    let told = host.fails(["run", "no-such-image"]);
    assert!(
        told.contains("no-such-image") && told.contains("forkyard image ls"),
        "{told}"
    );
    host.fails(["run", "tiny", "--memory", "1"]);
    host.fails(["run", "tiny", "--vcpus", "0"]);
    for words in [&["fork"][..], &["run", "tiny", "--name", "Not_a_name"]] {
        host.start(words, "").wait().exited(2);
    }
    // Of exec one that is no command's.
    host.start(["exec", "p"], "").wait().exited(125);
    host.nothing_left();
    // Records where there can be none: no daemon, then, to be reached.
    let state = host.folder().join("state");
    fs::remove_dir_all(&state).expect("removed");
    fs::write(&state, "").expect("written");
    let outcome = host.start(["ps"], "").wait().exited(4);
    assert!(
        outcome.stderr.contains("did not start"),
        "{}",
        outcome.stderr
    );
    fs::remove_file(&state).expect("removed");
    // One that fails late takes back what it has made: rules, groups, folders, its log.
    let pages = host.folder().join("run/pages");
    // The folder of an earlier one.
    let _ = fs::remove_dir(&pages);
    fs::write(&pages, "").expect("written");
    let outcome = host.start(["ps"], "").wait().exited(4);
    assert!(outcome.stderr.contains("pager"), "{}", outcome.stderr);
    fs::remove_file(&pages).expect("removed");
    host.nothing_left();
    for left in ["vms", "daemon.log"] {
        assert!(!host.folder().join("run").join(left).exists(), "{left}");
    }

    host.ok(["run", "tiny", "--name", "p"]);
    let told = host.fails(["run", "tiny", "--name", "p"]);
    assert!(told.contains("\"p\"") || told.contains(" p "), "{told}");
    host.fails(["fork", "p", "-n", "0"]);
    host.fails(["fork", "p", "-n", "1000"]);
    let outcome = host.start(["stop", "p", "nobody"], "").wait().exited(3);
    assert_eq!(outcome.text(), "p");
    host.end();
}

#[track_caller]
fn a_command_in_a_guest_is_as_if_it_ran_here(host: &Host) {
    let run = |words: &[&str], input: &[u8]| host.start(words, input).wait();

    let outcome = run(
        &[
            "exec",
            "p",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 7",
        ],
        b"",
    )
    .exited(7);
    assert_eq!(
        (outcome.text().as_str(), outcome.stderr.as_str()),
        ("out", "err\n")
    );
    run(&["exec", "p", "--", "sh", "-c", "kill -9 $$"], b"").exited(137);
    let outcome = run(
        &[
            "exec",
            "p",
            "-e",
            "A=b c",
            "--",
            "sh",
            "-c",
            "echo $A $FORKYARD_NAME",
        ],
        b"",
    )
    .exited(0);
    assert_eq!(outcome.text(), "b c p");
    // More than every buffer on the way, and back.
    let input: Vec<u8> = (0..3u32 << 18).flat_map(u32::to_le_bytes).collect();
    let outcome = run(&["exec", "-i", "p", "--", "cat"], &input).exited(0);
    assert!(
        outcome.stdout == input,
        "{} of {} bytes",
        outcome.stdout.len(),
        input.len()
    );
    // Without -i there is nothing to read.
    assert_eq!(
        run(&["exec", "p", "--", "cat"], b"unread").exited(0).stdout,
        b""
    );
    let outcome = run(&["exec", "p", "no-such-program"], b"").exited(127);
    assert!(
        outcome.stderr.contains("no-such-program"),
        "{}",
        outcome.stderr
    );

    let outcome = run(&["exec", "--timeout", "1", "p", "--", "sleep", "1000"], b"").exited(124);
    assert!(
        outcome.stderr.contains("longer than 1 s"),
        "{}",
        outcome.stderr
    );
    // It is hung up on, and ends by itself.
    host.wait_in("p", "! pidof sleep");
}

#[track_caller]
fn a_stopped_vm_keeps_its_record_until_it_is_removed(host: &Host) {
    let clone = host.fork("p", 1).remove(0);
    let clone = clone.name.as_str();
    host.ok(["stop", "p"]);
    assert_eq!(host.vm("p").state, VmState::Stopped);
    assert_eq!(host.vm("p").pid, None);
    let told = host.exec_refused("p");
    assert!(told.contains("forkyard rm"), "{told}");
    host.fails(["fork", "p"]);
    // Its clone does without it.
    assert_eq!(host.sh(clone, "hostname"), clone);
    // Powered off from within is stopped, too.
    host.start(["exec", clone, "--", "poweroff"], "").wait();
    host.wait_stopped(clone);
    host.ok(["rm", clone]);
    host.ok(["rm", "p"]);
}

#[test]
fn rm_all_leaves_nothing_of_anything() {
    let host = Host::with_p(["--warm", "2"]);
    host.wait_warm("p", 2);
    host.fork("p", 2);
    host.fork("p-1", 1);
    host.ok(["run", "tiny", "--name", "q"]);
    host.sh("p", "vmfork ticket 2");
    host.ok(["stop", "p-2"]);
    assert_eq!(host.vms().len(), 5);
    assert!(
        host.left().len() > 10,
        "what there is would be found: {:?}",
        host.left()
    );
    // Nor of clones that were not announced yet.
    host.ok(["fork", "p", "--count", "3", "--no-wait"]);
    host.ok(["rm", "--all"]);
    assert_eq!(host.vms().len(), 0);
    host.nothing_left();
}
