//! Starting a process with exactly the descriptors, credentials and session it
//! is meant to have, and holding on to a process that may not be our child.
//!
//! A [`PidFd`] names one process for as long as it is held: when that process
//! ends and its number is given to another, the descriptor still names the
//! first, so that neither a wait nor a signal can reach a stranger.

use crate::{filter::Filter, jail::Jail};
use std::{
    ffi::CStr,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
    sync::{Arc, mpsc},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A process, named by a descriptor. Readable (`poll`) once it has ended.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this number now; `ESRCH` if none has.
    ///
    /// Unless it is an unreaped child, the caller must check afterwards that
    /// it is the one meant: the number may have changed hands before the call.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: takes two integers and no pointer; a number that names no
        // process is refused.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call just returned this descriptor (close-on-exec by
        // definition), and nothing else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends `SIGKILL`. A process that has already ended is not an error.
    pub fn kill(&self) -> io::Result<()> {
        // SAFETY: the descriptor is ours and open; a null `siginfo` asks for
        // the one `kill` would send; no flags are defined for it.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match sent {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                gone if gone.raw_os_error() == Some(libc::ESRCH) => Ok(()),
                other => Err(other),
            },
        }
    }
}

/// Tells when a process has ended.
#[derive(Debug)]
pub struct Ending(AsyncFd<Arc<PidFd>>);

impl Ending {
    /// Watches a process. Must be called within a tokio runtime; panics
    /// otherwise.
    pub fn of(process: Arc<PidFd>) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by the `PidFd`, which never changes
        // or closes it while it lives, and the `Arc` given away here keeps it
        // alive for as long as it is registered.
        let registered = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        Ok(Self(registered))
    }

    /// Resolves once the process has ended; for a child that is when it can be
    /// reaped without blocking. Cancel-safe.
    pub async fn wait(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Has the calling thread run when others leave time for it.
pub fn yield_to_others() -> io::Result<()> {
    const THIS_THREAD: libc::id_t = 0;
    const NICENESS: libc::c_int = 10;
    // SAFETY: takes integers only; on Linux the number 0 means the calling
    // thread alone.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, THIS_THREAD, NICENESS) })
}

/// User and groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// All its supplementary groups.
    pub groups: Vec<u32>,
}

/// Has the program join a cgroup before it is executed, with the rights this
/// process has: call it before [`isolate`]. `door` is the cgroup's open
/// `cgroup.procs`.
pub fn in_cgroup(command: &mut Command, door: std::fs::File) {
    use std::os::unix::process::CommandExt;
    let join = move || {
        nix::unistd::write(&door, b"0")
            .map(drop)
            .map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure only calls write(2), which is
    // safe there, on a descriptor it owns; it allocates nothing.
    unsafe { command.pre_exec(join) };
}

/// View of a process on the host.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// A network.
    pub network: Arc<OwnedFd>,
    /// The only files there are.
    pub jail: Jail,
    /// Limits on its resources, wherever there are no cgroups to set them.
    pub bounds: Bounds,
    /// The system calls it may make; none for all of them.
    pub calls: Option<Filter>,
    /// The capabilities that it has if its user is root.
    pub capabilities: Vec<Capability>,
    /// Event that ends it.
    pub ends: Lifespan,
}

/// Event that ends a process that is not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifespan {
    /// The work of the process is done. It outlives this process.
    ByItself,
    /// The thread that started it ends, and so does this process: see [`spawn_first_and_stay`].
    WithStarter,
}

/// A right that root may be left with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Reads whatever there is in its jail, whichever user owns it.
    ReadAll,
    /// Gives files to any user.
    ChangeOwners,
    /// Reads, writes and passes whatever there is in its jail.
    ReachAll,
    /// Does with any file what its owner may.
    OwnAll,
    /// Keeps the set-id bits of files that it changes.
    KeepSetId,
    /// Gives files capabilities of their own, which count for nothing where none may be gained.
    GiveCapabilities,
}

