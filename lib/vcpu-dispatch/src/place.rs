//! Placement of a thread on the host: the CPUs it may run on, its niceness, its
//! deadlines.

use forkyard_sched::{Params, Policy, USUAL_WEIGHT};
use forkyard_sys_host::sched::{Class, set_class};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::{Pid, getsid},
};
use std::{fs, io, path::Path, time::Duration};

/// The CPUs a thread may run on; 0 is the calling thread.
pub(crate) fn allowed(tid: u32) -> io::Result<Vec<u32>> {
    let set = sched_getaffinity(pid(tid)?)?;
    let all = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true));
    Ok(all.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

/// Sets them.
pub(crate) fn pin(tid: u32, cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize)?;
    }
    sched_setaffinity(pid(tid)?, &set)?;
    Ok(())
}

fn pid(tid: u32) -> io::Result<Pid> {
    let tid = i32::try_from(tid).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(Pid::from_raw(tid))
}

/// The niceness that has the host give a thread this weight: each step is a
/// factor of 1.25.
fn niceness(weight: u32) -> i32 {
    let steps = (f64::from(weight) / f64::from(USUAL_WEIGHT)).log(1.25);
    let all = -20..=19;
    let away = |nice: &i32| (f64::from(-nice) - steps).abs();
    all.min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(0)
}

/// Returns the class by which the host is to schedule a thread under this
/// policy.
pub(crate) fn class(policy: Policy, params: &Params) -> Class {
    let micros = |time: forkyard_sched::Nanos| Duration::from_nanos(time.0);
    match (policy, params.reservation) {
        (Policy::Sedf | Policy::Atropos, Some(reservation)) => Class::Deadline {
            runtime: micros(reservation.slice),
            period: micros(reservation.period),
        },
        (_, _) => Class::Usual(niceness(params.weight)),
    }
}

/// Tells the host.
pub(crate) fn tell(tid: u32, class: Class) -> io::Result<()> {
    set_class(tid, class)?;
    if let Class::Usual(nice) = class {
        tell_session(tid, nice)?;
    }
    Ok(())
}

/// Sets the niceness of a session. Where the kernel gives sessions equal shares (autogroup), niceness counts among a
/// session's own threads; beside others it is the session's that counts. One that
/// another process leads is left alone.
fn tell_session(tid: u32, nice: i32) -> io::Result<()> {
    let session = getsid(Some(pid(tid)?))?;
    if !Path::new(&format!("/proc/{session}/task/{tid}")).exists() {
        return Ok(());
    }
    match fs::write(format!("/proc/{tid}/autogroup"), nice.to_string()) {
        // The kernel knows no such shares.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        told => told,
    }
}

/// Tells whether the policy keeps siblings on different CPUs.
pub(crate) fn keeps_apart(policy: Policy) -> bool {
    match policy {
        Policy::Balance | Policy::Procco | Policy::Cpuco | Policy::Sbco => true,
        Policy::Rr
        | Policy::Bvt
        | Policy::Atropos
        | Policy::Sedf
        | Policy::Credit
        | Policy::Credit2
        | Policy::Cfs
        | Policy::Speed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn niceness_follows_weight_by_fourths() {
        assert_eq!(niceness(256), 0);
        assert_eq!(niceness(320), -1);
        assert_eq!(niceness(512), -3);
        assert_eq!(niceness(128), 3);
        assert_eq!(niceness(1), 19);
        assert_eq!(niceness(65_535), -20);
    }

    #[test]
    fn a_session_of_its_own_is_as_nice_as_its_threads_and_a_shared_one_is_left_alone() {
        let group = |pid: u32| fs::read_to_string(format!("/proc/{pid}/autogroup")).ok();
        let before = group(std::process::id());
        let told = |command: &mut Command, leads: bool| {
            let mut process = command.arg("60").spawn().expect("Debian has it");
            let leader = pid(process.id()).expect("a pid");
            while leads && getsid(Some(leader)) != Ok(leader) {
                std::thread::yield_now();
            }
            tell(process.id(), Class::Usual(7)).expect("told");
            let group = group(process.id());
            process.kill().expect("ours");
            process.wait().expect("reaped");
            group
        };
        let own = told(Command::new("setsid").arg("sleep"), true);
        assert_eq!(told(&mut Command::new("sleep"), false), before);
        assert_eq!(group(std::process::id()), before);
        // A kernel without them has none for any thread.
        let nice = |group: String| group.trim_end().ends_with("nice 7");
        assert_eq!(own.map(nice), before.map(|_| true));
    }

    #[test]
    fn a_thread_is_where_it_was_pinned_to() {
        let thread = std::thread::spawn(|| {
            let all = allowed(0).expect("asked");
            pin(0, &all[..1]).expect("pinned");
            assert_eq!(allowed(0).expect("asked"), all[..1]);
            pin(0, &all).expect("unpinned");
            assert_eq!(allowed(0).expect("asked"), all);
            pin(0, &[]).expect_err("nowhere");
        });
        thread.join().expect("no panic");
    }
}
