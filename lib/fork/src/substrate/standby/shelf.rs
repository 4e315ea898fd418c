//! VMs kept ready of one substrate, and the memory that they may take.

use super::super::sizes::Size;
use super::Standby;
use forkyard_vm::UnderWay;

use forkyard_forecast::{
    Demand, Millis,
    bound::{Memory, bounded},
};
use forkyard_types::{ByteCount, StandbyRequest, StandbyView, VmId, VmName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fs, sync::Arc};

/// VMs kept ready of one substrate, at most.
pub(super) const MOST: u16 = 256;
/// One part in so many of the host's memory is left for everything else.
const FLOOR: u64 = 8;

/// Substrate and size of VMs that are kept ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Kept {
    pub of: VmName,
    pub size: Size,
}

/// Record of what is kept ready of a substrate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub wanted: StandbyRequest,
    pub demand: Demand,
    /// Size of each; none: that of the VM that was docked.
    #[serde(default)]
    pub size: Option<Size>,
}

/// Reads a record: a list, or one that was made when there was one size alone.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, serde_json::Error> {
    match text.starts_with('[') {
        true => serde_json::from_str(text),
        false => Ok(vec![serde_json::from_str(text)?]),
    }
}

/// VMs kept ready of one substrate.
#[derive(Debug)]
pub(super) struct Shelf {
    pub entry: Entry,
    pub idle: Vec<Standby>,
    /// Of those and of those being made.
    pub ids: BTreeSet<VmId>,
    /// Tasks that make some.
    pub makers: Arc<UnderWay>,
    pub making: u16,
    /// Number that is to be ready now.
    pub target: u16,
    pub each: ByteCount,
    pub hits: u64,
    pub misses: u64,
    pub problem: Option<String>,
    /// No other is tried before.
    pub not_before: Millis,
    /// Time at which the demand was recorded last.
    pub recorded: Millis,
}

impl Shelf {
    pub fn new(entry: Entry) -> Self {
        Self {
            entry,
            idle: Vec::new(),
            ids: BTreeSet::new(),
            makers: Arc::default(),
            making: 0,
            target: 0,
            each: ByteCount(0),
            hits: 0,
            misses: 0,
            problem: None,
            not_before: Millis(0),
            recorded: Millis(0),
        }
    }

    pub fn ready(&self) -> u16 {
        u16::try_from(self.idle.len()).unwrap_or(u16::MAX)
    }

    pub fn view(&self, size: Size) -> StandbyView {
        StandbyView {
            memory: size.memory,
            vcpus: size.vcpus,
            disk: size.disk,
            count: self.entry.wanted.count,
            limit: limit(self.entry.wanted),
            wanted: self.target,
            ready: self.ready(),
            each: self.each,
            hits: self.hits,
            misses: self.misses,
            problem: self.problem.clone(),
        }
    }

    /// Sets how many are to be ready. `guess` is what one may take before one was measured.
    pub fn aim(&mut self, now: Millis, host: HostMemory, guess: ByteCount) {
        let wanted = match self.entry.wanted.count {
            Some(count) => count,
            None => self.entry.demand.wanted(now),
        };
        let each = match self.each.0 {
            0 => guess.0,
            measured => measured,
        };
        let memory = Memory {
            limit: limit(self.entry.wanted).0,
            each,
            available: host.available,
            floor: host.total / FLOOR,
        };
        self.target = bounded(wanted.min(MOST), self.ready(), memory);
    }

    pub fn take_surplus(&mut self) -> Vec<Standby> {
        let kept = usize::from(self.target).min(self.idle.len());
        let surplus = self.idle.split_off(kept);
        for it in &surplus {
            self.ids.remove(&it.shell.record.id);
        }
        surplus
    }
}

fn limit(wanted: StandbyRequest) -> ByteCount {
    ByteCount::from_mib(wanted.memory_mib).unwrap_or(ByteCount(u64::MAX))
}

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct HostMemory {
    pub total: u64,
    pub available: u64,
}

/// Guesses what one takes before one was measured: a quarter of the memory that was docked, and what the program
/// that runs it takes.
pub(super) fn guess(docked: Size) -> ByteCount {
    const PROGRAM: u64 = 64 << 20;
    ByteCount(docked.memory.0 / 4 + PROGRAM)
}

/// Memory that a process has alone, if it can be read.
pub(super) fn memory_of(pid: u32) -> Option<ByteCount> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let own = ["RssAnon:", "RssShmem:"].map(|field| kib(&status, field));
    Some(ByteCount(own.into_iter().flatten().sum()))
}

pub(in super::super) fn host_memory() -> Option<HostMemory> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(HostMemory {
        total: kib(&text, "MemTotal:")?,
        available: kib(&text, "MemAvailable:")?,
    })
}

/// A field of one of the kernel's tables, in bytes.
fn kib(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read_in_bytes() {
        let text = "MemTotal:       8 kB\nMemAvailable:  3 kB\nRss: x\n";
        assert_eq!(kib(text, "MemTotal:"), Some(8192));
        assert_eq!(kib(text, "MemAvailable:"), Some(3072));
        assert_eq!(kib(text, "Rss:"), None);
        assert_eq!(kib(text, "RssAnon:"), None);
    }

    #[test]
    fn a_shelf_holds_what_is_wanted_as_far_as_memory_allows() {
        let wanted = StandbyRequest {
            count: Some(4),
            memory_mib: 300,
            vm_memory: None,
            vm_vcpus: None,
            vm_disk: None,
        };
        let mut shelf = Shelf::new(Entry {
            wanted,
            demand: Demand::default(),
            size: None,
        });
        let host = HostMemory {
            total: 8 << 30,
            available: 4 << 30,
        };
        let mib = |mib: u64| ByteCount(mib << 20);
        let mut aim = |available: u64, each: u64| {
            shelf.each = mib(each);
            shelf.aim(Millis(0), HostMemory { available, ..host }, mib(100));
            shelf.target
        };
        assert_eq!(aim(4 << 30, 0), 3);
        assert_eq!(aim(4 << 30, 50), 4);
        assert_eq!(aim(1 << 30, 50), 0);
    }
}
