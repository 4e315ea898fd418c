//! Programs that get no huge pages though they ask for them.
// All of these are constants that are known to fit.
#![allow(clippy::cast_possible_truncation)]

use crate::process::check;
use std::{io, mem::offset_of, os::unix::process::CommandExt, process::Command};

/// Has the program that `command` starts, and whatever it starts, be told that
/// there are no huge pages when it asks for some, `EINVAL`, as by a kernel
/// without them. Call it after [`isolate`](crate::process::isolate): it takes a
/// process that cannot gain privileges.
///
/// Where memory is a view of a file, Linux reads the huge page around each page
/// that is touched, and the next one, 4 MiB, whatever it was told of reading
/// ahead.
pub fn without_huge_pages(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which
    // copies what it is given.
    unsafe { command.pre_exec(refuse) };
}

/// A step of a filter.
const fn step(code: u32, value: u32, if_so: u8, if_not: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: if_so,
        jf: if_not,
        k: value,
    }
}

const fn load(offset: usize) -> libc::sock_filter {
    step(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        offset as u32,
        0,
        0,
    )
}

const fn unless(value: u32, skip: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

const fn answer(what: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, what, 0, 0)
}

/// Of the third argument, the half that counts.
const ADVICE: usize = offset_of!(libc::seccomp_data, args) + 2 * size_of::<u64>();
const LOW: usize = if cfg!(target_endian = "big") { 4 } else { 0 };

/// No guard of anything: other ways to call it are not looked for.
static FILTER: [libc::sock_filter; 6] = [
    load(offset_of!(libc::seccomp_data, nr)),
    unless(libc::SYS_madvise as u32, 3),
    load(ADVICE + LOW),
    unless(libc::MADV_HUGEPAGE as u32, 1),
    answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
    answer(libc::SECCOMP_RET_ALLOW),
];

fn refuse() -> io::Result<()> {
    let program = libc::sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program and its steps during the call alone.
    check(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answers to a program that asks for huge pages, and for
    /// something else.
    fn asked(without: bool) -> String {
        let mut command = Command::new("python3");
        command.args([
            "-c",
            "import mmap\n\
             for advice in mmap.MADV_HUGEPAGE, mmap.MADV_DONTNEED:\n\
             \x20 try: mmap.mmap(-1, 1 << 21).madvise(advice); print('done')\n\
             \x20 except OSError as error: print(error.errno)\n",
        ]);
        if without {
            // SAFETY: a system call that takes integers.
            unsafe {
                command.pre_exec(|| check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
            }
            without_huge_pages(&mut command);
        }
        let output = command.output().expect("python3");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    fn huge_pages_are_refused_and_nothing_else() {
        assert_eq!(asked(true), format!("{}\ndone\n", libc::EINVAL));
        assert!(asked(false).ends_with("done\n"));
    }
}
