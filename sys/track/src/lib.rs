//! Lets the daemon learn which pages of a QEMU were written since it last
//! looked: loaded into QEMU before its `main` (`LD_PRELOAD`), opens the one
//! descriptor that only a process itself can open, and does nothing else ever.
//!
//! A `userfaultfd` belongs to the address space that opened it. The daemon
//! takes a copy of the descriptor, and from then on it is the daemon that
//! registers memory (see `forkyard_sys_host::userfault`). QEMU does not know.
//!
//! Without it a VM works all the same; each of its forks copies all its memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long};

/// Names the descriptor to replace: an open placeholder, so that the number
/// can be nothing else's.
const PLACE: &CStr = c"FORKYARD_TRACK_FD";

/// From `linux/userfaultfd.h`: faults in the kernel would not be told of. None
/// is told of anyway, as writes are only noted; so this costs nothing, and it
/// is what a process without privileges may have.
const USER_MODE_ONLY: c_int = 1;

#[used]
// SAFETY: the loader calls what lies in this section once, before `main`, with
// arguments this function may ignore.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = offer;

extern "C" fn offer() {
    // SAFETY: no other thread exists yet that could change the environment,
    // and the name is a C string.
    let place = unsafe { libc::getenv(PLACE.as_ptr()) };
    if place.is_null() {
        return;
    }
    // SAFETY: what getenv gave is a C string.
    let place = unsafe { libc::atoi(place) };
    if place <= libc::STDERR_FILENO {
        return;
    }
    let flags = c_long::from(libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY);
    // SAFETY: takes one integer and opens a descriptor; where the kernel has
    // no such call, or forbids it, the placeholder stays.
    let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let Ok(opened) = c_int::try_from(opened) else {
        return;
    };
    if opened >= 0 {
        // SAFETY: `opened` is ours, and so is the number it moves to.
        unsafe {
            libc::dup3(opened, place, libc::O_CLOEXEC);
            libc::close(opened);
        }
    }
}
