//! Pages of another process that were written since the last look:
//! `userfaultfd` in its asynchronous write-protect mode, and the scan of a page
//! map that lists pages and renews their protection in one step (Linux 6.7).
//!
//! The kernel lifts the protection of a page at the first write to it, by
//! itself; no process is told and none waits. So a watched process never hangs,
//! whatever becomes of the watcher.

use crate::{memory::HostAddr, process::PidFd};
use forkyard_types::{ByteCount, PAGE_SIZE, PageCount};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
};

/// From `linux/userfaultfd.h`.
mod abi {
    pub const API: u64 = 0xAA;
    pub const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
    pub const FEATURE_WP_ASYNC: u64 = 1 << 15;
    pub const MODE_WP: u64 = 1 << 1;

    #[repr(C)]
    pub struct Handshake {
        pub api: u64,
        pub features: u64,
        pub ioctls: u64,
    }

    #[repr(C)]
    pub struct Range {
        pub start: u64,
        pub len: u64,
    }

    #[repr(C)]
    pub struct Register {
        pub range: Range,
        pub mode: u64,
        pub ioctls: u64,
    }

    /// From `linux/fs.h`.
    #[repr(C)]
    pub struct Scan {
        pub size: u64,
        pub flags: u64,
        pub start: u64,
        pub end: u64,
        pub walk_end: u64,
        pub vec: u64,
        pub vec_len: u64,
        pub max_pages: u64,
        pub category_inverted: u64,
        pub category_mask: u64,
        pub category_anyof_mask: u64,
        pub return_mask: u64,
    }

    pub const SCAN_RENEW: u64 = 1 << 0;
    pub const SCAN_CHECK: u64 = 1 << 1;

    pub const IS_WRITTEN: u64 = 1 << 1;
    pub const IS_FILE: u64 = 1 << 2;
    pub const IS_PRESENT: u64 = 1 << 3;
    pub const IS_SWAPPED: u64 = 1 << 4;
    pub const IS_ZERO: u64 = 1 << 5;

    nix::ioctl_readwrite!(handshake, 0xAA, 0x3F, Handshake);
    nix::ioctl_readwrite!(register, 0xAA, 0x00, Register);
    nix::ioctl_readwrite!(scan, b'f', 16, Scan);
}

/// Pages that follow each other, as the kernel lists them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScannedRun {
    start: u64,
    end: u64,
    categories: u64,
}

impl ScannedRun {
    /// Address of the first page.
    pub fn start(self) -> HostAddr {
        HostAddr(self.start)
    }

    /// Number of pages.
    pub fn pages(self) -> PageCount {
        PageCount((self.end - self.start) / PAGE_SIZE as u64)
    }
}

