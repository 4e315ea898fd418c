//! Machine that a measurement ran on.

use forkyard_types::PageCount;
use serde::Serialize;
use std::{fmt, fs, process::Command, thread};

/// Accelerator: executes the instructions of every guest of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The processor, by way of Linux.
    Kvm,
    /// QEMU's translator.
    #[default]
    Tcg,
}

impl Accel {
    /// Reads what the daemon calls it; `None` if that is no accelerator.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Kvm, Self::Tcg]
            .into_iter()
            .find(|accel| accel.to_string() == name)
    }

    /// The processor that a guest is given: the same as Forkyard gives.
    pub(crate) fn cpu_model(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max,-erms,-fsrm",
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// Properties of the machine. What cannot be found out is left empty.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MachineFacts {
    /// Cores.
    pub cores: usize,
    /// The processor.
    pub processor: String,
    /// The host's kernel.
    pub kernel: String,
    /// QEMU's version.
    pub qemu: String,
    /// The accelerator of every guest.
    pub accel: Accel,
    /// The revision of the tree it was started in, if it was.
    pub revision: String,
    /// The host's load averages before it began: what else was going on.
    pub load: String,
    /// Private memory of a parent when measuring began.
    pub private_pages: PageCount,
}

/// Looks around.
pub fn facts() -> MachineFacts {
    let processors = read("/proc/cpuinfo");
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    MachineFacts {
        cores: thread::available_parallelism().map_or(0, |cores| cores.get()),
        processor: model.map(|(_, name)| name.to_owned()).unwrap_or_default(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        qemu: said("qemu-system-x86_64", &["--version"]),
        accel: Accel::default(),
        revision: said("git", &["describe", "--always", "--dirty"]),
        load: read("/proc/loadavg").trim().to_owned(),
        private_pages: PageCount::default(),
    }
}

/// CPU time, in ms, that these processes have used. One that has ended has
/// used none.
pub fn cpu_ms(processes: impl IntoIterator<Item = u32>) -> f64 {
    /// Linux counts in hundredths of a second, whatever its own clock.
    const TICK_MS: f64 = 10.0;
    let ticks = processes.into_iter().map(|pid| {
        let stat = read(&format!("/proc/{pid}/stat"));
        ticks(&stat).unwrap_or_default()
    });
    ticks.map(f64::from).sum::<f64>() * TICK_MS
}

/// Memory, in MiB, that each of these processes shares with no other: the mean.
pub fn private_mib(processes: impl IntoIterator<Item = u32>) -> f64 {
    let mut each = Vec::new();
    for pid in processes {
        let smaps = read(&format!("/proc/{pid}/smaps_rollup"));
        each.push(private_kib(&smaps));
    }
    let count = u32::try_from(each.len()).map_or(1.0, f64::from).max(1.0);
    each.into_iter().map(f64::from).sum::<f64>() / 1024.0 / count
}

/// Memory, in MiB, that the host could give to programs.
pub fn available_mib() -> f64 {
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|line| {
        let size = line.strip_prefix("MemAvailable:")?;
        size.trim().strip_suffix(" kB")?.parse::<u32>().ok()
    });
    kib.map_or(0.0, f64::from) / 1024.0
}

/// From the text of /proc/PID/smaps_rollup.
fn private_kib(smaps: &str) -> u32 {
    let private = smaps.lines().filter_map(|line| {
        let (name, size) = line.split_once(':')?;
        let counts = ["Private_Clean", "Private_Dirty"].contains(&name);
        counts.then(|| size.trim().strip_suffix(" kB")?.parse::<u32>().ok())?
    });
    private.sum()
}

/// User and system time, from the text of /proc/PID/stat.
fn ticks(stat: &str) -> Option<u32> {
    // The name, in parentheses, may be anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u32>);
    times.next()?.ok()?.checked_add(times.next()?.ok()?)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line a program says.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 2 3 4 130 12 5 6 20 0 1 0";
        assert_eq!(ticks(stat), Some(142));
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn private_memory_is_clean_and_dirty_together() {
        let smaps = "5581-7ffe ---p 00000000 00:00 0    [rollup]\nRss:   900 kB\n\
            Shared_Clean:  800 kB\nPrivate_Clean:    3 kB\nPrivate_Dirty:   40 kB\n";
        assert_eq!(private_kib(smaps), 43);
    }

    #[test]
    fn one_that_works_uses_time() {
        let this = || cpu_ms([std::process::id()]);
        let before = this();
        let mut sum = 0_u64;
        while this() == before {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        assert!(this() > before);
    }
}
