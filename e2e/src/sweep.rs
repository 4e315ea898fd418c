//! Killing the daemon at each step of what it does, and looking what is left of it.

use crate::{Host, eventually, steps};
use forkyard_types::{Diagnosis, VmInspect, VmState, VmView};
use std::collections::BTreeSet;

/// Kills the daemon at `few` steps of what `words` ask for, or at all of them if the test
/// is told so; `undo` makes it possible to ask again.
pub fn sweep<const N: usize>(host: &Host, words: [&str; N], few: u64, undo: impl Fn(&Host)) {
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

/// Kills the daemon at `few` steps of `work`, or at all of them if the test is told so. What `begin`
/// does before it and `end` after it is not counted; `work` may fail, and its own commands may start
/// the next daemon, which is not killed.
pub fn sweep_of(
    host: &Host,
    what: &str,
    few: u64,
    begin: impl Fn(),
    work: impl Fn(),
    end: impl Fn(),
) {
    begin();
    host.steps().count_only();
    work();
    let total = host.steps().stop();
    end();
    let mut reached = 0;
    for step in steps::chosen(total, few) {
        begin();
        host.steps().kill_at(step);
        work();
        host.steps().stop();
        let call = host.steps().died_before();
        eprintln!("{what}: {step} of {total}, {call}");
        // Threads take turns as they like: there may be fewer steps this time.
        reached += u64::from(!call.is_empty());
        end();
    }
    assert!(reached > 0, "the daemon was never killed");
}

/// Checks that running VMs are whole, records are true, and the host has nothing else.
#[track_caller]
pub fn is_sound(host: &Host) {
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
        let qemus = host
            .processes(host.machine())
            .into_iter()
            .map(|qemu| qemu.pid);
        let qemus: BTreeSet<_> = qemus.collect();
        let recorded: BTreeSet<_> = vms.iter().filter_map(|vm| vm.pid).collect();
        recorded.is_subset(&qemus) && qemus.len() == recorded.len() + warm
    });
}

/// Waits until nothing on a host is without a record. A process that is just ending may be
/// seen after its record has gone; a leftover stays until it is repaired.
#[track_caller]
pub fn nothing_left_over(host: &Host) {
    let mut last = Vec::new();
    eventually("nothing to be left over", || {
        // It fails as long as there is something.
        let told = host.start(["doctor", "-o", "json"], "").wait();
        let told: Diagnosis = serde_json::from_slice(&told.stdout).expect("a diagnosis");
        let seen = told.leftovers;
        if seen != last {
            eprintln!("left over: {seen:?}");
            last.clone_from(&seen);
        }
        seen.is_empty()
    });
}
