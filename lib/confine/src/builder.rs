//! Builders of container images, which run programs that others have written.
//!
//! Such a program is root of users that nothing else uses, in a jail with its own folder, what it takes to
//! run, and the host's network. It may make
//! every system call: it has to mount. The wall is the user namespace.

use crate::{NAMES, Network};
use forkyard_sys_host::{
    contain::{Contained, UserNamespace, contain},
    jail::{Jail, JailPiece, Use, programs},
    process::{Bounds, Lifespan},
};
use forkyard_types::BUILD_IDS;
use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

/// Memory that each of its processes may have to itself.
const MEMORY: u64 = 16 << 30;
/// Processes and threads of all builds together.
const THREADS: u64 = 8192;
/// Seconds of processor time of each process.
const PROCESSOR: u64 = 6 * 3600;
/// Devices without secrets, beside those of every jail.
const DEVICES: [&str; 3] = ["/dev/full", "/dev/random", "/dev/tty"];

/// Confinement of a builder.
#[derive(Clone, Copy, Debug)]
pub struct Building<'a> {
    /// Folder of its own, where programs can be executed. It and what is in it belongs to
    /// the first of [`BUILD_IDS`].
    pub folder: &'a Path,
    /// File in it that lists the users that its programs know of, as /etc/passwd does.
    pub users: &'a Path,
    /// Files that it reads.
    pub reads: &'a [&'a Path],
    /// Bytes of each file that it writes at most.
    pub largest: u64,
    /// Network that it has.
    pub network: Network,
}

/// Has `command` run so, with no other variables, until the thread that starts it ends. To be
/// started by [`spawn_first_and_stay`](forkyard_sys_host::process::spawn_first_and_stay). Takes
/// root. Blocks for some milliseconds.
pub fn confine_builder(command: &mut Command, to: Building<'_>) -> io::Result<()> {
    let (mut pieces, mut links) = programs()?;
    for path in DEVICES {
        pieces.extend(JailPiece::if_there(Path::new(path), Use::Device)?);
    }
    let files = match to.network {
        Network::None => &[][..],
        Network::Host => &NAMES[..],
    };
    for path in files {
        pieces.extend(JailPiece::if_there(Path::new(path), Use::Program)?);
    }
    for path in to.reads {
        pieces.push(JailPiece::of(path, Use::Program)?);
    }
    pieces.push(JailPiece::of(to.folder, Use::Tree)?);
    let descriptors = [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ];
    links.extend(descriptors.map(|(at, to)| (PathBuf::from(at), PathBuf::from(to))));
    links.push((PathBuf::from("/etc/passwd"), to.users.to_owned()));
    let jail = Jail::build(pieces, links)?;
    let contained = Contained {
        users: UserNamespace::mapped(&BUILD_IDS, &jail)?,
        jail,
        bounds: Bounds {
            threads: Some(THREADS),
            private: Some(MEMORY),
            file: Some(to.largest),
            processor: Some(PROCESSOR),
        },
        ends: Lifespan::WithStarter,
    };
    command
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8");
    contain(command, contained);
    Ok(())
}
