//! Use of processors, memory and a file system, from what the kernel tells.

use super::{Failure, failed, refused};
use crate::foreign;
use forkyard_types::{ByteCount, GuestUsage};
use nix::sys::statvfs::statvfs;
use std::path::Path;

const PROCESSORS: &str = "/proc/stat";
const MEMORY: &str = "/proc/meminfo";

/// Tells it of this guest, with the file system at a path, as JSON.
pub(super) fn usage(path: &Path) -> Result<(), Failure> {
    let about = statvfs(path).map_err(|error| failed("look at", path, &error.into()))?;
    let block = about.fragment_size();
    let [total, free] =
        [about.blocks(), about.blocks_free()].map(|blocks| blocks.saturating_mul(block));
    let (vcpus, busy, ticks) =
        processors(&read(PROCESSORS)?).ok_or_else(|| nonsense(PROCESSORS))?;
    let (memory, used, cache) = memory(&read(MEMORY)?).ok_or_else(|| nonsense(MEMORY))?;
    let usage = GuestUsage {
        vcpus,
        busy,
        ticks,
        memory,
        memory_used: used,
        memory_cache: cache,
        disk: ByteCount(total),
        disk_used: ByteCount(total.saturating_sub(free)),
    };
    let text = serde_json::to_string(&usage).map_err(|error| refused(error.to_string()))?;
    println!("{text}");
    Ok(())
}

/// Reads a file of the kernel's. Something else may have been put over it, which might never end.
fn read(file: &str) -> Result<String, Failure> {
    foreign::text(file).map_err(|error| failed("read", Path::new(file), &error))
}

fn nonsense(file: &str) -> Failure {
    Failure {
        code: 1,
        said: format!("{file} is not as the kernel writes it"),
    }
}

/// Processors, ticks in which they worked, and all ticks.
fn processors(stat: &str) -> Option<(u32, u64, u64)> {
    let sum = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks = sum.split_whitespace().map(str::parse::<u64>);
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
    // Those of guests of this one, from the ninth on, are in the first two as well.
    let counted = ticks.get(..8)?;
    let sum = |some: &[u64]| some.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n));
    let (all, idle) = (sum(counted)?, sum(&counted[3..5])?);
    let one = |line: &&str| {
        let number = line.strip_prefix("cpu").unwrap_or_default();
        number.starts_with(|first: char| first.is_ascii_digit())
    };
    let vcpus = u32::try_from(stat.lines().filter(one).count()).ok()?;
    Some((vcpus, all.saturating_sub(idle), all))
}

/// Memory in all, used, and holding the content of files.
fn memory(meminfo: &str) -> Option<(ByteCount, ByteCount, ByteCount)> {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib = line.strip_prefix(':')?.split_whitespace().next()?;
        kib.parse::<u64>().ok()?.checked_mul(1024)
    };
    let (total, free) = (value("MemTotal")?, value("MemFree")?);
    // What lies in tmpfs counts as cached, and cannot be dropped.
    let held = value("Shmem").unwrap_or(0);
    let cache = value("Cached")?
        .checked_add(value("Buffers")?)?
        .saturating_sub(held);
    let used = total.saturating_sub(free).saturating_sub(cache);
    Some((ByteCount(total), ByteCount(used), ByteCount(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_summed_and_guests_not_counted_twice() {
        let stat = "cpu  10 2 3 70 5 1 1 8 6 2\ncpu0 5 1 1 35 2 1 0 4 3 1\ncpu1 5 1 2 35 3 0 1 4 3 1\nintr 5\n";
        assert_eq!(processors(stat), Some((2, 25, 100)));
        assert_eq!(processors("cpu  1 2 3\n"), None);
        assert_eq!(processors("intr 5\n"), None);
        let greatest = format!("cpu {}\n", "18446744073709551615 ".repeat(10));
        assert_eq!(processors(&greatest), None);
    }

    #[test]
    fn caches_are_not_used_memory_but_files_in_memory_are() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 50 kB\nCached: 250 kB\nSwapCached: 7 kB\nShmem: 100 kB\n";
        let kib = |n: u64| ByteCount(n * 1024);
        assert_eq!(memory(meminfo), Some((kib(1000), kib(500), kib(200))));
        assert_eq!(memory("MemTotal: 1000 kB\n"), None);
        let most = u64::MAX / 1024;
        let greatest =
            format!("MemTotal: 9 kB\nMemFree: 9 kB\nCached: {most} kB\nBuffers: {most} kB\n");
        assert_eq!(memory(&greatest), None);
    }
}
