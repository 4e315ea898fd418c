//! Whatever dies, nothing that lives is harmed, and nothing stays behind.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{Diagnosis, ForkResponse, VmState, VmView};
use nix::mount::{MsFlags, mount, umount};
use std::{collections::BTreeSet, fs, io::Write, thread::sleep, time::Duration};

/// Writes more than fits, and reads it again.
const WRITE: &str = "dd if=/dev/urandom of=/d/big bs=64k count=128 2>/dev/null && md5sum /d/big >/m/sum && sync \
    && echo 3 >/proc/sys/vm/drop_caches && md5sum -c /m/sum";
const QEMU: &str = "qemu-system-x86_64";

/// Repairs, and finds nothing more to repair.
#[track_caller]
fn repair(host: &Host) {
    let repaired: Diagnosis = host.json(["doctor", "--repair"]);
    assert!(
        repaired.leftovers.iter().all(|left| left.removed),
        "{repaired:?}"
    );
    let well: Diagnosis = host.json(["doctor"]);
    assert!(well.leftovers.is_empty(), "{well:?}");
}

#[track_caller]
fn all_answer(host: &Host, vms: &[VmView]) {
    for vm in vms {
        assert_eq!(vm.state, VmState::Running, "{}", vm.name);
        assert_eq!(host.sh(vm.name.as_str(), "hostname"), vm.name.as_str());
    }
}

#[test]
fn vms_outlive_their_daemon_and_the_next_one_takes_them_over() {
    let host = Host::with_woken_p(["--warm", "1"]);
    host.wait_warm("p", 1);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/kept bs=64k count=128 2>/dev/null",
    );
    host.fork("p", 2);
    let told = host.sums("p", "/m/kept");
    let before = host.vms();
    host.kill_9("forkyardd");

    // The first command starts the next daemon.
    let after = host.vms();
    let brief = |vms: &[VmView]| -> Vec<_> {
        vms.iter()
            .map(|vm| (vm.id, vm.name.clone(), vm.pid, vm.epoch))
            .collect()
    };
    assert_eq!(
        brief(&before),
        brief(&after),
        "the same VMs, in the same processes"
    );
    all_answer(&host, &after);
    for vm in &after {
        assert_eq!(host.sums(vm.name.as_str(), "/m/kept"), told);
    }
    host.fork("p", 1);
    host.fork("p-1", 1);
    all_answer(&host, &host.vms());
    repair(&host);
    assert_eq!(host.vms().len(), 5, "the doctor touches nothing that lives");
    host.end();
}

#[test]
fn nothing_is_left_after_the_daemons_kill_9_in_the_middle_of_forks_and_doctor() {
    // As the daemon starts this or that process of those a fork takes, and at
    // these parts of the whole.
    const STARTS: u32 = 5;
    const PARTS: u32 = 4;
    let host = Host::with_p([]);
    let whole: ForkResponse = host.json(["fork", "p", "-n", "4"]);
    let whole = Duration::from_micros(whole.report.ready_us);
    remove_clones(&host);
    for moment in 1..=STARTS + PARTS {
        let fork = host.start(["fork", "p", "-n", "4"], "");
        let killed = moment <= STARTS && {
            let count = usize::try_from(moment).expect("few");
            host.kill_9_as_it_starts("forkyardd", count, || fork.is_over())
        };
        if !killed {
            sleep(whole * moment.saturating_sub(STARTS) / (PARTS + 1));
            host.kill_9("forkyardd");
        }
        // Whether it was done already is a matter of luck, and of no matter.
        fork.wait();
        repair(&host);
        let vms = host.vms();
        assert!(
            vms.iter().any(|vm| vm.name.as_str() == "p"),
            "at moment {moment} the parent was lost"
        );
        all_answer(&host, &vms);
        let qemus = host.processes(QEMU);
        assert_eq!(qemus.len(), vms.len(), "after moment {moment}: {qemus:#?}");
        remove_clones(&host);

        // Memory and disk go on where they were, also to the next clones.
        host.sh(
            "p",
            &format!("echo {moment} | tee -a /m/kept >>/d/kept; sync"),
        );
        let clone = host.fork("p", 1).remove(0);
        let script = "sync; echo 3 >/proc/sys/vm/drop_caches; cat /m/kept /d/kept";
        let kept: Vec<_> = (1..=moment)
            .chain(1..=moment)
            .map(|n| n.to_string())
            .collect();
        for vm in ["p", clone.name.as_str()] {
            assert_eq!(
                host.sh(vm, script),
                kept.join("\n"),
                "{vm} after moment {moment}"
            );
        }
        remove_clones(&host);
    }
    host.end();
}

#[track_caller]
fn remove_clones(host: &Host) {
    for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        host.ok(["rm", vm.name.as_str()]);
    }
}

