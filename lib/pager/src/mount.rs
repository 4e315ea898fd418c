//! Mounting and unmounting, as root and without a helper program.

use crate::filesystem::{Images, READ_AHEAD};
use crate::service::Service;
use crate::{Refusal, StartError};
use fuser::{Config, MountOption, Session, SessionACL};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, statfs};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Mounts that may lie over each other at one point, each left by a dead pager.
const MAX_DEAD: usize = 16;
/// Threads that answer the kernel: enough to keep all cores of a small host
/// busy, few enough that their buffers are no burden.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Mounts the file system at `point`. The session does nothing until run.
pub(crate) fn mount(point: &Path, service: Arc<Service>) -> Result<Session<Images>, StartError> {
    detach_dead(point)?;
    let failed = |source| StartError::Mount {
        mount: point.into(),
        source,
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("forkyard".into()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.acl = SessionACL::All;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.clamp(*THREADS.start(), *THREADS.end()));
    config.clone_fd = true;
    let session = Session::new(Images(Arc::clone(&service)), point, &config).map_err(failed)?;
    service.mounted(session.notifier());
    Ok(session)
}

/// Takes away what pagers that died have left at `point`.
fn detach_dead(point: &Path) -> Result<(), StartError> {
    let failed = |errno: Errno| StartError::Mount {
        mount: point.into(),
        source: errno.into(),
    };
    for _ in 0..MAX_DEAD {
        // Always asks the file system itself, where `stat` may be answered by
        // the kernel for one that is dead.
        match statfs(point) {
            Ok(found) if found.filesystem_type() == FUSE_SUPER_MAGIC => {
                return Err(StartError::MountInUse {
                    mount: point.into(),
                });
            }
            Ok(_) => return Ok(()),
            Err(Errno::ENOTCONN | Errno::ECONNABORTED) => {
                tracing::warn!(mount = %point.display(), "detaching what a dead pager left");
                umount2(point, MntFlags::MNT_DETACH).map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::ELOOP))
}

/// Allows the kernel to read [`READ_AHEAD`] at once, which it does not offer
/// when mounting. The session must be running. Without it the pager is slower,
/// not wrong.
pub(crate) fn raise_read_ahead(point: &Path) {
    let set = || -> io::Result<()> {
        let device = fs::metadata(point)?.dev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(file, (READ_AHEAD / 1024).to_string())
    };
    if let Err(error) = set() {
        tracing::warn!(%error, "cannot raise the kernel's read-ahead");
    }
}

/// Unmounts if nobody uses a file; the session ends then.
pub(crate) fn unmount_unused(point: &Path, service: &Service) -> Result<(), Refusal> {
    // The kernel decides: it knows of files opened this instant.
    match umount2(point, MntFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::EBUSY) => Err(Refusal::InUse {
            files: service.catalog().files(),
        }),
        Err(errno) => Err(Refusal::Host {
            why: errno.desc().to_owned(),
        }),
    }
}

/// Takes the mount out of sight; the session ends with its last file.
pub(crate) fn detach(point: &Path) -> nix::Result<()> {
    umount2(point, MntFlags::MNT_DETACH)
}

/// Cuts all users off, and unmounts; the session ends at once.
pub(crate) fn abort(point: &Path) -> nix::Result<()> {
    // Aborts the connection even where it says that the mount is busy.
    match umount2(point, MntFlags::MNT_FORCE) {
        Ok(()) => Ok(()),
        Err(_) => detach(point),
    }
}
