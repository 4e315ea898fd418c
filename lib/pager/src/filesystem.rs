//! Presentation of images to the kernel.
//!
//! QEMU opens the file of its memory for reading and writing and maps it
//! privately. A file opened so, if the kernel cached writes to it, would let
//! one VM change the pages all others see: by `write`, whose refusal comes
//! after the kernel has filled the page cache, or by a shared mapping, about
//! which we are never asked. So a file opened for writing is opened for direct I/O:
//! `write` comes to us and is refused, a shared mapping is refused by the kernel
//! (ENODEV), and private mappings go through the page cache as ever, which all
//! users of an image share.
//!
//! The price: the kernel drops an image's cached pages whenever it maps such a
//! file. Clones map the file before there is anything in it, so a fork
//! pays nothing; a VM that maps an image others already run on makes them fetch
//! again what they still use. Files opened for reading alone pay nothing.
//!
//! A balloon's `fallocate(PUNCH_HOLE)` says which pages one VM gave up, and
//! changes nothing for the others. A waiting reader that is killed leaves at
//! once if it waits for a page of a mapping; one in `read(2)` leaves when it is
//! answered, for the kernel does not take back a request it has handed out.

use crate::catalog::Node;
use crate::service::{PendingRead, Service};
use forkyard_types::{ByteOff, ImageId, PageCount, VM_UIDS};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes the kernel may read ahead of, or around, a page it wants: none but the page.
/// What else it is given is decided by the pager, for the kernel reads around
/// every page that is touched: of a guest that booted, 2,000 pages until the first
/// command, 5,200 by 32 KiB, 14,800 by 1 MiB.
pub const READ_AHEAD: u32 = 4 << 10;

/// Names and attributes never change, and the kernel is told of names that go.
const FOR_GOOD: Duration = Duration::from_secs(24 * 60 * 60);
/// Requests the kernel may leave open at a time. Reads of promised images stay
/// open for long, and must not keep those of others out.
const MAX_OPEN_REQUESTS: u16 = u16::MAX;
/// Says that a hole is meant, in the mode of `fallocate`.
const PUNCH_HOLE: i32 = nix::libc::FALLOC_FL_PUNCH_HOLE;

/// The file system.
#[derive(Debug)]
pub(crate) struct Images(pub Arc<Service>);

impl Images {
    fn size(&self, ino: INodeNo) -> Option<PageCount> {
        self.0.catalog().size(Node(ino.0))
    }
}

impl Filesystem for Images {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel may allow less.
        if let Err(most) = config.set_max_readahead(READ_AHEAD) {
            let _ = config.set_max_readahead(most);
        }
        let open = config.set_max_background(MAX_OPEN_REQUESTS);
        open.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let id = name.to_str().and_then(canonical);
        let found = id
            .filter(|_| parent == INodeNo::ROOT)
            .and_then(|id| self.0.catalog().find(id));
        match found {
            Some((node, pages)) => {
                reply.entry(&FOR_GOOD, &file(INodeNo(node.0), pages), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            return reply.attr(&Duration::ZERO, &directory());
        }
        match self.size(ino) {
            Some(pages) => reply.attr(&FOR_GOOD, &file(ino, pages)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(pages) = self.size(ino) else {
            return reply.error(Errno::EROFS);
        };
        let same = size.is_none_or(|size| pages.bytes().is_some_and(|bytes| bytes.0 == size));
        if same && mode.is_none() && uid.is_none() && gid.is_none() {
            reply.attr(&FOR_GOOD, &file(ino, pages));
        } else {
            reply.error(Errno::EROFS);
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !may_open(req.uid()) {
            return reply.error(Errno::EACCES);
        }
        if !self.0.open(Node(ino.0), req.unique()) {
            return reply.error(Errno::ENOENT);
        }
        let common = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        let flags = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => common,
            OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => common | FopenFlags::FOPEN_DIRECT_IO,
        };
        reply.opened(FileHandle(ino.0), flags);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.close(Node(ino.0), req.unique());
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        bytes: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let offset = ByteOff(offset);
        self.0.read(
            Node(ino.0),
            PendingRead {
                offset,
                bytes,
                reply,
            },
        );
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // Not EOPNOTSUPP for the rest: the kernel would never ask again, and
        // refuse holes as well.
        if mode & PUNCH_HOLE != 0 {
            reply.ok()
        } else {
            reply.error(Errno::EROFS)
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        reply: ReplyDirectory,
    ) {
        // Names are capabilities: none is told.
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }
}

/// Allows root and the users of VMs, which know the names of their own images, to open one. Names alone keep no secret from other users: they are on command lines.
fn may_open(uid: u32) -> bool {
    uid == 0 || VM_UIDS.contains(&uid)
}

/// One name for each image: `FromStr` would take several.
fn canonical(name: &str) -> Option<ImageId> {
    name.parse()
        .ok()
        .filter(|id: &ImageId| id.to_string() == name)
}

fn file(ino: INodeNo, pages: PageCount) -> FileAttr {
    let size = pages.bytes().map_or(u64::MAX, |bytes| bytes.0);
    // Mode shown to users; it does not decide which of them may open it.
    attributes(ino, FileType::RegularFile, 0o600, size)
}

fn directory() -> FileAttr {
    attributes(INodeNo::ROOT, FileType::Directory, 0o711, 0)
}

fn attributes(ino: INodeNo, kind: FileType, perm: u16, size: u64) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