#[test]
fn a_daemon_killed_while_it_boots_a_vm_leaves_nothing() {
    let host = Host::new();
    for program in ["forkyard-pager", QEMU] {
        let run = host.start(["run", "tiny", "--name", "p"], "");
        eventually(program, || !host.processes(program).is_empty());
        host.kill_9("forkyardd");
        run.wait();
        repair(&host);
        host.ok(["rm", "--all"]);
        host.nothing_left();
    }
}

#[test]
fn a_qemu_or_a_pager_that_dies_is_told_of_and_nothing_else_notices() {
    let host = Host::with_p([]);
    a_clone_whose_qemu_is_killed_counts_as_stopped_and_can_be_removed(&host);
    remove_clones(&host);
    a_vm_that_dies_while_no_daemon_runs_counts_as_stopped(&host);
    remove_clones(&host);
    a_pager_that_is_wholly_dead_is_told_of_and_its_remains_are_removed(&host);
    host.nothing_left();
}

#[track_caller]
fn a_clone_whose_qemu_is_killed_counts_as_stopped_and_can_be_removed(host: &Host) {
    let clones = host.fork("p", 2);
    let pid = clones[0].pid.expect("it runs");
    let qemus = host.processes(QEMU);
    qemus.iter().find(|q| q.pid == pid).expect("it runs").kill();
    host.wait_stopped("p-1");
    assert_eq!(host.sh("p-2", "hostname"), "p-2");
    host.exec_refused("p-1");
    host.ok(["rm", "p-1"]);
    assert_eq!(host.vms().len(), 2);
    host.fork("p", 1);
}

#[track_caller]
fn a_vm_that_dies_while_no_daemon_runs_counts_as_stopped(host: &Host) {
    let clone = host.fork("p", 1).remove(0);
    host.kill_9("forkyardd");
    let qemus = host.processes(QEMU);
    qemus
        .iter()
        .find(|q| Some(q.pid) == clone.pid)
        .expect("it runs")
        .kill();
    let name = clone.name.as_str();
    assert_eq!(host.vm(name).state, VmState::Stopped);
    assert_eq!(host.sh("p", "hostname"), "p");
    repair(host);
}

#[test]
fn a_killed_pager_is_replaced_and_no_vm_notices() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/noise bs=64k count=320 2>/dev/null; md5sum /m/noise >/m/sum",
    );
    host.fork("p", 2);
    let [pager, keeper] = ["forkyard-pager", "forkyard-keeper"];
    for program in [pager, keeper, pager] {
        // One alone is replaced by the other, if that is there again.
        let is_there = |half: &str| !host.processes(half).is_empty();
        eventually("both halves", || is_there(pager) && is_there(keeper));
        host.kill_9(program);
        for clone in ["p-1", "p-2"] {
            assert_eq!(host.sh(clone, "md5sum -c /m/sum"), "/m/noise: OK");
        }
    }
    host.fork("p-1", 1);
    assert_eq!(host.sh("p-3", "md5sum -c /m/sum"), "/m/noise: OK");
    host.end();
}

#[track_caller]
fn a_pager_that_is_wholly_dead_is_told_of_and_its_remains_are_removed(host: &Host) {
    host.fork("p", 2);
    host.kill_whole_pager();
    let told = host.fails(["fork", "p"]);
    assert!(told.contains("pager"), "{told}");
    assert_eq!(host.vms().len(), 3, "what there is can still be listed");
    for words in [&["doctor"][..], &["doctor", "--repair"]] {
        let told = host.start(words, "").wait();
        let said = told.text() + &told.stderr;
        assert!(
            said.contains("the pager and what starts it again are gone"),
            "{said}"
        );
    }
    host.start(["rm", "--all"], "").wait();
    assert_eq!(host.vms().len(), 0);
    // Of the same daemon: another pager is started.
    host.ok(["run", "tiny", "--name", "after"]);
    assert_eq!(host.sh("after", "echo it lives"), "it lives");
    host.ok(["rm", "after"]);
    host.json::<Diagnosis>(["doctor", "--repair"]);
}

#[test]
fn a_vm_whose_agent_is_silent_runs_on_under_the_next_daemon() {
    let host = Host::with_woken_p([]);
    let before = host.vm("p");
    host.put_agent_worker("p");
    // Not ended: another would be started.
    let script =
        "(worker=$(agent-worker); kill -STOP $worker; echo the agent is gone >/dev/console) &";
    let mut killer = host.talk_to(["exec", "p", "--", "sh", "-c", script]);
    eventually("the agent's end", || {
        host.ok(["logs", "p"]).contains("the agent is gone")
    });
    host.kill_9("forkyardd");
    killer.wait().expect("its daemon has gone");
    let after = host.vm("p");
    assert_eq!(
        (after.pid, after.state),
        (before.pid, VmState::Running),
        "it is left alone"
    );
    assert!(after.silence.is_some(), "and said to be silent");
    assert!(host.ok(["ps"]).contains("silent"));
    host.end();
}

