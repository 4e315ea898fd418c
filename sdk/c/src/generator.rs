//! Generators whose state the agent overwrites in every clone.
//!
//! The registration is a private copy of a page of the agent's, with a table in
//! it: the agent finds it in the process's memory map. It ends with the
//! process, and is copied by fork(2) with everything else.

use forkyard_guestlink::SOCKET;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::{fs::File, io, num::NonZeroUsize, path::Path};

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
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
    // that is open for the call.
    let memory = unsafe {
        mmap(
            None,
            PAGE,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE,
            &page,
            0,
        )
    }?;
    // SAFETY: the mapping is writable, aligned to a page, longer than the table
    // and known to nobody else; it is never unmapped.
    unsafe { memory.cast::<Table>().write(table) };
    Ok(())
}
