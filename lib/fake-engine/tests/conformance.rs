//! Conformance of every engine: of stock QEMU and of the one that is made up. Needs to
//! be root.

mod site;

use forkyard_types::ByteCount;
use forkyard_vmm::{Cause, MachineRecord, RunState, VmmError, VmmErrorKind, files};
use futures::FutureExt as _;
use site::{Kind, Site, io};
use std::{fs, os::unix::net::UnixStream, time::Duration};

/// Has a claim tried on each engine, as a test of its own.
macro_rules! claims {
    ($($claim:ident)*) => {
        mod qemu {
            $(#[tokio::test] async fn $claim() { super::$claim(super::Kind::Qemu).await; })*
        }
        mod fake {
            $(#[tokio::test] async fn $claim() { super::$claim(super::Kind::Fake).await; })*
        }
    };
}

claims! {
    a_machine_stands_still_when_it_is_told_and_goes_on
    a_state_is_saved_of_what_stands_still_alone
    the_disk_moves_to_an_overlay_over_the_active_slice_and_to_no_other
    memory_is_private_and_where_the_machine_says
    a_shell_takes_a_state_and_reads_the_file_as_its_memory
    a_state_cut_short_is_the_end_of_the_shell
    a_shell_that_is_dropped_leaves_nothing
    a_machine_is_adopted_as_it_is_by_its_record_and_no_other_is
    an_end_is_seen_and_leaves_nothing_and_can_be_asked_for_twice
    what_no_record_says_is_found_and_ended
    slices_are_folded_into_the_one_below_and_keep_what_was_written
    a_disk_comes_to_lie_over_nothing_and_reads_the_same
}

async fn a_machine_stands_still_when_it_is_told_and_goes_on(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    assert_eq!(machine.run_state().await.expect("asked"), RunState::Running);
    // The agent's port listens from the start.
    UnixStream::connect(machine.agent_socket()).expect("listens");
    for _ in 0..2 {
        machine.stop().await.expect("stops");
        assert_eq!(machine.run_state().await.expect("asked"), RunState::Paused);
        machine.stopped().await;
    }
    for _ in 0..2 {
        machine.cont().await.expect("goes on");
        assert_eq!(machine.run_state().await.expect("asked"), RunState::Running);
    }
    machine.kill().await.expect("ended");
}

async fn a_state_is_saved_of_what_stands_still_alone(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let refused = machine.save_descriptor().await.expect_err("it runs");
    assert_eq!(refused.kind(), VmmErrorKind::Refused, "{refused}");
    machine.stop().await.expect("stops");
    let first = machine.save_descriptor().await.expect("saved");
    assert!(!first.is_empty());
    // As often as is asked.
    let second = machine.save_descriptor().await.expect("saved");
    assert_eq!(second.len(), first.len());
    machine.kill().await.expect("ended");
}

async fn the_disk_moves_to_an_overlay_over_the_active_slice_and_to_no_other(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let active = || async {
        machine
            .active_slice()
            .await
            .expect("asked")
            .expect("a disk")
    };
    assert_eq!(active().await, site.disk);
    let missing = machine.prepare_overlay(&site.path().join("missing")).await;
    missing.expect_err("it is not there");
    let [first, second] = ["first", "second"].map(|name| site.slice(name, &site.disk));
    let unused = machine.prepare_overlay(&first).await.expect("opened");
    let used = machine.prepare_overlay(&second).await.expect("opened");
    assert_eq!(active().await, site.disk, "only prepared");
    machine.stop().await.expect("stops");
    machine.freeze_disk(used).await.expect("frozen");
    assert_eq!(active().await, second);
    let stale = machine
        .freeze_disk(unused)
        .await
        .expect_err("it lies elsewhere");
    assert!(matches!(stale, VmmError::StaleOverlay { .. }), "{stale}");
    assert_eq!(active().await, second);
    let third = site.slice("third", &second);
    let spare = machine.prepare_overlay(&third).await.expect("opened");
    machine.discard_overlay(spare).await.expect("closed");
    machine.cont().await.expect("goes on");
    machine.kill().await.expect("ended");
}

async fn memory_is_private_and_where_the_machine_says(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let ram = machine.ram().await.expect("told");
    assert_eq!(ram.len, machine.record().memory);
    let maps = fs::read_to_string(format!("/proc/{}/maps", machine.record().process.pid));
    let covers = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap_or(0));
        Some(from <= ram.hva && ram.hva < to && rest.starts_with("rw-p"))
    };
    assert!(
        maps.expect("runs")
            .lines()
            .any(|line| covers(line) == Some(true))
    );
    machine.kill().await.expect("ended");
}

