//! Starting a program where it belongs.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// Has the program be in a cgroup from its first instruction on: the first that takes it. Each of
/// `procs` is the open `cgroup.procs` of one.
pub fn in_cgroup(command: &mut Command, procs: Vec<File>) {
    let join = move || {
        let mut outcome = Ok(());
        for procs in &procs {
            outcome = nix::unistd::write(procs, b"0").map(drop);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure only calls write(2), which is
    // safe there, on descriptors it owns; it allocates nothing.
    unsafe { command.pre_exec(join) };
}

/// The kernel's file of how readily it ends this process when memory runs out.
const OOM: &std::ffi::CStr = c"/proc/self/oom_score_adj";

/// Has the program be ended as readily as any when memory runs out, and no sooner scheduled than
/// any, whatever holds for this process.
pub fn as_usual(command: &mut Command) {
    let reset = || {
        // SAFETY: open, write, close and setpriority are safe between fork and exec; the
        // path and the bytes are constants that outlive the calls.
        unsafe {
            let file = libc::open(OOM.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, c"0".as_ptr().cast(), 1);
                libc::close(file);
            }
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
        // A program that cannot be made usual is run all the same.
        Ok(())
    };
    // SAFETY: the closure does what is safe between fork and exec, and allocates nothing.
    unsafe { command.pre_exec(reset) };
}

/// Has the program run as this user, from its first instruction on. What needs root is to be set
/// up before: closures run in the order in which they were asked for.
pub fn as_user(command: &mut Command, user: u32, group: u32, groups: Vec<u32>) {
    let turn = move || {
        let done = |result: libc::c_long| match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // The calls of the kernel themselves: those of the C library change every thread, and
        // after fork there is one.
        // SAFETY: three calls of the kernel; the list of groups is owned by the closure, and
        // outlives them.
        unsafe {
            done(libc::syscall(
                libc::SYS_setgroups,
                groups.len(),
                groups.as_ptr(),
            ))?;
            done(libc::syscall(libc::SYS_setgid, group))?;
            done(libc::syscall(libc::SYS_setuid, user))
        }
    };
    // SAFETY: between fork and exec the closure makes calls of the kernel alone, and allocates
    // nothing.
    unsafe { command.pre_exec(turn) };
}

/// Has the program lead a session of its own whose terminal is its standard input.
pub fn as_session_leader(command: &mut Command) {
    let lead = || {
        nix::unistd::setsid()?;
        // SAFETY: the request takes a number and no pointer.
        match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: setsid and ioctl are safe between fork and exec; nothing is allocated.
    unsafe { command.pre_exec(lead) };
}

/// Gives a terminal, by the end that is not the program's, this size.
pub fn resize(terminal: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads a winsize, which lives on the stack during the call.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
