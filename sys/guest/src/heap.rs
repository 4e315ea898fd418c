//! The heap of the C library.

/// From here on keeps up to so many bytes that are freed, in place of giving them back to the kernel, which
/// would have to clear them anew for whatever is wanted next. Blocks of so many bytes and more are given back.
pub fn keep(bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    for what in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: takes two integers and no pointer; what the library does not know is refused.
        unsafe { libc::mallopt(what, bytes) };
    }
}
