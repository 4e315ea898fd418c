//! Mappings of memory and files into this process.
//!
//! Memory others may change at any time, so it is copied in and out and never
//! lent as a slice. A page whose file cannot provide it (FUSE answered EIO, or
//! the file shrank) ends the process with SIGBUS on access: map only where
//! that is what should happen.

use crate::memory::HostAddr;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A readable and writable mapping, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<c_void>,
    len: NonZeroUsize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and a `Mapping`
// is the only one that unmaps it.
unsafe impl Send for Mapping {}

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

impl Mapping {
    /// Zeroed memory of this process alone.
    pub fn anonymous(len: NonZeroUsize) -> io::Result<Self> {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: no address is asked for, so nothing that exists is disturbed.
        let base = unsafe { mmap_anonymous(None, len, READ_WRITE, flags) }?;
        Ok(Self { base, len })
    }

    /// The first `len` bytes of a file; what is written stays here.
    pub fn private(file: impl AsFd, len: NonZeroUsize) -> io::Result<Self> {
        Self::of(file, len, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)
    }

    /// The first `len` bytes of a file; what is written goes to the file.
    pub fn shared(file: impl AsFd, len: NonZeroUsize) -> io::Result<Self> {
        Self::of(file, len, MapFlags::MAP_SHARED)
    }

    fn of(file: impl AsFd, len: NonZeroUsize, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: no address is asked for, so nothing that exists is
        // disturbed; `file` stays open for the call, and a mapping outlives
        // its descriptor.
        let base = unsafe { mmap(None, len, READ_WRITE, flags, file, 0) }?;
        Ok(Self { base, len })
    }

    /// Returns its address in this process.
    pub fn address(&self) -> HostAddr {
        HostAddr(self.base.as_ptr().addr() as u64)
    }

    /// Copies `out.len()` bytes at `offset` out. `InvalidInput` if they are not
    /// all inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        let from = self.at(offset, out.len())?.cast::<u8>();
        // SAFETY: `at` checked that the bytes lie inside the mapping, which
        // lives as long as `self`; `out` is a slice of ours and no slice of
        // ours is ever part of a mapping, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `data` in at `offset`. `InvalidInput` if it does not all fit inside.
    pub fn write(&self, offset: usize, data: &[u8]) -> io::Result<()> {
        let to = self.at(offset, data.len())?.cast::<u8>();
        // SAFETY: as in `read`, the other way round; no code holds a reference
        // into the mapping, so writing through a shared `self` breaks none.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Gives whole pages back to the kernel: private memory is zero afterwards,
    /// a private view shows the file again.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        let base = NonNull::new(self.at(offset, len)?)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the range lies inside the mapping, and no reference into it
        // exists that could see its contents change.
        unsafe { madvise(base, len, MmapAdvise::MADV_DONTNEED) }?;
        Ok(())
    }

    fn at(&self, offset: usize, len: usize) -> io::Result<*mut c_void> {
        match offset.checked_add(len) {
            // SAFETY: the offset is within the mapping, so the result stays in it.
            Some(end) if end <= self.len.get() => Ok(unsafe { self.base.as_ptr().add(offset) }),
            Some(_) | None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length come from one successful mmap, and no
        // reference into it was ever lent. It cannot fail for such a range.
        let _ = unsafe { munmap(self.base, self.len.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_past_the_end_is_refused() {
        let mapping = Mapping::anonymous(NonZeroUsize::new(4096).expect("not zero")).expect("maps");
        assert!(mapping.write(4090, b"longer").is_ok());
        assert!(mapping.write(4091, b"longer").is_err());
        assert!(mapping.read(usize::MAX, &mut [0]).is_err());
    }

    #[test]
    fn private_view_shows_the_file_again_after_discard() {
        let file =
            crate::memory::anonymous_file("test", forkyard_types::ByteCount(4096)).expect("memfd");
        let view =
            Mapping::private(&file, NonZeroUsize::new(4096).expect("not zero")).expect("maps");
        view.write(0, b"mine").expect("inside");
        view.discard(0, 4096).expect("inside");
        let mut out = [1; 4];
        view.read(0, &mut out).expect("inside");
        assert_eq!(out, [0; 4]);
    }
}
