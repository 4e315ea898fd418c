//! The dispatcher on real threads: processes with threads named as QEMU names
//! its vCPUs', that do nothing but run. Needs root.
//!
//! What is held against a promise is what the dispatcher decided, and how things
//! are once something has happened: never what a busy machine makes of it, nor how
//! long that takes.

mod common;
#[path = "real_threads/host.rs"]
mod host;

use common::{Daemon, Vm, affinity, ended, tell, until};
use forkyard_sched::{Parallel, Policy};
use forkyard_sys_host::sched::{Class, set_class};
use forkyard_vcpu_dispatch::{
    freezer::PREFIX,
    protocol::{Because, Level, Request, Shown, Wanted},
    socket::ask,
};
use host::{frozen, groups, nests, stopped};
use nix::sys::signal::Signal;
use std::{
    fs,
    io::Read,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Stand-in that the other tests run as a VM: one idle main thread, one busy
/// thread that is no vCPU's, and so many that are.
#[test]
#[ignore = "run by the other tests"]
fn stand_in() {
    let count: u32 = std::env::var("VCPUS").map_or(0, |n| n.parse().expect("a number"));
    let busy = |name: String| {
        let spin = || loop {
            std::hint::spin_loop();
        };
        thread::Builder::new()
            .name(name)
            .spawn(spin)
            .expect("a thread")
    };
    let threads: Vec<_> = (0..count).map(|n| busy(format!("CPU {n}/TCG"))).collect();
    let _worker = (count > 0).then(|| busy("worker".to_owned()));
    // Ends with its parent.
    let _ = std::io::stdin().read(&mut [0]);
    drop(threads);
    std::process::exit(0);
}

/// Time that turns have given a VM.
fn given(shown: &Shown, vm: &Vm) -> u64 {
    let mut vms = shown.vms.iter();
    let found = vms.find(|it| it.pid == vm.pid()).expect("scheduled");
    found.vcpus.iter().map(|vcpu| vcpu.given_ns).sum()
}

#[test]
fn turns_are_given_by_weight() {
    let (light, heavy) = (Vm::start(1), Vm::start(1));
    let daemon = Daemon::start();
    daemon.enforce(&light, 256);
    daemon.enforce(&heavy, 768);
    let before = daemon.show();
    // Of the dispatcher's own record: what else the machine does with the time that
    // it gives is not its to decide.
    let part = |after: &Shown| {
        let had = |vm| given(after, vm) - given(&before, vm);
        let (light, heavy) = (had(&light), had(&heavy));
        heavy as f64 / (light + heavy) as f64
    };
    // A turn that ends late on a busy machine counts for little among later ones.
    let mut last = 0.0;
    until("hundreds of turns were given by weight", || {
        let after = daemon.show();
        if after.switches >= before.switches + 600 {
            last = part(&after);
        }
        (last - 0.75).abs() < 0.02
    });
}

#[test]
fn whoever_is_not_to_run_is_frozen_and_nobody_else_is() {
    let vm = Vm::start(3);
    let daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let made = groups(&vm.tids());
    assert_eq!(made.len(), 3, "one for each vCPU and no other: {made:?}");
    until("two of three are frozen", || {
        made.iter().filter(|group| frozen(group)).count() == 2
    });
    // The main thread and the worker are in no such group.
    for entry in fs::read_dir(format!("/proc/{}/task", vm.pid())).expect("threads") {
        let path = entry.expect("a thread").path();
        let name = fs::read_to_string(path.join("comm")).expect("alive");
        let groups = fs::read_to_string(path.join("cgroup")).expect("alive");
        assert_eq!(groups.contains(PREFIX), name.starts_with("CPU "), "{name}");
    }
    let shown = daemon.ask(&Request::Show).expect("shown");
    assert_eq!(shown.cpus[0].waiting.len(), 2);
    assert!(shown.vms[0].vcpus.iter().all(|vcpu| vcpu.stacked));
}

#[test]
fn a_gang_is_stopped_and_goes_on_by_one_group() {
    let vms = [Vm::start(2), Vm::start(2)];
    // Its vCPUs are put on the dispatcher's CPUs, wherever they might run before.
    let daemon = Daemon::on("0,1");
    for vm in &vms {
        let wanted = Wanted {
            pid: vm.pid(),
            level: Some(Level::Enforce),
            policy: Some(Policy::Procco),
            parallel: Some(Parallel::Yes),
            ..Wanted::default()
        };
        daemon.ask(&Request::Set(wanted)).expect("taken");
    }
    for vm in &vms {
        let [nest] = &nests(&[vm])[..] else {
            panic!("one group for each VM, where there is a freezer of v2");
        };
        let made = groups(&vm.tids());
        assert!(made.iter().all(|group| group.parent() == Some(nest)));
        until("it is stopped as one", || {
            stopped(nest) && !made.iter().any(|group| stopped(group))
        });
        until("it goes on as one", || {
            !made.iter().any(|group| frozen(group))
        });
    }
}

#[test]
fn everything_runs_again_when_the_dispatcher_is_killed() {
    let vms = [Vm::start(2), Vm::start(2)];
    let tids: Vec<u32> = vms.iter().flat_map(Vm::tids).collect();
    let before: Vec<_> = tids.iter().map(|&tid| affinity(tid)).collect();
    let mut daemon = Daemon::start();
    for vm in &vms {
        daemon.enforce(vm, 256);
    }
    let made = groups(&tids);
    until("three of four are frozen", || {
        made.iter().filter(|group| frozen(group)).count() == 3
    });
    let guard = daemon.show().guard;
    daemon.child.kill().expect("killed");
    until("the guard has done its work", || ended(guard));
    assert_eq!(groups(&tids), Vec::<PathBuf>::new());
    assert_eq!(nests(&[&vms[0], &vms[1]]), Vec::<PathBuf>::new());
    for (&tid, was) in tids.iter().zip(&before) {
        assert_eq!(affinity(tid), *was, "they may run where they might before");
    }
    vms.iter().for_each(Vm::all_run_on);
}

/// The promise is of a machine that has time for the guard and for the process that
/// looks: of ten deaths one must be seen to keep it.
#[test]
fn a_guard_thaws_within_a_tenth_of_a_second() {
    const PROMISE: Duration = Duration::from_millis(100);
    let vm = Vm::start(3);
    let took = |_| {
        let mut daemon = Daemon::start();
        daemon.enforce(&vm, 256);
        let made = groups(&vm.tids());
        until("two of three are frozen", || {
            made.iter().filter(|group| frozen(group)).count() == 2
        });
        let guard = daemon.show().guard;
        let begun = Instant::now();
        daemon.child.kill().expect("killed");
        until("all are thawed", || !made.iter().any(|group| frozen(group)));
        let took = begun.elapsed();
        until("the guard has done its work", || ended(guard));
        took
    };
    // The observer must not wait for its turn either.
    let watch = thread::scope(|scope| {
        let looks = || {
            set_class(0, Class::First(1)).expect("root");
            (0..10).map(took).find(|took| *took <= PROMISE)
        };
        scope.spawn(looks).join().expect("no panic")
    });
    println!("thawed after {:?}", watch.expect("in time once"));
}

#[test]
fn a_killed_guard_is_replaced_and_the_next_one_knows_everything() {
    let vm = Vm::start(2);
    let mut daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let first = daemon.show().guard;
    tell(first, Signal::SIGKILL);
    let mut next = first;
    until("another has taken its place", || {
        next = daemon.show().guard;
        next != first
    });
    until("turns go on", || {
        let groups = groups(&vm.tids());
        groups.iter().filter(|group| frozen(group)).count() == 1
    });
    daemon.child.kill().expect("killed");
    until("the next guard has done its work", || ended(next));
    assert_eq!(groups(&vm.tids()), Vec::<PathBuf>::new());
    vm.all_run_on();
}

#[test]
fn what_two_deaths_leave_frozen_goes_on_when_it_is_scheduled_again() {
    let vm = Vm::start(2);
    let mut daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let guard = daemon.show().guard;
    tell(guard, Signal::SIGSTOP);
    daemon.child.kill().expect("killed");
    daemon.child.wait().expect("ended");
    tell(guard, Signal::SIGKILL);
    until("both are dead", || ended(guard));
    assert_eq!(
        groups(&vm.tids()).len(),
        2,
        "nobody was there to remove them"
    );
    let next = daemon.again();
    next.listens();
    next.enforce(&vm, 256);
    let made = groups(&vm.tids());
    assert_eq!(made.len(), 2, "{made:?}");
    let released = next.ask(&Request::Release { pid: vm.pid() });
    assert!(released.expect("released").vms.is_empty());
    assert_eq!(groups(&vm.tids()), Vec::<PathBuf>::new());
    assert_eq!(nests(&[&vm]), Vec::<PathBuf>::new());
    vm.all_run_on();
}

#[test]
fn the_next_dispatcher_waits_for_the_guard_of_the_last() {
    let vm = Vm::start(2);
    let mut daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let guard = daemon.show().guard;
    // It cannot let anything go yet.
    tell(guard, Signal::SIGSTOP);
    daemon.child.kill().expect("killed");
    daemon.child.wait().expect("ended");
    let mut next = daemon.again();
    let early = ask(&next.socket(), &Request::Show);
    assert!(early.is_err(), "{early:?}");
    tell(guard, Signal::SIGCONT);
    next.listens();
    until("the guard has ended", || ended(guard));
    next.enforce(&vm, 256);
    until("turns go on", || {
        let groups = groups(&vm.tids());
        groups.iter().filter(|group| frozen(group)).count() == 1
    });
    let guard = next.show().guard;
    next.child.kill().expect("killed");
    until("the guard has done its work", || ended(guard));
    assert_eq!(groups(&vm.tids()), Vec::<PathBuf>::new());
}

#[test]
fn where_nobody_waits_everybody_is_let_go_until_somebody_does() {
    let (vm, other) = (Vm::start(1), Vm::start(1));
    let daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    daemon.enforce(&other, 256);
    let because = || -> Vec<_> { daemon.show().vms.iter().map(|vm| vm.because).collect() };
    assert_eq!(because(), [None, None]);
    other.tell(Signal::SIGSTOP);
    until("the one that runs is alone", || {
        because() == [Some(Because::Alone); 2]
    });
    let made = groups(&vm.tids());
    assert!(!made.iter().any(|group| frozen(group)));
    other.tell(Signal::SIGCONT);
    until("they take turns again", || because() == [None, None]);
    until("one of two is frozen", || {
        let tids = [vm.tids(), other.tids()].concat();
        groups(&tids).iter().filter(|group| frozen(group)).count() == 1
    });
}

#[test]
fn threads_without_names_are_scheduled_when_they_are_told() {
    let vm = Vm::start(2);
    let daemon = Daemon::start();
    let tids = vm.tids();
    let wanted = |threads| Wanted {
        pid: vm.pid(),
        threads: Some(threads),
        level: Some(Level::Enforce),
        policy: Some(Policy::Rr),
        ..Wanted::default()
    };
    let backwards = vec![tids[1], tids[0]];
    let shown = daemon.ask(&Request::Set(wanted(backwards.clone())));
    let shown = shown.expect("taken");
    let got: Vec<u32> = shown.vms[0].vcpus.iter().map(|vcpu| vcpu.tid).collect();
    assert_eq!(got, backwards);
    until("one of two is frozen", || {
        groups(&tids).iter().filter(|group| frozen(group)).count() == 1
    });
    let refused = daemon.ask(&Request::Set(wanted(tids))).expect_err("others");
    assert!(refused.contains("release"), "{refused}");
    let main = daemon.ask(&Request::Release { pid: vm.pid() }).map(|_| ());
    main.expect("released");
    let refused = daemon.ask(&Request::Set(wanted(vec![vm.pid()])));
    assert!(
        refused
            .expect_err("its main thread")
            .contains("query-cpus-fast")
    );
}

#[test]
fn a_vm_that_is_released_or_ends_leaves_nothing() {
    let (vm, ends) = (Vm::start(2), Vm::start(1));
    let daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    daemon.enforce(&ends, 256);
    let gone = ends.tids();
    drop(ends);
    until("the ended one is forgotten", || {
        daemon.ask(&Request::Show).expect("shown").vms.len() == 1
    });
    assert_eq!(groups(&gone), Vec::<PathBuf>::new());
    let shown = daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect("released");
    assert!(shown.vms.is_empty());
    assert_eq!(groups(&vm.tids()), Vec::<PathBuf>::new());
    assert_eq!(nests(&[&vm]), Vec::<PathBuf>::new());
    vm.all_run_on();
    daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect_err("unknown by now");
}

#[test]
fn placing_leaves_turns_to_the_host() {
    let vm = Vm::start(1);
    let daemon = Daemon::start();
    let set = |wanted| {
        daemon.ask(&Request::Set(Wanted {
            pid: vm.pid(),
            ..wanted
        }))
    };
    let placed = Wanted {
        level: Some(Level::Place),
        policy: Some(Policy::Cfs),
        weight: Some(512),
        ..Wanted::default()
    };
    set(placed).expect("taken");
    let stat = || {
        let text = fs::read_to_string(format!("/proc/{}/stat", vm.tids()[0])).expect("alive");
        let after = text.rsplit_once(") ").expect("a name").1.to_owned();
        let fields: Vec<_> = after.split(' ').map(str::to_owned).collect();
        // Niceness and scheduling policy.
        (fields[16].clone(), fields[38].clone())
    };
    assert_eq!(stat(), ("-3".to_owned(), "0".to_owned()));
    assert!(groups(&vm.tids()).is_empty());
    daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect("released");
    assert_eq!(stat().1, "0");
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let vm = Vm::start(1);
    let daemon = Daemon::start();
    let set = |wanted| daemon.ask(&Request::Set(wanted));
    let pid = vm.pid();
    let enforce = Wanted {
        pid,
        level: Some(Level::Enforce),
        policy: Some(Policy::Sbco),
        ..Wanted::default()
    };
    let weight = set(Wanted {
        weight: Some(0),
        ..enforce.clone()
    })
    .expect_err("no weight");
    assert!(weight.contains("65535"), "{weight}");
    let cap = set(Wanted {
        cap: Some(50),
        ..enforce
    })
    .expect_err("no rule for it");
    assert!(cap.contains("credit"), "{cap}");
    let this = set(Wanted {
        pid: std::process::id(),
        ..Wanted::default()
    })
    .expect_err("no VM");
    assert!(this.contains("debug-threads"), "{this}");
    for pid in [0, u32::MAX] {
        let none = set(Wanted {
            pid,
            ..Wanted::default()
        })
        .expect_err("no process");
        assert_eq!(none, format!("there is no process {pid}"));
    }
    assert!(groups(&vm.tids()).is_empty());
}
