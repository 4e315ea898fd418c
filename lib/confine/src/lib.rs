//! Programs that parse what others have made, kept to just that.
//!
//! Such a program has a jail with the files that it is given and what it takes to run, no
//! network unless fetching is its work, only the system calls that it needs, and limits on
//! memory, on the files it writes and on processor time. One that is taken over by what it
//! reads can spoil what it was to make, and nothing else.

mod builder;

pub use builder::{Building, confine_builder};

use forkyard_sys_host::{
    filter::{Call, FILES, Filter, ITSELF, RESTRICTED},
    jail::{Jail, JailPiece, Use, programs},
    process::{Bounds, Capability, Credentials, Surroundings, empty_network, isolate},
};
use forkyard_types::{OUTSIDE_FETCHER_UID, VM_UIDS};
use nix::libc::{self, c_long};
use std::{fs::File, io, path::Path, process::Command, sync::Arc};

pub use forkyard_sys_host::process::Lifespan;

/// The user of programs that need no rights; of no VM, and of no other program.
pub const NOBODY: u32 = VM_UIDS.start - 1;
/// Memory that it may have to itself, beside what it maps without using it.
const MEMORY: u64 = 2 << 30;
const THREADS_AT_MOST: u64 = 64;
/// The user of programs that fetch for the host's root: theirs are many threads, and counted apart.
const FETCHER: u32 = NOBODY - 1;
const THREADS_OF_FETCHERS: u64 = 2048;
/// Seconds of processor time: enough for a disk of 1 TiB.
const PROCESSOR: u64 = 2 * 3600;
/// Configuration file of mke2fs.
const SETTINGS: &str = "/etc/mke2fs.conf";
/// File it reads to learn whether a disk is mounted: nothing is.
const MOUNTED: &str = "/etc/mtab";

/// User that a program runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// [`NOBODY`].
    Nobody,
    /// A user of programs that fetch.
    Fetcher(FetchReach),
    /// Root, with the right to read what any user owns and no other.
    Reader,
    /// Root, which owns the files that it is given, and no right beyond that, but to reach all of its jail
    /// if it has no network: it carries files to and from stores.
    Carrier,
    /// Root, with the rights to make files of any user and to read and change them, and no other.
    Unpacker,
}

/// Places that a program that fetches is let to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchReach {
    /// All that the host reaches.
    Anywhere,
    /// All of that without the host itself, by whatever name, address or redirection it is found.
    Outside,
}

impl FetchReach {
    /// The user that such a program runs as.
    pub fn user(self) -> u32 {
        match self {
            Self::Anywhere => FETCHER,
            Self::Outside => OUTSIDE_FETCHER_UID,
        }
    }
}

/// Rights and resources that a program is left with.
#[derive(Clone, Copy, Debug)]
pub struct Confinement<'a> {
    /// User that it runs as.
    pub who: Who,
    /// The files or trees that it reads, and cannot change.
    pub reads: &'a [&'a Path],
    /// The files that it writes, or the trees that it makes.
    pub writes: &'a [&'a Path],
    /// Bytes of each of these at most.
    pub largest: u64,
    /// Network that it has.
    pub network: Network,
    /// Event that ends it at the latest.
    pub ends: Lifespan,
}

/// Network of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// An empty one.
    None,
    /// The host's, with its names and certificates.
    Host,
}

/// Files by which a program finds hosts and trusts them, and the host's settings for registries of
/// container images.
const NAMES: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/containers",
    "/etc/docker/certs.d",
];

/// Calls of programs that fetch, beside those of the others: sockets, and folders of their own.
const FETCHING: [c_long; 27] = [
    libc::SYS_bind,
    libc::SYS_capget,
    libc::SYS_chmod,
    libc::SYS_connect,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_flock,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_mincore,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setitimer,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];
/// Sockets of the network alone: none of the host's own, by path or by name.
const SOCKETS: Call = Call::only(
    libc::SYS_socket,
    0,
    u64::MAX,
    &[
        libc::AF_INET as u64,
        libc::AF_INET6 as u64,
        libc::AF_NETLINK as u64,
    ],
);

/// Two ends of a pipe within the program: what its runtime has signals be told by.
const PAIR: Call = Call::only(libc::SYS_socketpair, 0, u64::MAX, &[libc::AF_UNIX as u64]);

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
/// Rights of a program that makes a tree of files of many users.
const UNPACKING: [Capability; 5] = [
    Capability::ChangeOwners,
    Capability::ReachAll,
    Capability::OwnAll,
    Capability::KeepSetId,
    Capability::GiveCapabilities,
];
/// Calls of such a program, beside those of the others.
const MAKING: [c_long; 19] = [
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fsetxattr,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_rmdir,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// Calls of a program that carries files, beside those of the others: it makes and replaces files in a store
/// that is a folder.
const CARRYING: [c_long; 11] = [
    libc::SYS_fchmod,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Has `command` run so, found in its jail, with no other variables. To be started by
/// [`spawn_first`](forkyard_sys_host::process::spawn_first) if it is to see no other
/// process. Takes root. Blocks for some milliseconds.
pub fn confine(command: &mut Command, to: Confinement<'_>) -> io::Result<()> {
    let (mut pieces, mut links) = programs()?;
    links.push((MOUNTED.into(), "/dev/null".into()));
    pieces.extend(JailPiece::if_there(Path::new(SETTINGS), Use::Program)?);
    for path in to.reads {
        pieces.push(JailPiece::of(path, Use::Program)?);
    }
    for path in to.writes {
        pieces.push(JailPiece::of(path, Use::Data)?);
    }
    if to.network == Network::Host {
        for path in NAMES {
            pieces.extend(JailPiece::if_there(Path::new(path), Use::Program)?);
        }
    }
    let (id, rights, threads): (_, &[_], _) = match to.who {
        Who::Nobody => (NOBODY, &[], Some(THREADS_AT_MOST)),
        Who::Fetcher(reach) => (reach.user(), &[], Some(THREADS_OF_FETCHERS)),
        // Root's threads are all counted together.
        Who::Reader => (0, &[Capability::ReadAll], None),
        Who::Carrier => match to.network {
            Network::Host => (0, &[], None),
            // A store that is a folder may be another user's.
            Network::None => (0, &[Capability::ReachAll], None),
        },
        Who::Unpacker => (0, &UNPACKING, None),
    };
    let any = ITSELF.into_iter().chain(FILES).chain(MORE);
    let mut calls: Vec<_> = any.map(Call::any).chain(RESTRICTED).collect();
    if to.who == Who::Unpacker {
        calls.extend(MAKING.map(Call::any));
    }
    if to.who == Who::Carrier {
        calls.extend(CARRYING.map(Call::any));
        calls.push(PAIR);
    }
    let network = match to.network {
        Network::None => empty_network()?,
        Network::Host => {
            calls.extend(FETCHING.map(Call::any));
            calls.push(SOCKETS);
            File::open("/proc/thread-self/ns/net")?.into()
        }
    };
    let surroundings = Surroundings {
        network: Arc::new(network),
        jail: Jail::build(pieces, links)?,
        bounds: Bounds {
            threads,
            private: Some(MEMORY),
            file: Some(to.largest),
            processor: Some(PROCESSOR),
        },
        calls: Some(Filter::allowing(&calls)?),
        capabilities: rights.to_vec(),
        ends: to.ends,
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
