//! Memory of other processes, and memory of our own that has a descriptor.
//!
//! What another process has in its memory is copied, never looked at in
//! place: it may change at any time and is never a slice of ours.

use forkyard_types::{ByteCount, PAGE_SIZE, PageNo};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, pwritev};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// An address in some process on this host, not necessarily this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddr(pub u64);

impl HostAddr {
    /// Address of the `page`th page of what starts here, or `None` where that
    /// would overflow.
    pub fn page(self, page: PageNo) -> Option<Self> {
        self.0.checked_add(page.start()?.0).map(Self)
    }

    /// Tells whether a page starts here.
    pub fn is_page_aligned(self) -> bool {
        self.0.is_multiple_of(PAGE_SIZE as u64)
    }
}

/// A stretch of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Address of its first byte.
    pub start: HostAddr,
    /// Bytes in it.
    pub bytes: usize,
}

/// Most pieces one [`read_process`] takes: the kernel's `UIO_MAXIOV`.
pub const MAX_PIECES: usize = 1024;

/// Copies `pieces` of the process, one after the other, to the start of `out`.
/// Answers how many bytes it got: fewer than asked for when a piece, or part
/// of one, is not mapped there. `ESRCH` when the process is gone.
pub fn read_process(pid: u32, pieces: &[MemoryRange], out: &mut [u8]) -> io::Result<usize> {
    let pid = i32::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let remote = pieces
        .iter()
        .map(|piece| {
            let base = usize::try_from(piece.start.0);
            base.map(|base| RemoteIoVec {
                base,
                len: piece.bytes,
            })
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut local = [IoSliceMut::new(out)];
    Ok(process_vm_readv(Pid::from_raw(pid), &mut local, &remote)?)
}

/// An empty file of `size` that lives in memory alone and can be sealed.
/// `name` is what `/proc/PID/fd` shows.
pub fn anonymous_file(name: &str, size: ByteCount) -> io::Result<File> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(size.0)?;
    Ok(file)
}

/// Forbids for good, to all processes, to change the contents or the size of an
/// [`anonymous_file`].
///
/// Waits, up to ten seconds, for holders of its pages: the kernel
/// itself does for a moment when it is short of memory, and does not tell this
/// from one that may still write there. `EBUSY` if they hold it longer, or if
/// the file is mapped for writing.
pub fn seal(file: &File) -> io::Result<()> {
    let all = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL;
    let begun = Instant::now();
    loop {
        match fcntl(file, FcntlArg::F_ADD_SEALS(all)) {
            Err(Errno::EBUSY) if begun.elapsed() < LONGEST_HELD => thread::sleep(BETWEEN_SEALS),
            sealed => return Ok(sealed.map(drop)?),
        }
    }
}

/// Time [`seal`] waits for pages that are held. The kernel waits 0.15 s.
const LONGEST_HELD: Duration = Duration::from_secs(10);

/// Between two tries of [`seal`].
const BETWEEN_SEALS: Duration = Duration::from_millis(10);

/// Writes all of `pieces`, one after the other, from byte `offset` of the file on.
/// `pieces` is used up.
pub fn write_all_at(
    file: impl AsFd,
    mut pieces: &mut [IoSlice<'_>],
    offset: u64,
) -> io::Result<()> {
    let mut offset = offset;
    while !pieces.is_empty() {
        let at = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match pwritev(file.as_fd(), pieces, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut pieces, written);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc::splice;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::ptr;

    #[test]
    fn own_memory_is_read_in_pieces_in_their_order() {
        let text = *b"in pieces";
        let at = |offset: usize| HostAddr((text.as_ptr().addr() + offset) as u64);
        let pieces = [
            MemoryRange {
                start: at(3),
                bytes: 6,
            },
            MemoryRange {
                start: at(0),
                bytes: 2,
            },
        ];
        let mut out = [0; 8];
        let got = read_process(std::process::id(), &pieces, &mut out).expect("ourselves");
        assert_eq!((got, &out), (8, b"piecesin"));
    }

    #[test]
    fn sealed_file_can_neither_be_written_nor_resized() {
        let file = anonymous_file("test", ByteCount(4096)).expect("memfd");
        write_all_at(
            &file,
            &mut [IoSlice::new(b"to"), IoSlice::new(b"gether")],
            4,
        )
        .expect("open");
        seal(&file).expect("seals");
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        let mut out = [0; 8];
        file.read_exact_at(&mut out, 4).expect("reads");
        assert_eq!(&out, b"together");
    }

    #[test]
    fn page_that_is_held_for_a_while_keeps_no_file_from_being_sealed() {
        let file = anonymous_file("test", ByteCount(4096)).expect("memfd");
        file.write_all_at(&[1; 4096], 0).expect("open");
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let (from, to) = (file.as_raw_fd(), writer.as_raw_fd());
        // SAFETY: both are open, and a null pointer stands for where they are.
        // What is in the pipe then is the page, and no copy of it.
        let moved = unsafe { splice(from, ptr::null_mut(), to, ptr::null_mut(), 4096, 0) };
        assert_eq!(moved, 4096);
        let held = fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
        assert_eq!(held, Err(Errno::EBUSY), "nobody holds the page");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(400));
                reader.read_exact(&mut [0; 4096]).expect("the page");
            });
            seal(&file).expect("seals");
        });
        assert!(file.write_all_at(b"x", 0).is_err());
    }

    #[test]
    fn process_that_does_not_exist_is_reported_as_such() {
        let piece = MemoryRange {
            start: HostAddr(4096),
            bytes: 1,
        };
        let error = read_process(i32::MAX as u32, &[piece], &mut [0]).expect_err("no such process");
        assert_eq!(error.raw_os_error(), Some(nix::libc::ESRCH));
    }
}
