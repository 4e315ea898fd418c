//! The threads of a QEMU that all wait for while it is saved or loaded,
//! before those that run guests.
//!
//! A fork is a few milliseconds of work in each of many QEMUs, and every clone
//! that is done with it competes, with all its vCPUs, against those that are
//! not: without this the last of many runs when the host has given each of the
//! others its share. It is a matter of speed alone: where the host does not let
//! it be, nothing is different but that.

use crate::process::{Process, ProcessId};
use forkyard_sys_host::sched;
use std::{fs, io};

/// QEMU's name for the thread that reads commands.
const MONITOR: &str = "IO mon_iothread";

/// While this lives, a QEMU's main thread and its monitor's run before all
/// usual threads; never its vCPUs'. A QEMU that makes ill use of it is ended by
/// the kernel after a second of processor time.
#[derive(Debug)]
#[must_use = "precedence ends when this is dropped"]
pub struct SchedBoost {
    _given: sched::SchedBoost,
    // The numbers of its threads stay their own for as long as it is held.
    _process: Process,
}

impl SchedBoost {
    pub(crate) fn of(process: &Process) -> Self {
        Self {
            _given: sched::SchedBoost::give(threads(process.id()), sched::UNTRUSTED),
            _process: process.clone(),
        }
    }
}

/// Ends the precedence that an earlier daemon gave and could not take back.
pub(crate) fn end_of(process: &Process) {
    sched::SchedBoost::take_back(threads(process.id()));
}

/// The main thread, which has the number of the process, and the monitor's.
fn threads(process: ProcessId) -> Vec<u32> {
    let main = process.pid;
    let folder = format!("/proc/{main}/task");
    let is_monitor = |thread: u32| -> io::Result<bool> {
        let name = fs::read_to_string(format!("{folder}/{thread}/comm"))?;
        Ok(name.trim_end() == MONITOR)
    };
    let all = fs::read_dir(&folder).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&thread| thread == main || is_monitor(thread).unwrap_or(false))
        .collect()
}