async fn a_shell_takes_a_state_and_reads_the_file_as_its_memory(kind: Kind) {
    let site = Site::new(kind);
    let parent = site.boot().await;
    let goes_on = site.slice("goes-on", &site.disk);
    let overlay = parent.prepare_overlay(&goes_on).await.expect("opened");
    parent.stop().await.expect("stops");
    // The parent lets go of the disk that the clone's lies over.
    parent.freeze_disk(overlay).await.expect("frozen");
    let state = parent.save_descriptor().await.expect("saved");
    let shell = site.shell("own").await;
    // After the shell has started, which has read nothing yet.
    site.write_memory(0x55);
    assert_eq!(shell.record().memory, parent.record().memory);
    let clone = shell.load(&state).await.expect("loaded");
    assert_eq!(clone.run_state().await.expect("asked"), RunState::Running);
    assert_eq!(site.read_memory(&*clone).await, 0x55);
    assert_ne!(clone.record().process, parent.record().process);
    parent.kill().await.expect("ended");
    clone.kill().await.expect("ended");
}

async fn a_state_cut_short_is_the_end_of_the_shell(kind: Kind) {
    let site = Site::new(kind);
    let parent = site.boot().await;
    parent.stop().await.expect("stops");
    let state = parent.save_descriptor().await.expect("saved");
    let shell = site.shell("own").await;
    let record = shell.record().clone();
    let half = &state[..state.len() / 2];
    shell.load(half).await.expect_err("half a state is none");
    site.assert_gone(&record);
    parent.kill().await.expect("ended");
}

async fn a_shell_that_is_dropped_leaves_nothing(kind: Kind) {
    let site = Site::new(kind);
    let shell = site.shell("own").await;
    let record = shell.record().clone();
    let exited = shell.exited();
    drop(shell);
    exited.await;
    site.wait_gone(&record).await;
}

async fn a_machine_is_adopted_as_it_is_by_its_record_and_no_other_is(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let own = site.slice("own", &site.disk);
    machine.stop().await.expect("stops");
    let overlay = machine.prepare_overlay(&own).await.expect("opened");
    machine.freeze_disk(overlay).await.expect("frozen");
    let record = machine.record().clone();
    assert!(machine.lost().now_or_never().is_none());
    drop(machine);
    let adopted = site.engine.adopt(record.clone()).await.expect("runs on");
    assert_eq!(adopted.run_state().await.expect("asked"), RunState::Paused);
    let active = adopted.active_slice().await.expect("asked");
    assert_eq!(active, Some(own));
    adopted.cont().await.expect("goes on");
    // A process that had the number before, or will have it.
    let mut other = record.clone();
    other.process.start += 1;
    let gone = site.engine.adopt(other).await.expect_err("another");
    assert_eq!(gone.kind(), VmmErrorKind::Gone, "{gone}");
    assert_eq!(
        adopted.run_state().await.expect("unharmed"),
        RunState::Running
    );
    let exited = adopted.exited();
    adopted.kill().await.expect("ended");
    exited.await;
    let gone = site.engine.adopt(record).await.expect_err("it has ended");
    assert_eq!(gone.kind(), VmmErrorKind::Gone, "{gone}");
}

