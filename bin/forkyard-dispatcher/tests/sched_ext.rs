//! The dispatcher with sched_ext, on a kernel that has it: in a guest of two CPUs,
//! started by `cargo xtask test-sched-ext`. Processes with busy threads, named as
//! QEMU names its vCPUs', stand in for VMs.
//!
//! What is held against a promise is the kernel's own record: its trace of the vCPUs that ran
//! when, and the time it says each thread has run.

mod common;
#[path = "sched_ext/guest.rs"]
mod guest;
#[path = "sched_ext/trace.rs"]
mod trace;

use common::{Daemon, Vm, affinity, ended, tell, until};
use forkyard_sched::{Parallel, Policy};
use forkyard_vcpu_dispatch::protocol::{Level, Means, Wanted};
use guest::{Cpus, Kind, class, on, state};
use nix::sys::signal::Signal;
use std::{
    io::Read,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use trace::Trace;

/// The classes, as the kernel numbers them.
const USUAL: u32 = 0;
const EXTERNAL: u32 = 7;

/// Some, of a few microseconds, and a pause, at which QEMU turns to the other CPU: else it
/// would hear of interrupts a tick late.
fn work() {
    for n in 0..1_000 {
        std::hint::black_box(n);
    }
    std::hint::spin_loop();
}

/// Stand-in that the other tests run as a VM: one idle main thread, and so many
/// vCPUs.
#[test]
#[ignore = "run by the other tests"]
fn stand_in() {
    let count: u32 = std::env::var("VCPUS").map_or(0, |n| n.parse().expect("a number"));
    let naps = std::env::var_os("NAPS").is_some();
    let busy = move || loop {
        let begun = Instant::now();
        while !naps || begun.elapsed() < Duration::from_millis(5) {
            work();
        }
        thread::sleep(Duration::from_millis(15));
    };
    let named = |n| thread::Builder::new().name(format!("CPU {n}/TCG"));
    let threads: Vec<_> = (0..count)
        .map(|n| named(n).spawn(busy).expect("a thread"))
        .collect();
    // Ends with its parent.
    let _ = std::io::stdin().read(&mut [0]);
    drop(threads);
    std::process::exit(0);
}

fn gang(vm: &Vm) -> Wanted {
    Wanted {
        pid: vm.pid(),
        policy: Some(Policy::Procco),
        parallel: Some(Parallel::Yes),
        ..Wanted::default()
    }
}

fn weighed(vm: &Vm, policy: Policy, weight: u32) -> Wanted {
    Wanted {
        pid: vm.pid(),
        level: Some(Level::Enforce),
        policy: Some(policy),
        weight: Some(weight),
        ..Wanted::default()
    }
}

/// Lets so many turns go by.
fn turns(daemon: &Daemon, count: u64) {
    let before = daemon.show().switches;
    until("turns go by", || daemon.show().switches >= before + count);
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn siblings_of_a_gang_run_at_the_same_time() {
    let vms = [Vm::start(2, Kind::Busy), Vm::start(2, Kind::Busy)];
    let daemon = Daemon::start(Cpus::All);
    for vm in &vms {
        daemon.set(gang(vm)).expect("taken");
    }
    assert_eq!(daemon.show().means, Means::SchedExt);
    for tid in vms.iter().flat_map(Vm::tids) {
        assert_eq!(class(tid), EXTERNAL);
    }
    let trace = Trace::of(|| turns(&daemon, 200));
    let all: Vec<u32> = vms.iter().flat_map(Vm::tids).collect();
    for vm in &vms {
        let part = trace.together(&vm.tids(), &all);
        println!("siblings together {:.1} % of the time", part * 100.0);
        assert!(part > 0.8, "{part}: VMs {all:?}\n{trace}");
    }
    assert_eq!(state(), "enabled");
}

/// Of the time that two VMs had, the part of the second: as the kernel says, and as the
/// dispatcher meant it.
fn part_of_second(daemon: &Daemon, vms: [&Vm; 2]) -> (f64, f64) {
    let had = || {
        let shown = daemon.show();
        vms.map(|vm| {
            let mut all = shown.vms.iter();
            let it = all.find(|it| it.pid == vm.pid()).expect("scheduled");
            let given: u64 = it.vcpus.iter().map(|vcpu| vcpu.given_ns).sum();
            (vm.ran().iter().sum::<u64>(), given)
        })
    };
    turns(daemon, 20);
    let before = had();
    turns(daemon, 400);
    let after = had();
    let part = |of: fn(&(u64, u64)) -> u64| {
        let [first, second] = [0, 1].map(|n| (of(&after[n]) - of(&before[n])) as f64);
        second / (first + second)
    };
    (part(|had| had.0), part(|had| had.1))
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn the_kernel_gives_turns_by_weight_as_they_are_meant() {
    for (policy, vcpus, cpus) in [
        (Policy::Cfs, 1, Cpus::First),
        (Policy::Credit, 2, Cpus::All),
    ] {
        let (light, heavy) = (Vm::start(vcpus, Kind::Busy), Vm::start(vcpus, Kind::Busy));
        let daemon = Daemon::start(cpus);
        daemon.set(weighed(&light, policy, 256)).expect("taken");
        daemon.set(weighed(&heavy, policy, 768)).expect("taken");
        let (had, meant) = part_of_second(&daemon, [&light, &heavy]);
        println!("{policy}: {had:.3}, meant {meant:.3}");
        assert!((had - meant).abs() < 0.03, "{policy}: {had}, not {meant}");
        // What policies make of weights on several CPUs is the simulator's to say.
        let alone = vcpus == 1;
        assert!(!alone || (had - 0.75).abs() < 0.03, "{policy}: {had}");
        assert!(had > 0.55, "{policy}: {had}");
    }
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn one_that_sleeps_and_wakes_has_its_turns() {
    let (busy, naps) = (Vm::start(2, Kind::Busy), Vm::start(1, Kind::Naps));
    let daemon = Daemon::start(Cpus::All);
    for vm in [&busy, &naps] {
        daemon.set(weighed(vm, Policy::Cfs, 256)).expect("taken");
    }
    for _ in 0..20 {
        naps.all_run_on();
        busy.all_run_on();
    }
    let shown = daemon.show();
    assert!(shown.vms.iter().all(|vm| vm.now == Level::Enforce));
    assert_eq!(state(), "enabled");
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn usual_threads_go_before_those_of_vms_which_have_what_is_left() {
    let vms = [Vm::start(2, Kind::Busy), Vm::start(2, Kind::Busy)];
    let daemon = Daemon::start(Cpus::All);
    for vm in &vms {
        daemon.set(gang(vm)).expect("taken");
    }
    let done = AtomicBool::new(false);
    let (had, of) = thread::scope(|scope| {
        let usual = scope.spawn(|| {
            on(Cpus::Last);
            let (begun, before) = (Instant::now(), guest::own_time());
            while !done.load(Ordering::Relaxed) {
                work();
            }
            (guest::own_time() - before, begun.elapsed())
        });
        turns(&daemon, 60);
        vms.iter().for_each(|vm| vm.some_run_on());
        done.store(true, Ordering::Relaxed);
        usual.join().expect("no panic")
    });
    let part = had.as_secs_f64() / of.as_secs_f64();
    println!("a usual thread had {:.0} % of a CPU", part * 100.0);
    assert!(part > 0.5, "{part}");
    assert_eq!(state(), "enabled");
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn the_kernel_takes_all_back_when_the_dispatcher_is_killed() {
    let vms = [Vm::start(2, Kind::Busy), Vm::start(2, Kind::Busy)];
    let tids: Vec<u32> = vms.iter().flat_map(Vm::tids).collect();
    let before: Vec<_> = tids.iter().map(|&tid| affinity(tid)).collect();
    let mut daemon = Daemon::start(Cpus::All);
    for vm in &vms {
        daemon.set(gang(vm)).expect("taken");
    }
    turns(&daemon, 20);
    assert_eq!(state(), "enabled");
    let guard = daemon.show().guard;
    // Not its doing.
    tell(guard, Signal::SIGSTOP);
    let begun = Instant::now();
    daemon.child.kill().expect("killed");
    until("the kernel has taken them back", || state() == "disabled");
    println!("taken back after {:?}", begun.elapsed());
    vms.iter().for_each(Vm::all_run_on);
    // The rest is.
    tell(guard, Signal::SIGCONT);
    until("the guard has done its work", || ended(guard));
    for (&tid, was) in tids.iter().zip(&before) {
        assert_eq!(class(tid), USUAL);
        assert_eq!(affinity(tid), *was, "they may run where they might before");
    }
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn the_kernel_takes_all_back_when_the_dispatcher_stands_still() {
    let vm = Vm::start(3, Kind::Busy);
    let daemon = Daemon::start(Cpus::All);
    let wanted = || weighed(&vm, Policy::Rr, 256);
    daemon.set(wanted()).expect("taken");
    turns(&daemon, 20);
    tell(daemon.child.id(), Signal::SIGSTOP);
    let begun = Instant::now();
    until("the kernel has taken them back", || state() == "disabled");
    println!("taken back after {:?}", begun.elapsed());
    vm.all_run_on();
    tell(daemon.child.id(), Signal::SIGCONT);
    until("the dispatcher has noticed", || {
        daemon.show().vms[0].level == Level::Observe
    });
    assert!(vm.tids().into_iter().all(|tid| class(tid) == USUAL));
    daemon.set(wanted()).expect("taken again");
    turns(&daemon, 20);
    assert_eq!(state(), "enabled");
    daemon.release(&vm).expect("released");
    assert!(vm.tids().into_iter().all(|tid| class(tid) == USUAL));
}

#[test]
#[ignore = "cargo xtask test-sched-ext"]
fn what_cannot_be_is_refused_and_says_why() {
    let vm = Vm::start(2, Kind::Busy);
    let daemon = Daemon::with(Path::new("/init"), Cpus::All);
    daemon.listens();
    let refused = daemon.set(gang(&vm)).expect_err("a script is no scheduler");
    assert!(refused.contains("scheduler in BPF"), "{refused}");
    assert!(vm.tids().into_iter().all(|tid| class(tid) == USUAL));
    drop(daemon);

    let first = Daemon::start(Cpus::All);
    first.set(gang(&vm)).expect("taken");
    let second = Daemon::refused(&guest::object());
    assert!(second.contains("another scheduler, forkyard"), "{second}");
    let nowhere = Path::new("/nowhere");
    drop(first);
    until("the first has let go", || state() == "disabled");
    let third = Daemon::refused(nowhere);
    assert!(third.contains("/nowhere"), "{third}");
}
