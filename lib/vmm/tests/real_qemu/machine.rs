//! The engine against a real QEMU. No guest kernel is needed: the firmware
//! running in vain is guest enough. Needs root, QEMU and cgroup v2.

use crate::support::{self, Site, slice, status_of};
use forkyard_types::{ByteCount, Mac};
use forkyard_vmm::{
    Engine, Machine, Nic, QmpError, RootDisk, RunState, Shell, ShellSpec, VmmError, VmmErrorKind,
};
use std::{collections::BTreeMap, fs, time::Duration};

/// Number of times a machine is left: enough that some of the answers come to
/// the next.
const LEFT: u64 = 300;

#[tokio::test]
async fn a_machine_runs_without_privileges_and_in_its_own_cgroup() {
    let site = Site::new();
    let machine = site.boot().await;
    assert_eq!(machine.run_state().await.expect("asked"), RunState::Running);
    let pid = machine.record().process.pid;
    let status = status_of(pid);
    let owner = site.owner.uid.to_string();
    assert_eq!(
        status["Uid"].split_whitespace().collect::<Vec<_>>(),
        [&owner; 4]
    );
    assert_eq!(status["Groups"], "");
    assert_eq!(status["CapEff"], "0000000000000000");
    assert_eq!(status["Seccomp"], "2");
    assert_eq!(
        status["NSsid"],
        format!("{pid}\t1"),
        "leads its own session, in a namespace of its own"
    );
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("alive");
    let own = format!("0::/{}/{}", site.cgroup_parent, machine.record().id);
    assert!(cgroup.lines().any(|line| line == own), "{cgroup}");
    machine.kill().await.expect("killed");
}

#[tokio::test]
async fn nothing_but_what_is_meant_for_it_is_inherited() {
    let secret = tempfile::NamedTempFile::new().expect("file");
    let site = Site::new();
    let machine = site.boot().await;
    let fds = format!("/proc/{}/fd", machine.record().process.pid);
    let mut open = BTreeMap::new();
    for fd in fs::read_dir(fds).expect("alive").flatten() {
        let Ok(target) = fs::read_link(fd.path()) else {
            continue;
        };
        open.insert(fd.file_name(), target);
    }
    let foreign = open.values().find(|path| {
        path.starts_with("/")
            && !path.starts_with(site.path())
            && !path.starts_with("/dev/null")
            && !path.starts_with("/memfd:forkyard-state (deleted)")
    });
    assert_eq!(foreign, None, "{open:?}");
    drop(secret);
    machine.kill().await.expect("killed");
}

#[tokio::test]
async fn two_clones_run_and_see_what_was_written_after_their_shells_had_started() {
    let site = Site::new();
    let parent = site.boot().await;
    let mut shells = Vec::new();
    for _ in 0..2 {
        shells.push(site.shell(&site.disk).await);
    }
    // The shells have the parent's disk open below theirs by now.
    support::write_behind(&parent, 7).await;
    let next = site.path().join("next.qcow2");
    slice(&next, &site.disk, site.owner);
    let overlay = parent.prepare_overlay(&next).await.expect("prepared");
    parent.stop().await.expect("stopped");
    parent.freeze_disk(overlay).await.expect("frozen");
    let descriptor = parent.save_descriptor().await.expect("saved");
    site.copy_memory(&parent).await;
    parent.cont().await.expect("goes on");
    for shell in shells {
        let clone = shell.load(&descriptor).await.expect("loaded");
        assert_eq!(clone.run_state().await.expect("asked"), RunState::Running);
        let pid = clone.record().process.pid;
        assert_eq!(support::real_time_threads(pid), [""; 0]);
        clone.ram().await.expect("found");
        assert!(
            support::read_and_quit(clone, 7).await,
            "the parent's last write"
        );
    }
    assert_eq!(parent.run_state().await.expect("asked"), RunState::Running);
    assert!(
        support::read_and_quit(parent, 7).await,
        "through its new slice"
    );
}

#[tokio::test]
async fn a_clone_has_a_network_interface_of_its_own() {
    // The taps live and die in a network of this test's thread.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("root");
    let site = Site::new();
    let nic = |number: u8| Nic {
        tap: forkyard_sys_host::tap::create(&format!("test{number}")).expect("tap"),
        mac: Mac([0x52, 0x54, 0, 0, 0, number]),
    };
    let mut spec = site.boot_spec();
    spec.machine.nic = Some(nic(1));
    spec.machine.disk = None;
    let parent = site.qemu.boot(spec).await.expect("boots");
    let mut machine = site.machine(&site.disk);
    machine.nic = Some(nic(2));
    machine.disk = None;
    let memory_file = site.memory.clone();
    let shell = ShellSpec {
        machine,
        memory_file,
    };
    let shell = site.qemu.shell(shell).await.expect("starts");
    parent.stop().await.expect("stopped");
    let descriptor = parent.save_descriptor().await.expect("saved");
    site.copy_memory(&parent).await;
    let clone = shell.load(&descriptor).await.expect("loaded");
    let network = clone.monitor("info network").await.expect("told");
    assert!(network.contains("net0: index=0,type=tap"), "{network}");
    clone.kill().await.expect("killed");
    parent.kill().await.expect("killed");
}

