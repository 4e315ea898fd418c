//! Mounting and unmounting, as root and without a helper program.

use crate::filesystem::{Images, READ_AHEAD};
use crate::service::Service;
use crate::{PagerRefusal, StartError};
use forkyard_sys_host::fuse;
use fuser::{Config, Session, SessionACL};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, statfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Device that opens connections to the kernel.
const DEVICE: &str = "/dev/fuse";
/// Version of the protocol in which a connection that is taken over goes on.
const VERSION: (u32, u32) = (7, 40);
/// Mounts that may lie over each other at one point, each left by a dead pager.
const MAX_DEAD: usize = 16;
/// Threads that answer the kernel: enough to keep all cores of a small host
/// busy, few enough that their buffers are no burden.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// A file system that is mounted and has a session to be run.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub session: Session<Images>,
    /// Another descriptor of the connection to the kernel.
    pub kernel: File,
}

/// Mounts the file system at `point`.
pub(crate) fn mount(point: &Path, service: &Arc<Service>) -> Result<Mounted, StartError> {
    detach_dead(point)?;
    let failed = |source| StartError::Mount {
        mount: point.into(),
        source,
    };
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = device.map_err(failed)?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
    nix::mount::mount(
        Some("forkyard"),
        point,
        Some("fuse"),
        flags,
        Some(options.as_str()),
    )
    .map_err(|errno| failed(errno.into()))?;
    let kernel = device.try_clone().map_err(failed)?;
    let images = Images(Arc::clone(service));
    let session = Session::from_fd(images, device.into(), SessionACL::All, config());
    let session = session.map_err(failed)?;
    service.mounted(session.notifier());
    Ok(Mounted { session, kernel })
}

/// Goes on with a file system that another pager has mounted. What that one had
/// read and not answered is sent again.
pub(crate) fn adopt(kernel: OwnedFd, service: &Arc<Service>) -> io::Result<Mounted> {
    // The kernel has had its handshake; the library has not.
    let (device, _kernel) = fuse::handshake(VERSION, READ_AHEAD)?;
    let images = Images(Arc::clone(service));
    let session = Session::from_fd(images, device, SessionACL::All, config())?;
    fuse::redirect(&session, &kernel)?;
    service.mounted(session.notifier());
    let kernel = File::from(kernel);
    if let Err(error) = fuse::resend(&kernel) {
        tracing::error!(%error, "requests under way are lost: the kernel cannot send them again");
    }
    Ok(Mounted { session, kernel })
}

fn config() -> Config {
    let mut config = Config::default();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.clamp(*THREADS.start(), *THREADS.end()));
    // All threads share one descriptor: what has been read from one of a
    // thread's own would be lost with the thread.
    config.clone_fd = false;
    config
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

/// Tells whether a pager's file system is mounted there and answers.
pub fn is_ours(point: &Path) -> bool {
    statfs(point).is_ok_and(|found| found.filesystem_type() == FUSE_SUPER_MAGIC)
}

/// Unmounts if no file is in use; the session ends then.
pub(crate) fn unmount_unused(point: &Path, service: &Service) -> Result<(), PagerRefusal> {
    // The kernel decides: it knows of files opened this instant.
    match umount2(point, MntFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::EBUSY) => Err(PagerRefusal::InUse {
            files: service.catalog().files(),
        }),
        Err(errno) => Err(PagerRefusal::Host {
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
