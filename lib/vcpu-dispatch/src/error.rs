//! Reasons why the dispatcher could not do something.

use forkyard_freezer::FreezerError;
use forkyard_sched::{InvalidParams, PolicyError};
use std::{io, path::PathBuf};

/// Reason why the dispatcher could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The host refused something.
    #[error("cannot {what} {path}", path = .path.display())]
    Host {
        /// Operation that was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The host refused a control group.
    #[error(transparent)]
    Freezer(#[from] FreezerError),
    /// No process has this number.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// The process has no vCPU threads.
    #[error(
        "process {0} has no threads named CPU 0/KVM or CPU 0/TCG: is it QEMU, run with -name …,debug-threads=on? Else name the threads"
    )]
    NoVcpus(u32),
    /// A thread that was named cannot be a vCPU's.
    #[error(
        "{tid} is no vCPU's thread of process {pid}: name each once, and not the process' first; QMP's query-cpus-fast knows them"
    )]
    NoThread {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// The process is scheduled by other threads already.
    #[error("process {0} is scheduled by other threads than these: release it first")]
    OtherThreads(u32),
    /// Nothing freezes threads here.
    #[error(
        "this host can freeze no single threads: it needs cgroup v2, or the v1 freezer; choose the level place"
    )]
    NoFreezer,
    /// The dispatcher was built without sched_ext.
    #[error(
        "this dispatcher was built without sched_ext: take one built with --features sched-ext, or leave --sched-ext out"
    )]
    NotBuilt,
    /// The kernel has no sched_ext.
    #[error(
        "this kernel has no sched_ext: it takes Linux 6.12 with CONFIG_SCHED_CLASS_EXT; leave --sched-ext out"
    )]
    NoSchedExt,
    /// Another program's scheduler has it.
    #[error("another scheduler, {0}, has this kernel's sched_ext: end that one first")]
    Taken(String),
    /// Threads have other numbers here than in BPF.
    #[error(
        "sched_ext knows threads by the host's numbers: run the dispatcher in the host's PID namespace"
    )]
    Contained,
    /// The object to be loaded is not this program's scheduler.
    #[error(
        "the scheduler in BPF lacks a part: it is not this dispatcher's; build both of one tree"
    )]
    NotOurs,
    /// The kernel has ended the scheduler.
    #[error("the kernel has ended the scheduler in BPF (reason {0}): its log says why")]
    Ejected(u32),
    /// The kernel refused something of BPF.
    #[cfg(feature = "sched-ext")]
    #[error("cannot {what} the scheduler in BPF")]
    Bpf {
        /// Operation that was tried.
        what: &'static str,
        /// Error of the kernel, or of the library.
        source: libbpf_rs::Error,
    },
    /// The policy refuses what the VM is promised.
    #[error("the policy refuses it")]
    Refused(#[from] InvalidParams),
    /// There is no such policy.
    #[error("cannot use the policy")]
    Policy(#[from] PolicyError),
    /// The policy has no rule for it.
    #[error("{0} knows no cap: choose the policy credit, or leave the cap out")]
    NoCap(forkyard_sched::Policy),
    /// The process is not one it schedules.
    #[error("process {0} is not scheduled here")]
    Unknown(u32),
}

/// Part that has to change for a request to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The request.
    Request,
    /// The host, or the dispatcher.
    Host,
}

impl DispatchError {
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::NoProcess(_)
            | Self::NoVcpus(_)
            | Self::NoThread { .. }
            | Self::OtherThreads(_)
            | Self::Refused(_)
            | Self::Policy(_)
            | Self::NoCap(_)
            | Self::NoFreezer
            | Self::Unknown(_) => Blame::Request,
            Self::Host { .. }
            | Self::Freezer(_)
            | Self::NotBuilt
            | Self::NoSchedExt
            | Self::Taken(_)
            | Self::Contained
            | Self::NotOurs
            | Self::Ejected(_) => Blame::Host,
            #[cfg(feature = "sched-ext")]
            Self::Bpf { .. } => Blame::Host,
        }
    }

    /// Error of something that was tried on a process, which may not be there.
    pub(crate) fn of_process(pid: u32, what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() == io::ErrorKind::NotFound {
            true => Self::NoProcess(pid),
            false => Self::host(what, format!("/proc/{pid}"))(source),
        }
    }

    pub(crate) fn host(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Host { what, path, source }
    }
}