#[tokio::test]
async fn a_clone_can_be_forked_again() {
    let site = Site::new();
    let parent = site.boot().await;
    let shell = site.shell(&site.disk).await;
    parent.stop().await.expect("stopped");
    let descriptor = parent.save_descriptor().await.expect("saved");
    site.copy_memory(&parent).await;
    parent.kill().await.expect("killed");
    let clone = shell.load(&descriptor).await.expect("loaded");
    let grandchild = site.shell(&site.disk).await;
    clone.stop().await.expect("stopped");
    let descriptor = clone.save_descriptor().await.expect("saved");
    clone.kill().await.expect("killed");
    let grandchild = grandchild.load(&descriptor).await.expect("loaded");
    assert_eq!(
        grandchild.run_state().await.expect("asked"),
        RunState::Running
    );
    grandchild.kill().await.expect("killed");
}

/// Tests that a shell reads no memory early: its memory may be the file of an
/// image that does not exist yet, and the first read of that would wait for the
/// fork the shell is there for.
#[tokio::test]
async fn a_shell_reads_no_memory_before_it_has_a_state() {
    let site = Site::new();
    let shell = site.shell(&site.disk).await;
    let pid = shell.record().process.pid;
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("alive");
    let file = site.memory.to_str().expect("UTF-8");
    let (_, mapping) = smaps.split_once(file).expect("mapped");
    let resident = mapping.lines().find(|line| line.starts_with("Rss:"));
    let words: Vec<_> = resident.expect("a field").split_whitespace().collect();
    assert_eq!(words, ["Rss:", "0", "kB"]);
    shell.kill().await.expect("killed");
}

#[tokio::test]
async fn a_descriptor_cut_short_is_the_end_of_the_shell_and_says_why() {
    let site = Site::new();
    let parent = site.boot().await;
    parent.stop().await.expect("stopped");
    let descriptor = parent.save_descriptor().await.expect("saved");
    parent.kill().await.expect("killed");
    let shell = site.shell(&site.disk).await;
    let record = shell.record().clone();
    match shell.load(&descriptor[..descriptor.len() / 3]).await {
        Err(VmmError::Died { stderr, status, .. }) => {
            assert!(stderr.contains("load of migration failed"), "{stderr}");
            assert!(status.is_some());
        }
        other => panic!("{other:?}"),
    }
    site.assert_gone(&record);
}

#[tokio::test]
async fn a_clone_does_not_run_on_a_disk_its_parent_still_writes_to() {
    let site = Site::new();
    let parent = site.boot().await;
    let shell = site.shell(&site.disk).await;
    let record = shell.record().clone();
    parent.stop().await.expect("stopped");
    let descriptor = parent.save_descriptor().await.expect("saved");
    site.copy_memory(&parent).await;
    // The disk was not frozen: the parent holds its lock.
    let refused = shell.load(&descriptor).await.expect_err("locked");
    assert_eq!(refused.kind(), VmmErrorKind::Refused, "{refused:?}");
    site.assert_gone(&record);
    parent.cont().await.expect("unharmed");
    parent.kill().await.expect("killed");
}

#[tokio::test]
async fn a_boot_given_up_on_leaves_nothing() {
    let site = Site::new();
    let spec = site.boot_spec();
    let (id, dir) = (spec.machine.id, spec.machine.dir.clone());
    // Long enough to have started, too short to have connected; whichever
    // comes first, nothing may stay.
    let cut = tokio::time::timeout(Duration::from_millis(3), site.qemu.boot(spec)).await;
    assert!(cut.is_err());
    site.wait_quiet(id, &dir).await;
}

#[tokio::test]
async fn an_overlay_that_does_not_exist_is_refused_and_does_no_harm() {
    let site = Site::new();
    let machine = site.boot().await;
    let missing = machine.prepare_overlay(&site.path().join("none")).await;
    assert!(
        matches!(
            &missing,
            Err(VmmError::Qmp {
                source: QmpError::Refused { .. },
                ..
            })
        ),
        "{missing:?}"
    );
    assert_eq!(machine.run_state().await.expect("asked"), RunState::Running);
    machine.kill().await.expect("killed");
}

#[tokio::test]
async fn a_machine_without_a_disk_has_nothing_to_freeze() {
    let site = Site::new();
    let mut spec = site.boot_spec();
    spec.machine.disk = None;
    let machine = site.qemu.boot(spec).await.expect("boots");
    let none = machine.prepare_overlay(&site.disk).await;
    assert!(matches!(none, Err(VmmError::NoDisk)), "{none:?}");
    machine.kill().await.expect("killed");
}