async fn an_end_is_seen_and_leaves_nothing_and_can_be_asked_for_twice(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let record = machine.record().clone();
    let (exited, lost) = (machine.exited(), machine.lost());
    machine.quit().await.expect("ended");
    exited.await;
    lost.await;
    assert_eq!(machine.cause().await, Cause::Told);
    site.assert_gone(&record);
    machine.kill().await.expect("nothing to do");
    site.engine.discard(&record).await.expect("nothing to do");
    let died = machine.stop().await.expect_err("it has ended");
    assert_eq!(died.kind(), VmmErrorKind::Gone, "{died}");
}

async fn what_no_record_says_is_found_and_ended(kind: Kind) {
    let site = Site::new(kind);
    let machine = site.boot().await;
    let MachineRecord { id, dir, .. } = machine.record().clone();
    assert_eq!(site.engine.vms().expect("listed"), [id]);
    let exited = machine.exited();
    drop(machine);
    site.engine.end_processes(id).await.expect("ended");
    exited.await;
    assert_eq!(site.engine.vms().expect("listed"), []);
    site.engine.clear(id, &dir).await.expect("cleared");
    assert!(!dir.join(files::AGENT).exists());
    // There is nothing any more.
    site.engine.end_processes(id).await.expect("nothing to do");
    site.engine.clear(id, &dir).await.expect("nothing to do");
}

async fn slices_are_folded_into_the_one_below_and_keep_what_was_written(kind: Kind) {
    let site = Site::new(kind);
    let own = site.slice("own", &site.disk);
    let [a, b, c] = {
        let a = site.slice("a", &own);
        let b = site.slice("b", &a);
        let c = site.slice("c", &b);
        [a, b, c]
    };
    // What a guest would have written while each was active.
    io(&own, "write -P 1 0 64k");
    io(&a, "write -P 2 64k 64k");
    io(&b, "write -P 3 128k 64k");
    let machine = site.boot_over(&own).await;
    for slice in [&a, &b, &c] {
        let overlay = machine.prepare_overlay(slice).await.expect("opened");
        machine.stop().await.expect("stops");
        machine.freeze_disk(overlay).await.expect("frozen");
        machine.cont().await.expect("goes on");
    }
    let never = Box::pin(std::future::pending());
    let upper = [b.clone(), a.clone()];
    machine
        .fold_disk(&upper, &own, never)
        .await
        .expect("folded");
    let active = machine.active_slice().await.expect("asked");
    assert_eq!(active.as_ref(), Some(&c));
    let exited = machine.exited();
    machine.quit().await.expect("ended");
    let ended = tokio::time::timeout(Duration::from_secs(60), exited).await;
    ended.expect("in time");
    for gone in upper {
        fs::remove_file(gone).expect("of no more use");
    }
    for (at, pattern) in [("0", 1), ("64k", 2), ("128k", 3)] {
        io(&c, &format!("read -P {pattern} {at} 64k"));
    }
}

async fn a_disk_comes_to_lie_over_nothing_and_reads_the_same(kind: Kind) {
    let site = Site::new(kind);
    let own = site.slice("own", &site.disk);
    let active = site.slice("active", &own);
    io(&own, "write -P 1 0 64k");
    io(&active, "write -P 2 64k 64k");
    let machine = site.boot_over(&active).await;
    let below = [own.clone(), site.disk.clone()];
    // Called off at once it is as it was, and can be asked for again; so it can when it is done.
    let now = Box::pin(std::future::ready(()));
    let _ = machine.own_disk(&below, ByteCount(1), &|_| {}, now).await;
    for _ in 0..2 {
        let never = Box::pin(std::future::pending());
        let done = machine.own_disk(&below, ByteCount(0), &|_| {}, never);
        done.await.expect("copied");
    }
    assert_eq!(
        machine.active_slice().await.expect("asked"),
        Some(active.clone())
    );
    let exited = machine.exited();
    machine.quit().await.expect("ended");
    let ended = tokio::time::timeout(Duration::from_secs(60), exited).await;
    ended.expect("in time");
    for gone in below {
        fs::remove_file(gone).expect("of no more use");
    }
    for (at, pattern) in [("0", 1), ("64k", 2)] {
        io(&active, &format!("read -P {pattern} {at} 64k"));
    }
}
