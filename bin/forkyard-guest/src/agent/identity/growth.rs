//! Memory, vCPUs and disk that this machine was given while it stood still.
//!
//! The kernel learns of memory as on any machine whose firmware supports that: once the status of
//! the device below is read, the firmware tells the kernel of it. vCPUs come from the host one by
//! one, and are switched on here. A disk that grows tells its driver; the file system on it is told here.

use super::cpus::{CPUS, set_online};
use crate::init::{Outcome, doing};
use forkyard_agent_link::Growth;
use forkyard_sys_guest::grow;
use nix::sys::stat::{major, minor};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
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
    take_vcpus(growth.vcpus)?;
    take_disk(growth.disk.0)
}

/// Has the root file system fill a disk that is this large.
fn take_disk(size: u64) -> Outcome {
    if size == 0 {
        return Ok(());
    }
    let root = fs::File::open("/").map_err(doing("take the disk"))?;
    let device = root.metadata().map_err(doing("take the disk"))?.dev();
    let place = format!("/sys/dev/block/{}:{}/size", major(device), minor(device));
    let has = || {
        let sectors = fs::read_to_string(&place).ok();
        let sectors = sectors.and_then(|text| text.trim().parse::<u64>().ok());
        sectors.and_then(|sectors| sectors.checked_mul(512))
    };
    if has().is_none() {
        return Err("take the disk: its root is on no disk that can grow".to_owned());
    }
    if !wait(|| has().is_some_and(|has| has >= size)) {
        let has = has().unwrap_or_default() >> 20;
        let wanted = size >> 20;
        return Err(format!(
            "take the disk: of {wanted} MiB its kernel sees {has}"
        ));
    }
    grow::fill(&root, size).map_err(|error| {
        format!("take the disk: its root is no ext4 that grows while it is used: {error}")
    })
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
            disk: forkyard_types::ByteCount(0),
        };
        assert_eq!(take(growth), Ok(()));
    }
}
