//! Scheduling of one thread by the host: its class, and the parameters that go
//! with it.
//!
//! Threads are named by number; the caller sees to it that the number is of
//! the thread meant.

use std::{io, time::Duration};

/// Class by which a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// As usual, with this niceness from -20 to 19.
    Usual(i32),
    /// By a scheduler in BPF, `SCHED_EXT`, with this niceness; as usual where
    /// none is loaded. `EINVAL` where the kernel has no sched_ext.
    External(i32),
    /// So much time in every period, by `SCHED_DEADLINE`. The thread must be
    /// allowed on all CPUs.
    Deadline {
        /// Time in each period.
        runtime: Duration,
        /// The period.
        period: Duration,
    },
    /// Before all usual threads, by `SCHED_FIFO`, with this priority from 1 to
    /// 99.
    First(u32),
}

/// The kernel's `struct sched_attr`, first version.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Children of the thread are scheduled as usual again.
const RESET_ON_FORK: u64 = 1;

/// Has a thread scheduled so from now on; 0 is the calling thread. `EPERM`
/// without the right to, `EBUSY` if deadlines could not be kept, `ESRCH` if
/// there is no such thread.
pub fn set_class(thread: u32, class: Class) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let usual = Attributes {
        size: 48,
        ..Attributes::default()
    };
    let attributes = match class {
        Class::Usual(nice) => Attributes { nice, ..usual },
        Class::External(nice) => Attributes {
            policy: 7,
            flags: RESET_ON_FORK,
            nice,
            ..usual
        },
        Class::Deadline { runtime, period } => Attributes {
            policy: 6,
            flags: RESET_ON_FORK,
            runtime: nanos(runtime),
            deadline: nanos(period),
            period: nanos(period),
            ..usual
        },
        Class::First(priority) => Attributes {
            policy: 1,
            flags: RESET_ON_FORK,
            priority,
            ..usual
        },
    };
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the structure lives through the call, is as long as it says it is,
    // and is only read; the other arguments are integers.
    let set = unsafe {
        libc::syscall(
            libc::SYS_sched_setattr,
            thread,
            std::ptr::from_ref(&attributes),
            NO_FLAGS,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The priority, among those that go before all usual threads, of what a caller
/// may have taken over: a QEMU's threads.
pub const UNTRUSTED: u32 = 1;

/// That of Forkyard's own.
pub const OWN: u32 = 2;

/// While this lives, some usual threads go before all others that are; then they
/// are as they were, niceness and all. What they do meanwhile must be bounded.
/// Threads that they start are usual ones.
#[derive(Debug)]
#[must_use = "precedence ends when this is dropped"]
pub struct SchedBoost {
    threads: Vec<u32>,
}

impl SchedBoost {
    /// Gives it to these threads, as far as they are there, are usual ones, and the
    /// host lets us; with this priority among those that have it, from 1 to 99.
    pub fn give(threads: impl IntoIterator<Item = u32>, priority: u32) -> Self {
        let given =
            |thread: &u32| is_usual(*thread) && set_class(*thread, Class::First(priority)).is_ok();
        Self {
            threads: threads.into_iter().filter(given).collect(),
        }
    }

    /// Takes it back from threads that were given it by a process that has died.
    pub fn take_back(threads: impl IntoIterator<Item = u32>) {
        drop(Self {
            threads: threads.into_iter().collect(),
        });
    }
}

impl Drop for SchedBoost {
    fn drop(&mut self) {
        for &thread in &self.threads {
            // It may have ended meanwhile, or never have been given it.
            let _ = make_usual(thread);
        }
    }
}

fn is_usual(thread: u32) -> bool {
    let Ok(thread) = libc::pid_t::try_from(thread) else {
        return false;
    };
    // SAFETY: the argument is an integer.
    unsafe { libc::sched_getscheduler(thread) == libc::SCHED_OTHER }
}

/// Has a thread scheduled as usual, with the niceness it has.
fn make_usual(thread: u32) -> io::Result<()> {
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is read during the call alone.
    match unsafe { libc::sched_setscheduler(thread, libc::SCHED_OTHER, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy and the niceness that the kernel says a thread has.
    fn told() -> (String, String) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("stat");
        let fields: Vec<_> = stat
            .rsplit_once(") ")
            .map_or(Vec::new(), |(_, rest)| rest.split(' ').collect());
        // Fields 19 and 41 of the whole, counted from 1; two are gone.
        (fields[38].to_owned(), fields[16].to_owned())
    }

    #[test]
    fn the_kernel_agrees_on_the_class() {
        let thread = std::thread::spawn(|| {
            set_class(0, Class::Usual(7)).expect("usual");
            assert_eq!(told(), ("0".to_owned(), "7".to_owned()));
            set_class(0, Class::First(1)).expect("root");
            assert_eq!(told().0, "1");
            let period = Duration::from_millis(100);
            let runtime = Duration::from_millis(1);
            set_class(0, Class::Deadline { runtime, period }).expect("root");
            assert_eq!(told().0, "6");
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn precedence_leaves_a_thread_as_it_was() {
        let thread = std::thread::spawn(|| {
            let own = || vec![nix::unistd::gettid().as_raw().unsigned_abs()];
            set_class(0, Class::Usual(7)).expect("usual");
            let before = told();
            let given = SchedBoost::give(own(), OWN);
            assert_eq!(told().0, "1");
            drop(given);
            assert_eq!(told(), before);
            std::mem::forget(SchedBoost::give(own(), UNTRUSTED));
            SchedBoost::take_back(own());
            assert_eq!(told(), before);
            set_class(0, Class::First(9)).expect("root");
            drop(SchedBoost::give(own(), OWN));
            assert_eq!(told().0, "1", "it was no usual one");
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error() {
        let error = set_class(u32::MAX >> 1, Class::Usual(0)).expect_err("none");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