/// The `userfaultfd` of a process: memory registered with it is watched for as
/// long as that process has the descriptor open too.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl Userfault {
    /// Copies a descriptor of another process, if it is a `userfaultfd`;
    /// `InvalidInput` if it is something else.
    pub fn of_process(pid: u32, number: RawFd) -> io::Result<Self> {
        let name = std::fs::read_link(format!("/proc/{pid}/fd/{number}"))?;
        if name != Path::new("anon_inode:[userfaultfd]") {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let process = PidFd::open(pid)?;
        // SAFETY: takes three integers and no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call just returned this descriptor, and nothing else
        // knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Has the kernel watch memory of the process from now on. No error if it
    /// does already. `Unsupported` on Linux before 6.7.
    pub fn watch(&self, start: HostAddr, len: ByteCount) -> io::Result<()> {
        let mut handshake = abi::Handshake {
            api: abi::API,
            features: abi::FEATURE_WP_ASYNC | abi::FEATURE_WP_UNPOPULATED,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and fills the structure, which outlives the
        // call and is laid out as it expects.
        match unsafe { abi::handshake(self.0.as_raw_fd(), &raw mut handshake) } {
            // Refused if it was said before, by this daemon or an earlier one,
            // and also if the kernel is too old; the next call tells which.
            Ok(_) | Err(nix::Error::EINVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let mut register = abi::Register {
            range: abi::Range {
                start: start.0,
                len: len.0,
            },
            mode: abi::MODE_WP,
            ioctls: 0,
        };
        // SAFETY: as above; the addresses are the other process's, and the
        // kernel checks them.
        match unsafe { abi::register(self.0.as_raw_fd(), &raw mut register) } {
            Ok(_) => Ok(()),
            Err(nix::Error::EINVAL) => Err(io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Pages that a scan lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedPages {
    /// Pages that are the process's own and may hold something.
    Private,
    /// Those of them that were written since they were last listed, or ever, if
    /// they never were.
    Written,
}

/// Scans the page map of a process.
#[derive(Debug)]
pub struct Scanner {
    map: File,
    wanted: WantedPages,
    flags: u64,
}

impl Scanner {
    /// Opens the page map; needs the right to trace the process.
    pub fn open(pid: u32, wanted: WantedPages) -> io::Result<Self> {
        Ok(Self {
            map: File::open(format!("/proc/{pid}/pagemap"))?,
            wanted,
            flags: abi::SCAN_RENEW | abi::SCAN_CHECK,
        })
    }

    /// Opens it to look only: pages it lists are listed again.
    pub fn open_to_look(pid: u32, wanted: WantedPages) -> io::Result<Self> {
        let scanner = Self::open(pid, wanted)?;
        Ok(Self {
            flags: abi::SCAN_CHECK,
            ..scanner
        })
    }

    /// Lists pages of watched memory from `start` up to `end`, as many as `runs`
    /// has room for; answers how many runs it filled and how far it came.
    ///
    /// What is listed counts as not written from then on, unless this only
    /// looks. A page's listing and its renewal are one step: no write between
    /// them is lost.
    pub fn scan(
        &self,
        start: HostAddr,
        end: HostAddr,
        runs: &mut [ScannedRun],
    ) -> io::Result<(usize, HostAddr)> {
        let (like, unlike) = match self.wanted {
            WantedPages::Private => (0, abi::IS_FILE | abi::IS_ZERO),
            // Zero now, and something else the last time perhaps.
            WantedPages::Written => (abi::IS_WRITTEN, abi::IS_FILE),
        };
        let mut scan = abi::Scan {
            size: size_of::<abi::Scan>() as u64,
            flags: self.flags,
            start: start.0,
            end: end.0,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: 0,
            // All of the first, and any of the second.
            category_mask: like | unlike,
            category_inverted: unlike,
            category_anyof_mask: abi::IS_PRESENT | abi::IS_SWAPPED,
            return_mask: 0,
        };
        // SAFETY: the kernel reads and fills the structure and at most
        // `vec_len` of the elements of `runs`, which is borrowed for as long.
        let filled = unsafe { abi::scan(self.map.as_raw_fd(), &raw mut scan) }?;
        let filled = usize::try_from(filled).map_err(io::Error::other)?;
        Ok((filled, HostAddr(scan.walk_end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use std::num::NonZeroUsize;

    /// A descriptor of our own, placed where another process would have it.
    fn own() -> (OwnedFd, Userfault) {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: takes an integer and opens a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = RawFd::try_from(fd).expect("a descriptor");
        assert!(fd >= 0, "userfaultfd: {}", io::Error::last_os_error());
        // SAFETY: the call just returned it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let copy = Userfault::of_process(std::process::id(), fd.as_raw_fd()).expect("copied");
        (fd, copy)
    }

    const NONE: [usize; 0] = [];

    fn listed(mapping: &Mapping, pages: usize, wanted: WantedPages) -> Vec<usize> {
        let scanner = Scanner::open(std::process::id(), wanted).expect("our own");
        all(&scanner, mapping, pages)
    }

    fn looked_at(mapping: &Mapping, pages: usize) -> Vec<usize> {
        let scanner = Scanner::open_to_look(std::process::id(), WantedPages::Written);
        all(&scanner.expect("our own"), mapping, pages)
    }

    fn all(scanner: &Scanner, mapping: &Mapping, pages: usize) -> Vec<usize> {
        let start = mapping.address();
        let end = HostAddr(start.0 + (pages * PAGE_SIZE) as u64);
        let mut runs = [ScannedRun::default(); 2];
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            let (filled, reached) = scanner.scan(at, end, &mut runs).expect("scans");
            for run in &runs[..filled] {
                let first = usize::try_from(run.start().0 - start.0).expect("small") / PAGE_SIZE;
                found.extend(
                    (0..run.pages().0).map(|page| first + usize::try_from(page).expect("small")),
                );
            }
            at = reached;
        }
        found
    }

    fn eight() -> NonZeroUsize {
        NonZeroUsize::new(8 * PAGE_SIZE).expect("not zero")
    }

    #[test]
    fn anonymous_pages_are_listed_once_for_each_time_they_are_written() {
        let mapping = Mapping::anonymous(eight()).expect("maps");
        let (_held, fault) = own();
        for page in [0, 2, 4, 6] {
            mapping.write(page * PAGE_SIZE, b"x").expect("inside");
        }
        let watched = fault.watch(mapping.address(), ByteCount(8 * PAGE_SIZE as u64));
        watched.expect("watched");
        assert_eq!(listed(&mapping, 8, WantedPages::Private), [0, 2, 4, 6]);
        assert_eq!(listed(&mapping, 8, WantedPages::Written), NONE);
        mapping.write(4 * PAGE_SIZE, b"y").expect("inside");
        mapping.write(5 * PAGE_SIZE, b"y").expect("inside");
        assert_eq!(looked_at(&mapping, 8), [4, 5], "and still to be listed");
        assert_eq!(listed(&mapping, 8, WantedPages::Written), [4, 5]);
        assert_eq!(listed(&mapping, 8, WantedPages::Written), NONE);
        assert_eq!(listed(&mapping, 8, WantedPages::Private), [0, 2, 4, 5, 6]);
    }

    #[test]
    fn a_private_view_lists_what_was_written_over_its_file() {
        let file = crate::memory::anonymous_file("test", ByteCount(8 * PAGE_SIZE as u64));
        let mapping = Mapping::private(file.expect("memfd"), eight()).expect("maps");
        let (_held, fault) = own();
        let watched = fault.watch(mapping.address(), ByteCount(8 * PAGE_SIZE as u64));
        watched.expect("watched");
        mapping.read(3 * PAGE_SIZE, &mut [0]).expect("inside");
        mapping.write(PAGE_SIZE, b"x").expect("inside");
        assert_eq!(listed(&mapping, 8, WantedPages::Private), [1]);
        mapping.write(PAGE_SIZE, b"y").expect("inside");
        mapping.write(3 * PAGE_SIZE, b"y").expect("inside");
        assert_eq!(listed(&mapping, 8, WantedPages::Written), [1, 3]);
        assert_eq!(listed(&mapping, 8, WantedPages::Written), NONE);
    }

    #[test]
    fn memory_that_is_not_watched_is_not_renewed() {
        let mapping = Mapping::anonymous(eight()).expect("maps");
        mapping.write(0, b"x").expect("inside");
        let scanner = Scanner::open(std::process::id(), WantedPages::Private).expect("our own");
        let end = HostAddr(mapping.address().0 + PAGE_SIZE as u64);
        let refused = scanner.scan(mapping.address(), end, &mut [ScannedRun::default()]);
        assert_eq!(
            refused.expect_err("refused").raw_os_error(),
            Some(libc::EPERM)
        );
    }

    #[test]
    fn a_descriptor_of_another_kind_is_not_taken() {
        let null = File::open("/dev/null").expect("device");
        let refused = Userfault::of_process(std::process::id(), null.as_raw_fd());
        assert_eq!(
            refused.expect_err("refused").kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
