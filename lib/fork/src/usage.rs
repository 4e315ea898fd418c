//! Use that VMs make of the host, as the kernel counts it. Cheap: reads a few
//! files of `/proc` a VM, and asks no QEMU.

use crate::{Host, HostError, blocking};
use forkyard_snapshot::warm_shells;
use forkyard_types::{ByteCount, Usage, VmState, VmUsage};
use procfs::{CurrentSI as _, ProcError, ProcResult, process};
use std::{io, path::Path, thread};

/// Resources a process has used; zero for one that is gone.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu_us: u64,
    waited_us: u64,
    resident: ByteCount,
    private: ByteCount,
}

impl Host {
    /// Returns the use every VM has made of the host so far. Cancel-safe.
    pub async fn usage(&self) -> Result<Usage, HostError> {
        let vms: Vec<_> = self
            .parts
            .registry()
            .all()
            .iter()
            .map(|vm| (vm.view(), warm_shells(vm)))
            .collect();
        let forks = self.parts.store.fork_counts()?;
        blocking(move || {
            let vms = vms
                .into_iter()
                .map(|(vm, warm)| {
                    let used = vm.pid.map(used).transpose()?.unwrap_or_default();
                    Ok(VmUsage {
                        forks: forks.get(&vm.id).copied().unwrap_or(0),
                        warm,
                        cpu_us: used.cpu_us,
                        waited_us: used.waited_us,
                        resident: used.resident,
                        private: used.private,
                        vm,
                    })
                })
                .collect::<ProcResult<_>>()
                .map_err(unreadable)?;
            Ok::<_, HostError>(Usage {
                at_us: uptime_us().map_err(unreadable)?,
                cpus: thread::available_parallelism()
                    .ok()
                    .and_then(|cpus| u32::try_from(cpus.get()).ok())
                    .unwrap_or(1),
                stolen_us: stolen_us().map_err(unreadable)?,
                vms,
            })
        })
        .await
    }

    /// Shells that wait for a fork, of all VMs together.
    pub fn warm_shells(&self) -> Result<usize, HostError> {
        let vms = self.parts.store.vms()?;
        Ok(vms.iter().filter(|vm| vm.state == VmState::Warm).count())
    }
}

fn used(pid: u32) -> ProcResult<Used> {
    let read = || {
        let process = process::Process::new(i32::try_from(pid).unwrap_or(i32::MAX))?;
        let (stat, status) = (process.stat()?, process.status()?);
        let kib = |n: Option<u64>| ByteCount(n.unwrap_or(0) << 10);
        Ok(Used {
            cpu_us: microseconds(stat.utime + stat.stime),
            waited_us: waited_us(&process)?,
            resident: kib(status.vmrss),
            private: kib(status.rssanon),
        })
    };
    match read() {
        // It ended just now; that it did shows in its state soon.
        Err(ProcError::NotFound(_)) => Ok(Used::default()),
        other => other,
    }
}

/// Processor time of a process in microseconds; none for one that is gone. Blocks for a read of `/proc`.
pub(crate) fn cpu_us(pid: u32) -> u64 {
    let process = process::Process::new(i32::try_from(pid).unwrap_or(i32::MAX));
    let stat = process.and_then(|process| process.stat());
    stat.map_or(0, |stat| microseconds(stat.utime + stat.stime))
}

/// Sums the waiting time of the threads that are virtual processors: by name, they are
/// "CPU 0/TCG". The others come and go, and their time with them.
fn waited_us(process: &process::Process) -> ProcResult<u64> {
    let mut waited = 0;
    for task in process.tasks()?.flatten() {
        let one = || {
            let is_vcpu = task.stat()?.comm.starts_with("CPU ");
            Ok(if is_vcpu {
                task.schedstat()?.run_delay
            } else {
                0
            })
        };
        waited += match one() {
            Err(ProcError::NotFound(_)) => 0,
            other => other?,
        };
    }
    Ok(waited / 1000)
}

fn stolen_us() -> ProcResult<u64> {
    let total = procfs::KernelStats::current()?.total;
    Ok(microseconds(total.steal.unwrap_or(0)))
}

fn microseconds(ticks: u64) -> u64 {
    ticks * 1_000_000 / procfs::ticks_per_second()
}

fn uptime_us() -> ProcResult<u64> {
    let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_err(|error| ProcError::Io(error.into(), None))?;
    Ok(u64::try_from(std::time::Duration::from(clock).as_micros()).unwrap_or(u64::MAX))
}

fn unreadable(error: ProcError) -> HostError {
    HostError::io("read", Path::new("/proc"))(io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_to_have_memory_and_one_that_is_gone_to_have_none() {
        let own = used(std::process::id()).expect("our own");
        assert!(own.private.0 > 0 && own.private <= own.resident, "{own:?}");
        let gone = used(u32::MAX >> 1).expect("no error");
        assert_eq!(gone.resident, ByteCount(0));
    }
}
