//! Counters of the kernel.

use crate::group::Group;
use forkyard_friendly::Counters;
use std::fs;

/// Of the whole machine.
const STAT: &str = "/proc/stat";

/// Reads the counters: pressure is the group's own where it has it, else the
/// machine's.
pub fn counters(group: &Group) -> Counters {
    let pressure = |what: &str| {
        let own = fs::read_to_string(group.path.join(format!("{what}.pressure")));
        let text = own.or_else(|_| fs::read_to_string(format!("/proc/pressure/{what}")));
        text.ok().as_deref().and_then(Counters::pressure)
    };
    let stat = fs::read_to_string(STAT);
    Counters {
        cpu: pressure("cpu"),
        memory: pressure("memory"),
        io: pressure("io"),
        cpus: stat.ok().as_deref().and_then(Counters::cpus),
    }
}