impl Capability {
    /// The kernel's number for it.
    fn number(self) -> libc::c_ulong {
        match self {
            // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_SETFCAP
            Self::ChangeOwners => 0,
            Self::ReachAll => 1,
            Self::ReadAll => 2,
            Self::OwnAll => 3,
            Self::KeepSetId => 4,
            Self::GiveCapabilities => 31,
        }
    }
}

/// Most that a process may take. It never leaves a core file: that would be
/// all its memory. And a thread of it that goes before all usual ones is to be
/// done or to wait within a second of processor time, or it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Threads of all processes of its user.
    pub threads: Option<u64>,
    /// Bytes that it has to itself, used or not: what it has mapped to write
    /// and shares with no process.
    pub private: Option<u64>,
    /// Bytes of the largest file it writes. A write beyond that fails with `EFBIG`,
    /// and nothing worse happens.
    pub file: Option<u64>,
    /// Seconds of processor time, after which it ends.
    pub processor: Option<u64>,
}

/// Makes `command` start a process in a session of its own, in the surroundings
/// given, with these credentials, without capabilities and without a way to any,
/// and with no descriptors but the three standard ones and `inherited`, which keep
/// their numbers. The program is looked for in its jail.
///
/// The descriptors are closed on this side when `command` is dropped.
pub fn isolate(
    command: &mut Command,
    credentials: Credentials,
    surroundings: Surroundings,
    inherited: Vec<OwnedFd>,
) {
    let Surroundings {
        network,
        jail,
        bounds,
        calls,
        capabilities,
        ends,
    } = surroundings;
    let kept = capabilities
        .iter()
        .fold(0, |mask, it| mask | 1 << it.number());
    let Credentials { uid, gid, groups } = credentials;
    // SAFETY: between fork and exec the closure makes system calls alone: it
    // neither allocates nor takes a lock, whatever the other threads of this
    // process held when it was forked.
    unsafe {
        command.pre_exec(move || {
            check(libc::setsid())?;
            die_as_others_do();
            check(libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET))?;
            check(libc::setns(jail.as_raw_fd(), libc::CLONE_NEWNS))?;
            // Shared memory, queues, the place in the tree of cgroups and the host's name are
            // its own; keys of the daemon's session are not in it.
            let own = libc::CLONE_NEWIPC | libc::CLONE_NEWCGROUP | libc::CLONE_NEWUTS;
            check(libc::unshare(own))?;
            check(libc::sethostname(NAMELESS.as_ptr(), NAMELESS.count_bytes()))?;
            join_own_keyring();
            bound(bounds)?;
            check(libc::setgroups(groups.len(), groups.as_ptr()))?;
            drop_capabilities(kept)?;
            check(libc::setresgid(gid, gid, gid))?;
            check(libc::setresuid(uid, uid, uid))?;
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            keep_only(&inherited)?;
            // A change of user would have undone it.
            end_with(ends)?;
            // Last: what came before is on no list.
            calls.as_ref().map_or(Ok(()), Filter::apply)
        });
    }
}

/// Name of the host where an isolated program asks for it.
const NAMELESS: &CStr = c"vm";

/// Starts `command` as the first process of a PID namespace of its own: it sees and
/// can name no process but its own, and whatever it starts ends with it. Needs root.
pub fn spawn_first(command: &mut Command) -> io::Result<Child> {
    // What a thread asks for holds for its children; this thread has no others.
    let spawn = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID)?;
        command.spawn()
    };
    std::thread::scope(|scope| scope.spawn(spawn).join())
        .map_err(|_| io::Error::other("the thread panicked"))?
}

