//! Starting a program where it belongs.

use std::{fs::File, io, os::unix::process::CommandExt, process::Command};

/// Has the program be in a cgroup from its first instruction on: `procs` is
/// the cgroup's open `cgroup.procs`.
pub fn in_cgroup(command: &mut Command, procs: File) {
    let join = move || {
        nix::unistd::write(&procs, b"0")
            .map(drop)
            .map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure only calls write(2), which is
    // safe there, on a descriptor it owns; it allocates nothing.
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
