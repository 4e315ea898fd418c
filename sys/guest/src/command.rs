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