/// As [`spawn_first`]; the thread that starts it stays until `work`, which the caller's thread
/// does with the process, is done. One that [`Lifespan::WithStarter`] lives no longer than that.
pub fn spawn_first_and_stay<T>(
    command: &mut Command,
    work: impl FnOnce(Child) -> T,
) -> io::Result<T> {
    let (started, start) = mpsc::channel();
    let (done, until_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let spawned = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID)
                .map_err(io::Error::from)
                .and_then(|()| command.spawn());
            // No process is told if the caller has panicked.
            let _ = started.send(spawned);
            let _ = until_done.recv();
        });
        let child = start
            .recv()
            .map_err(|_| io::Error::other("the thread panicked"))??;
        let result = work(child);
        drop(done);
        Ok(result)
    })
}

/// A network that no process and no device is in, for processes to be put into: they
/// reach no address, not even their own, and no abstract socket. It goes with the
/// last process in it and this descriptor.
pub fn empty_network() -> io::Result<OwnedFd> {
    let made = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        std::fs::File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
    });
    made.join()
        .map_err(|_| io::Error::other("the thread panicked"))?
}

/// In a child about to `exec`, after its last change of user.
pub(crate) fn end_with(ends: Lifespan) -> io::Result<()> {
    match ends {
        Lifespan::ByItself => Ok(()),
        Lifespan::WithStarter => {
            // SAFETY: takes integers only.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })
        }
    }
}

/// In a child about to `exec`: what it becomes cannot raise these again.
pub(crate) fn bound(bounds: Bounds) -> io::Result<()> {
    const A_SECOND: u64 = 1_000_000;
    const FILES: u64 = 4096;
    let wanted = [
        (libc::RLIMIT_CORE, Some(0)),
        (libc::RLIMIT_RTTIME, Some(A_SECOND)),
        (libc::RLIMIT_NOFILE, Some(FILES)),
        (libc::RLIMIT_MSGQUEUE, Some(0)),
        (libc::RLIMIT_NPROC, bounds.threads),
        (libc::RLIMIT_DATA, bounds.private),
        (libc::RLIMIT_FSIZE, bounds.file),
        (libc::RLIMIT_CPU, bounds.processor),
    ];
    // SAFETY: sets no handler of ours; a process that is told by the call needs no signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for (resource, most) in wanted {
        let Some(most) = most else { continue };
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the structure is read during the call alone.
        check(unsafe { libc::setrlimit(resource, &raw const limit) })?;
    }
    Ok(())
}

/// In a child about to `exec`: where memory runs out it is ended as any other would be,
/// though this process may be spared. Needs the host's `/proc`; without, it stays as it is.
pub(crate) fn die_as_others_do() {
    // SAFETY: the path is a C string and the byte outlives its call; the descriptor is
    // no other code's.
    unsafe {
        let score = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if score >= 0 {
            libc::write(score, c"0".as_ptr().cast(), 1);
            libc::close(score);
        }
    }
}

/// In a child about to `exec`: gives it a session keyring with nothing in it. A kernel without
/// keyrings has none to be kept from.
pub(crate) fn join_own_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: takes an integer, and a null pointer for a keyring without a name.
    unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
}

/// In a child about to `exec`: nothing it becomes may have more than its user
/// gives it, and a user that is root gets this one alone.
fn drop_capabilities(kept: u64) -> io::Result<()> {
    const MOST: libc::c_ulong = 64;
    for capability in (0..MOST).filter(|it| kept & (1 << it) == 0) {
        // SAFETY: takes integers only.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            // That was one more than the kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

/// In a child about to `exec`: marks every descriptor beyond the standard
/// three to be closed there, save those given.
pub(crate) fn keep_only(inherited: &[OwnedFd]) -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    const CLOEXEC: libc::c_int = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: takes integers only, and with this flag closes nothing yet.
    check(unsafe { libc::close_range(FIRST, libc::c_uint::MAX, CLOEXEC) })?;
    for fd in inherited {
        // SAFETY: the descriptor is open, for `fd` owns it; clearing its flags
        // affects this process alone.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) })?;
    }
    Ok(())
}

pub(crate) fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