#[tokio::test]
async fn the_death_of_a_machine_is_seen_and_blamed() {
    let site = Site::new();
    let machine = site.boot().await;
    let exited = machine.exited();
    site.kill_9(&machine);
    assert!(exited.await.status.is_some_and(|status| !status.success()));
    let error = machine.stop().await.expect_err("dead");
    assert!(matches!(error, VmmError::Died { .. }), "{error:?}");
    assert_eq!(error.kind(), VmmErrorKind::Gone);
    machine.kill().await.expect("the rest is removed");
    site.assert_gone(machine.record());
    machine.quit().await.expect("nothing left to do");
}

#[tokio::test]
async fn a_qemu_that_cannot_start_says_why() {
    let site = Site::new();
    let mut spec = site.boot_spec();
    let disk = site.path().join("no disk");
    std::fs::write(&disk, "nonsense").expect("written");
    spec.machine.disk = Some(RootDisk::Slice(disk));
    let id = spec.machine.id;
    let dir = spec.machine.dir.clone();
    match site.qemu.boot(spec).await {
        Err(VmmError::Died { stderr, .. }) => assert!(stderr.contains("qcow2"), "{stderr}"),
        other => panic!("{other:?}"),
    }
    site.wait_quiet(id, &dir).await;
}

#[tokio::test]
async fn a_machine_is_adopted_with_the_slice_it_had_moved_to() {
    let site = Site::new();
    let machine = site.boot().await;
    for name in ["a.qcow2", "b.qcow2"] {
        let path = site.path().join(name);
        slice(&path, &site.disk, site.owner);
        let overlay = machine.prepare_overlay(&path).await.expect("prepared");
        machine.freeze_disk(overlay).await.expect("frozen");
    }
    let active = machine.active_slice().await.expect("asked");
    assert_eq!(active, Some(site.path().join("b.qcow2")));
    let left_open = site.path().join("left.qcow2");
    slice(&left_open, &site.disk, site.owner);
    let _ = machine.prepare_overlay(&left_open).await.expect("prepared");
    let record = machine.record().clone();
    let text = serde_json::to_string(&record).expect("JSON");
    drop(machine);
    let record = serde_json::from_str(&text).expect("JSON");
    let adopted = site.qemu.adopt(record).await.expect("adopted");
    let exited = adopted.exited();
    let active = adopted.active_slice().await.expect("asked");
    assert_eq!(active, Some(site.path().join("b.qcow2")));
    // The file is free again: it was closed when the machine was adopted.
    let overlay = adopted.prepare_overlay(&left_open).await.expect("prepared");
    adopted.stop().await.expect("stopped");
    adopted.freeze_disk(overlay).await.expect("frozen");
    let descriptor = adopted.save_descriptor().await.expect("saved");
    assert!(ByteCount(descriptor.len() as u64) > ByteCount(1000));
    adopted.ram().await.expect("found");
    adopted.kill().await.expect("killed");
    exited.await;
    site.assert_gone(adopted.record());
}

/// As a daemon does that is killed at any time: QEMU gives what the command
/// returns to the next.
#[tokio::test]
async fn a_machine_left_in_the_middle_of_a_command_is_adopted_every_time() {
    let site = Site::new();
    let mut machine = site.boot().await;
    for round in 0..LEFT {
        let waits = Duration::from_micros(round * 10 % 500);
        let left = tokio::time::timeout(waits, async {
            machine.stop().await.expect("stopped");
            machine.cont().await.expect("let go");
        });
        // Whether it was done by then does not matter.
        let _ = left.await;
        let record = machine.record().clone();
        drop(machine);
        machine = site.qemu.adopt(record).await.expect("adopted");
        machine.stop().await.expect("stopped");
        let state = machine.run_state().await.expect("asked");
        assert_eq!(state, RunState::Paused);
        machine.cont().await.expect("let go");
    }
    machine.kill().await.expect("killed");
}

#[tokio::test]
async fn precedence_is_for_the_threads_that_serve_and_outlives_nobody() {
    let site = Site::new();
    let machine = site.boot().await;
    let record = machine.record().clone();
    let first = || support::real_time_threads(record.process.pid);
    assert_eq!(first(), [""; 0]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", record.process.pid)).expect("alive");
    let bounded =
        |line: &str| line.starts_with("Max realtime timeout ") && line.contains(" 1000000 ");
    assert!(limits.lines().any(bounded), "{limits}");
    let precedence = machine.precedence();
    assert_eq!(first(), ["IO mon_iothread", "qemu-system-x86"]);
    drop(precedence);
    assert_eq!(first(), [""; 0]);
    // As a daemon does that is killed meanwhile.
    std::mem::forget(machine.precedence());
    drop(machine);
    let adopted = site.qemu.adopt(record.clone()).await.expect("adopted");
    assert_eq!(first(), [""; 0]);
    adopted.kill().await.expect("killed");
}

#[tokio::test]
async fn a_shell_left_by_a_dead_daemon_is_discarded_by_its_record() {
    let site = Site::new();
    let shell = site.shell(&site.disk).await;
    let record = shell.record().clone();
    // As good as a daemon that died: no part of it will do anything more.
    std::mem::forget(shell);
    site.qemu.discard(&record).await.expect("discarded");
    site.assert_gone(&record);
    site.qemu.discard(&record).await.expect("again");
}
