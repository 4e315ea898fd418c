//! Memory and vCPUs that this machine was given while it stood still.
//!
//! The kernel learns of memory as on any machine whose firmware supports that: once the status of
//! the device below is read, the firmware tells the kernel of it. vCPUs come from the host one by
//! one, and are switched on here.

use super::cpus::{CPUS, set_online};
use crate::init::{Outcome, doing};
use forkyard_agent_link::Growth;
use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Status of the device that tells the kernel of memory.
const TELLER: &str = "/sys/bus/acpi/devices/FRKY0001:00/status";
/// Says if the kernel uses memory as soon as it has it.
const AT_ONCE: &str = "/sys/devices/system/memory/auto_online_blocks";
/// The kernel's account of memory.
const ACCOUNT: &str = "/proc/meminfo";
/// Time for memory or vCPUs to come: an emulated guest takes a second for a few GiB.
const PATIENCE: Duration = Duration::from_secs(20);
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Takes all of it into use.
pub fn take(growth: Growth) -> Outcome {
    take_memory(growth.memory.0)?;
    take_vcpus(growth.vcpus)
}

fn take_memory(more: u64) -> Outcome {
    if more == 0 {
        return Ok(());
    }
    let former = read(
        AT_ONCE,
        "its kernel takes none while it runs (it is built without CONFIG_MEMORY_HOTPLUG)",
    )?;
    let before = total()?;
    // By the kernel itself, as part of what it is told.
    fs::write(AT_ONCE, "online").map_err(doing("take memory"))?;
    let told = read(
        TELLER,
        "its firmware tells of none (it was booted by an earlier version, or its kernel is built \
         without CONFIG_ACPI)",
    );
    let came = told.and_then(|_| {
        let came = wait(|| total().is_ok_and(|now| now >= before + more));
        let mib = |bytes: u64| bytes >> 20;
        match came {
            true => Ok(()),
            false => Err(format!(
                "take memory: of {} MiB its kernel took {}: it has no room for what that takes, \
                 or is built without CONFIG_ACPI_HOTPLUG_MEMORY",
                mib(more),
                mib(total()?.saturating_sub(before))
            )),
        }
    });
    fs::write(AT_ONCE, former.trim()).map_err(doing("leave memory as it was"))?;
    came
}

/// Reads a file, or says why it is not there.
fn read(path: &str, missing: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            format!("take memory: {missing}")
        } else {
            format!("take memory: {path}: {error}")
        }
    })
}

fn take_vcpus(all: u8) -> Outcome {
    let cpu = |number: u8| -> PathBuf { Path::new(CPUS).join(format!("cpu{number}/online")) };
    for number in 1..all {
        if !wait(|| cpu(number).exists()) {
            return Err(format!(
                "take vCPUs: its kernel has {number} of {all}: it may be built without \
                 CONFIG_ACPI_HOTPLUG_CPU, or for fewer"
            ));
        }
    }
    match all {
        0 | 1 => Ok(()),
        _ => set_online(Path::new(CPUS), all),
    }
}

/// Memory that the kernel has in use, in bytes.
fn total() -> Result<u64, String> {
    let text = fs::read_to_string(ACCOUNT).map_err(doing("read what memory there is"))?;
    total_of(&text).ok_or_else(|| "read what memory there is: none".to_owned())
}

fn total_of(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn wait(done: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if done() {
            return true;
        }
        if begun.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(RETRY_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_is_read_in_bytes() {
        let text = "MemTotal:         220876 kB\nMemFree:          196588 kB\n";
        assert_eq!(total_of(text), Some(220_876 << 10));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn nothing_to_take_touches_nothing() {
        let growth = Growth {
            memory: forkyard_types::ByteCount(0),
            vcpus: 1,
        };
        assert_eq!(take(growth), Ok(()));
    }
}
