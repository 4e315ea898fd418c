//! Environment that it runs in, and the signals that tell of congestion there.

use crate::group::{CgroupVersion, Group};
use forkyard_friendly::Signal;
use std::{fs, path::Path};

/// The signals that count where a configuration names none.
///
/// In a VM that is the virtual clock, as in the paper: it is late when the host has too
/// much to do. On the bare machine a thread that sleeps is woken at once however long
/// others wait for memory, so that there pressure tells; and so it does in a group whose
/// memory is limited, wherever the machine is, for that limit is its host's.
pub fn signals(group: Option<&Group>) -> Vec<Signal> {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    usual(
        hypervised(&cpus),
        group.is_some_and(limited),
        Path::new("/proc/pressure/memory").exists(),
    )
}

fn usual(hypervised: bool, limited: bool, pressure: bool) -> Vec<Signal> {
    let waits = pressure && (limited || !hypervised);
    // A kernel that does not count pressure leaves the clock.
    let clock = hypervised || !waits;
    let both = [(clock, Signal::Vct), (waits, Signal::MemoryPressure)];
    let counting = both.into_iter().filter(|(counts, _)| *counts);
    counting.map(|(_, signal)| signal).collect()
}

/// Tells whether a hypervisor announces itself: `hypervisor` among the flags of
/// x86. Where CPUs have no such word the tick is what all have.
fn hypervised(cpus: &str) -> bool {
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    flags.is_none_or(|line| line.split_whitespace().any(|word| word == "hypervisor"))
}

/// Tells whether the group, or one above it, may have less memory than the
/// machine has.
fn limited(group: &Group) -> bool {
    let Some((file, version)) = group.file("memory.max", "memory", "memory.limit_in_bytes") else {
        return false;
    };
    let Some(file_name) = file.file_name() else {
        return false;
    };
    let above = file.ancestors().skip(1);
    let mut texts = above.map_while(|folder| fs::read_to_string(folder.join(file_name)).ok());
    texts.any(|text| limits(text.trim(), version))
}

/// Tells whether a limit is one.
fn limits(text: &str, version: CgroupVersion) -> bool {
    match version {
        CgroupVersion::V2 => text != "max",
        // No limit is the greatest number of whole pages.
        CgroupVersion::V1 => text.parse::<u64>().is_ok_and(|bytes| bytes < 1 << 62),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_has_its_clock_and_a_machine_its_pressure() {
        use Signal::{MemoryPressure, Vct};
        assert_eq!(usual(true, false, true), [Vct]);
        assert_eq!(usual(true, true, true), [Vct, MemoryPressure]);
        assert_eq!(usual(false, false, true), [MemoryPressure]);
        assert_eq!(usual(false, true, true), [MemoryPressure]);
        for (hypervised, limited) in [(true, true), (false, true), (false, false)] {
            assert_eq!(usual(hypervised, limited, false), [Vct]);
        }
    }

    #[test]
    fn what_kernels_say_is_understood() {
        let cpus = |flags| format!("processor\t: 0\nflags\t\t: fpu {flags} sse\nbugs\t: x\n");
        assert!(hypervised(&cpus("hypervisor")));
        assert!(!hypervised(&cpus("hypervisor_x")));
        assert!(hypervised("processor\t: 0\nFeatures\t: fp asimd\n"));
        assert!(limits("1073741824", CgroupVersion::V2) && !limits("max", CgroupVersion::V2));
        assert!(
            limits("1073741824", CgroupVersion::V1)
                && !limits("9223372036854771712", CgroupVersion::V1)
        );
    }
}
