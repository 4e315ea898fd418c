//! Programs that parse what others have made, kept to just that.
//!
//! Such a program has a room with the files that it is given and what it takes to run, no
//! network, only the system calls that it needs, and limits on
//! memory, on the files it writes and on processor time. One that is taken over by what it
//! reads can spoil what it was to make, and nothing else.

use forkyard_sys_host::{
    filter::{Call, FILES, Filter, ITSELF, RESTRICTED},
    process::{Bounds, Capability, Credentials, Surroundings, empty_network, isolate},
    room::{Piece, Room, Use, programs},
};
use forkyard_types::VM_UIDS;
use nix::libc::{self, c_long};
use std::{io, path::Path, process::Command, sync::Arc};

/// The user of programs that need no rights; no VM's, and nobody's else.
pub const NOBODY: u32 = VM_UIDS.start - 1;
/// Memory that it may have to itself, beside what it maps without using it.
const MEMORY: u64 = 2 << 30;
const THREADS_AT_MOST: u64 = 64;
/// Seconds of processor time: enough for a disk of 1 TiB.
const PROCESSOR: u64 = 2 * 3600;
/// What mke2fs goes by.
const SETTINGS: &str = "/etc/mke2fs.conf";
/// What it asks whether a disk is mounted: nothing is.
const MOUNTED: &str = "/etc/mtab";

/// Who a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// [`NOBODY`].
    Nobody,
    /// Root, with the right to read what any user owns and no other.
    Reader,
}

/// What a program is left with.
#[derive(Clone, Copy, Debug)]
pub struct Confinement<'a> {
    /// Who it is.
    pub who: Who,
    /// The files or trees that it reads, and cannot change.
    pub reads: &'a [&'a Path],
    /// The files that it writes.
    pub writes: &'a [&'a Path],
    /// Bytes of each of these at most.
    pub largest: u64,
}

/// Calls beside those of every program: folders, attributes and blocks of files, and what qemu-img
/// has its threads woken by.
const MORE: [c_long; 11] = [
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_signalfd4,
    libc::SYS_sched_getparam,
    libc::SYS_umask,
    libc::SYS_getpgrp,
];
/// Has `command` run so, found in its room, with no other variables. To be started by
/// [`spawn_first`](forkyard_sys_host::process::spawn_first) if it is to see no other
/// process. Takes root. Blocks for some milliseconds.
pub fn confine(command: &mut Command, to: Confinement<'_>) -> io::Result<()> {
    let (mut pieces, mut links) = programs()?;
    links.push((MOUNTED.into(), "/dev/null".into()));
    pieces.extend(Piece::if_there(Path::new(SETTINGS), Use::Program)?);
    for path in to.reads {
        pieces.push(Piece::of(path, Use::Program)?);
    }
    for path in to.writes {
        pieces.push(Piece::of(path, Use::Data)?);
    }
    let (id, capability, threads) = match to.who {
        Who::Nobody => (NOBODY, None, Some(THREADS_AT_MOST)),
        // Root's threads are all counted together.
        Who::Reader => (0, Some(Capability::ReadAll), None),
    };
    let any = ITSELF.into_iter().chain(FILES).chain(MORE);
    let calls: Vec<_> = any.map(Call::any).chain(RESTRICTED).collect();
    let surroundings = Surroundings {
        network: Arc::new(empty_network()?),
        room: Room::build(pieces, links)?,
        bounds: Bounds {
            threads,
            private: Some(MEMORY),
            file: Some(to.largest),
            processor: Some(PROCESSOR),
        },
        calls: Some(Filter::allowing(&calls)?),
        capability,
    };
    command
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8");
    let credentials = Credentials {
        uid: id,
        gid: id,
        groups: Vec::new(),
    };
    isolate(command, credentials, surroundings, Vec::new());
    Ok(())
}