#[test]
fn damaged_records_are_refused_and_what_runs_runs_on() {
    let host = Host::with_woken_p([]);
    host.fork("p", 1);
    // Everything that is recorded lies in the file itself after this.
    host.ok(["checkpoint", "p", "--name", "c"]);
    let before = host.vms();
    let qemus = || -> BTreeSet<_> { host.processes(QEMU).iter().map(|qemu| qemu.pid).collect() };
    let running = qemus();
    host.kill_9("forkyardd");
    eventually("its end", || host.processes("forkyardd").is_empty());
    let [records, log] =
        ["", "-wal"].map(|end| host.folder().join(format!("state/forkyard.db{end}")));
    let whole = [&records, &log].map(|file| fs::read(file).expect("there"));
    let overwritten = || {
        let mut pages = whole[0].clone();
        pages[4096..12288].fill(b'x');
        pages
    };
    for damaged in [overwritten(), whole[0][..whole[0].len() / 2].to_vec()] {
        fs::write(&records, damaged).expect("damaged");
        fs::write(&log, "").expect("emptied");
        let outcome = host.start(["ps"], "").wait();
        assert!(![Some(0), None].contains(&outcome.code), "{outcome:?}");
        assert!(outcome.stderr.contains("forkyard.db"), "{outcome:?}");
        assert_eq!(qemus(), running, "they run on");
    }
    fs::write(&records, &whole[0]).expect("restored");
    fs::write(&log, &whole[1]).expect("restored");
    let states =
        |vms: &[VmView]| -> Vec<_> { vms.iter().map(|vm| (vm.id, vm.state, vm.pid)).collect() };
    assert_eq!(states(&host.vms()), states(&before));
    for vm in ["p", "p-1"] {
        assert_eq!(host.sh(vm, "hostname"), vm);
    }
    host.fork("c", 1);
    host.end();
}

#[test]
fn a_full_disk_fails_the_fork_and_harms_nobody() {
    let host = Host::new();
    let state = host.folder().join("state");
    fs::create_dir(&state).expect("a folder");
    let (at, size) = (state.clone(), Some("size=48m,mode=711"));
    host.within(move || mount(Some("state"), &at, Some("tmpfs"), MsFlags::empty(), size))
        .expect("a small disk");
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "mkdir -p /m /d && mount -t tmpfs m /m");
    host.fork("p", 1);
    let filler = state.join("filler");
    let fill = filler.clone();
    host.within(move || {
        let mut file = fs::File::create(fill).expect("a file");
        // To the last byte.
        while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    });
    for _ in 0..2 {
        let told = host.fails(["fork", "p", "-n", "2"]);
        assert!(told.contains("full") || told.contains("space"), "{told}");
    }
    // Nor is there room for another VM, or for an instant that is kept: not even
    // for its memory, once there is room for the rest of it.
    let full = |words: &[&str]| {
        let told = host.start(words, "").wait().exited(1).stderr;
        assert!(told.contains("full") || told.contains("space"), "{told}");
        assert_eq!(host.vms().len(), 2, "nothing is listed of it");
    };
    full(&["run", "tiny", "--name", "q"]);
    full(&["checkpoint", "p"]);
    let shorter = filler.clone();
    host.within(move || {
        let file = fs::File::options().write(true).open(shorter)?;
        file.set_len(file.metadata()?.len().saturating_sub(1 << 20))
    })
    .expect("a little room");
    full(&["checkpoint", "p"]);
    let told = host.start(["doctor", "-o", "json"], "").wait().exited(1);
    let told: Diagnosis = serde_json::from_slice(&told.stdout).expect("JSON");
    let of_disk = |problem: &String| problem.contains("the disk of");
    assert!(told.problems.iter().any(of_disk), "{told:?}");
    assert!(told.leftovers.is_empty());
    // One that writes stands still, and goes on with the writing.
    let words = ["exec", "p", "--", "sh", "-c", WRITE];
    let writes = host.start(words, "");
    eventually("a VM that stands still", || host.vm("p").silence.is_some());
    assert!(!writes.is_over());
    host.within(move || fs::remove_file(filler))
        .expect("room again");
    assert_eq!(writes.wait().exited(0).text(), "/d/big: OK");
    // Its clone may have been stopped for what its file system wrote by itself.
    eventually("the news of it", || {
        host.vms().iter().all(|vm| vm.silence.is_none())
    });
    assert!(host.json::<Diagnosis>(["doctor"]).leftovers.is_empty());
    host.fork("p", 2);
    all_answer(&host, &host.vms());
    host.ok(["rm", "--all"]);
    eventually("the daemon's end", || {
        host.processes("forkyardd").is_empty()
    });
    host.within(move || umount(&state)).expect("nobody uses it");
    host.nothing_left();
}
