//! Going before all others.

use std::io;

/// Has the calling thread run before all usual ones from now on (`SCHED_FIFO`, at
/// its lowest). What it does must be short. What it starts is usual again. `EPERM`
/// without the right to.
pub fn go_first() -> io::Result<()> {
    const CALLER: libc::pid_t = 0;
    let lowest = libc::sched_param { sched_priority: 1 };
    let class = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the structure is read during the call alone; the other arguments are
    // integers. Not by the C library's function: not every C library has it.
    let set = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            CALLER,
            class,
            &raw const lowest,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps in memory what this process has touched, and what it touches later.
pub fn stay_in_memory() -> io::Result<()> {
    let all = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: the argument is an integer, and locked memory is used as any.
    match unsafe { libc::mlockall(all) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the calling thread, and those it starts, get a processor soon among many that want one.
pub fn run_soon() -> io::Result<()> {
    const CALLER: libc::id_t = 0;
    const NICENESS: libc::c_int = -10;
    // SAFETY: the arguments are integers.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, CALLER, NICENESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_agrees() {
        let thread = std::thread::spawn(|| {
            go_first().expect("root");
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("stat");
            let (_, rest) = stat.rsplit_once(") ").expect("a name");
            // Fields 40 and 41 of the whole, counted from 1; two are gone.
            let fields: Vec<_> = rest.split(' ').collect();
            assert_eq!(fields[37..39], ["1", "1"]);
        });
        thread.join().expect("no panic");
    }
}
