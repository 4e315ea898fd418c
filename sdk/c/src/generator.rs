//! Generators whose state the agent overwrites in every clone.
//!
//! The registration is a private copy of a page of the agent's, with a table in
//! it: the agent finds it in the process's memory map. It ends with the
//! process, and is copied by fork(2) with everything else.

use forkyard_agent_link::SOCKET;
use std::{fs::File, io, os::fd::AsRawFd, path::Path, ptr};

const PAGE: usize = 4096;
/// A table of one entry: what it is, how many, where, how long.
type Table = [[u8; 8]; 4];

/// Registers so many bytes at this address.
pub fn register(address: usize, size: usize) -> io::Result<()> {
    let page = Path::new(SOCKET).with_file_name("generators");
    let page = File::open(page)?;
    let table: Table = [
        *b"forkyard",
        1u64.to_ne_bytes(),
        (address as u64).to_ne_bytes(),
        (size as u64).to_ne_bytes(),
    ];
    // SAFETY: a new mapping, at an address of the kernel's choice, of a file
    // that is open for the call and as long as the mapping.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE,
            page.as_raw_fd(),
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is writable, aligned to a page, longer than the table
    // and known to no other code; it is never unmapped.
    unsafe { memory.cast::<Table>().write(table) };
    Ok(())
}
