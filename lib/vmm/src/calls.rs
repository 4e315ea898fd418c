//! System calls that a QEMU may make.
//!
//! Found by tracing QEMUs of Debian 12 that boot, fork, clone, load, save, give memory back,
//! fold disks and end; with what their libraries use in place of these on other hosts, and
//! what KVM takes. QEMU's own `-sandbox` comes on top: once it has started, it lets
//! no program be executed, which this list must let happen once.
//!
//! Not on it, though a QEMU asks: `io_uring_setup`, whose requests no filter sees, and
//! `memfd_create`; it goes on without. Nothing on it opens a socket (but for a QEMU whose disk lies over a volume), names another
//! process, makes a namespace or a key, or loads anything into the kernel.

use forkyard_sys_host::filter::{Call, FILES, Filter, ITSELF, RESTRICTED};
use nix::libc::{self, c_long};
use std::io;

/// System calls of QEMU beside those of any program.
const MORE: [c_long; 7] = [
    // Adds filters, takes none away.
    libc::SYS_seccomp,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_unlink,
    // The daemon is handed what it opens; its ioctls are not on this list.
    libc::SYS_userfaultfd,
];

/// Sockets that were handed to it.
const SOCKETS: [c_long; 12] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

const EVERY_BIT: u64 = u64::MAX;

/// System calls that are allowed for some arguments alone.
const SOME: [Call; 2] = [
    // By the kind of device: of terminals and taps ('T'), and of KVM.
    Call::only(libc::SYS_ioctl, 1, 0xff00, &[0x5400, 0xae00]),
    Call::only(
        libc::SYS_prctl,
        0,
        EVERY_BIT,
        &[
            libc::PR_SET_NAME as u64,
            libc::PR_SET_TIMERSLACK as u64,
            libc::PR_MCE_KILL as u64,
            libc::PR_SET_NO_NEW_PRIVS as u64,
            libc::PR_SET_SECCOMP as u64,
        ],
    ),
];

/// System calls of a QEMU whose disk is served over a Unix socket, and that connects again when
/// the server has gone. Its mount namespace holds no other socket, and its network namespace is
/// empty.
const CLIENT: [Call; 2] = [
    Call::only(libc::SYS_socket, 0, EVERY_BIT, &[libc::AF_UNIX as u64]),
    Call::any(libc::SYS_connect),
];

/// The list.
pub(crate) fn of_qemu() -> io::Result<Filter> {
    Filter::allowing(&calls())
}

/// The list for one whose disk lies over a volume.
pub(crate) fn of_qemu_with_volume() -> io::Result<Filter> {
    let calls: Vec<_> = calls().into_iter().chain(CLIENT).collect();
    Filter::allowing(&calls)
}

fn calls() -> Vec<Call> {
    let any = ITSELF.into_iter().chain(FILES).chain(SOCKETS).chain(MORE);
    any.map(Call::any).chain(RESTRICTED).chain(SOME).collect()
}
