//! Slice that a QEMU writes to, and how it moves on to the next.
//!
//! Slices are numbered as they are opened and never renumbered, so that the
//! active one is always newer than those frozen below it.

use crate::{
    Copied, Overlay, RootDisk, Told, VmmError, argv,
    link::Link,
    qmp::{
        BlockCommit, BlockDevice, BlockResize, BlockStream, BlockdevAdd, QueryBlock, QueryJobs,
        QueryNamedBlockNodes,
    },
};
use forkyard_types::ByteCount;
use futures::FutureExt;
use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

/// The one job there is at a time.
const JOB: &str = "fold";

/// Knowledge of a machine's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// There is none, or none of slices.
    Absent,
    /// Both numbers are right.
    Known {
        /// The slice written to.
        active: u64,
        /// The next to be opened.
        next: u64,
    },
    /// A freeze was begun and its outcome not heard: QEMU must be asked.
    Unknown,
}

impl Disk {
    /// The disk of a machine that was just started.
    pub(crate) fn fresh(disk: Option<&RootDisk>) -> Self {
        match disk {
            None | Some(RootDisk::Volume(_)) => Self::Absent,
            Some(RootDisk::Slice(_)) => Self::Known {
                active: argv::FIRST_SLICE,
                next: argv::FIRST_SLICE + 1,
            },
        }
    }

    /// The disk as QEMU has it. Cancel-safe.
    pub(crate) async fn survey(link: &Link) -> Result<Self, VmmError> {
        // Its beginner has gone; and while slices are copied into the active
        // one, the disk does not show which that is.
        end_job(link).await?;
        let disks = link.ask(QueryBlock {}).await?;
        let Some(active) = active(&disks) else {
            return Ok(Self::Absent);
        };
        let last = open_slices(link).await?.into_iter().max();
        let next = last.unwrap_or(active) + 1;
        Ok(Self::Known { active, next })
    }

    /// Closes overlays that were prepared and never used. Cancel-safe.
    pub(crate) async fn close_leftovers(self, link: &Link) -> Result<(), VmmError> {
        let Self::Known { active, .. } = self else {
            return Ok(());
        };
        for number in open_slices(link).await? {
            if number > active {
                close(link, number).await?;
            }
        }
        Ok(())
    }

    /// Opens an overlay. If cancelled, it may stay open unused.
    pub(crate) async fn prepare(&mut self, link: &Link, path: &Path) -> Result<Overlay, VmmError> {
        let (over, number) = self.numbers(link).await?;
        *self = Self::Known {
            active: over,
            next: number + 1,
        };
        let mut options = argv::slice(number, path)?;
        // Its backing is open already; opening it twice would be refused.
        options["backing"] = serde_json::Value::Null;
        link.ask(BlockdevAdd(options)).await?;
        Ok(Overlay {
            number,
            over,
            path: path.to_owned(),
        })
    }

    /// Makes an overlay the active slice. If cancelled, QEMU is asked before
    /// the next use.
    pub(crate) async fn freeze(&mut self, link: &Link, overlay: Overlay) -> Result<(), VmmError> {
        let (active, next) = self.numbers(link).await?;
        if overlay.over != active {
            let path = overlay.path;
            return Err(VmmError::StaleOverlay { path });
        }
        *self = Self::Unknown;
        link.ask(qapi::qmp::blockdev_snapshot(qapi::qmp::BlockdevSnapshot {
            node: argv::slice_name(active),
            overlay: argv::slice_name(overlay.number),
        }))
        .await?;
        let active = overlay.number;
        *self = Self::Known { active, next };
        Ok(())
    }

    /// Copies slices, the uppermost first, into the one below them, until it is
    /// done or is to be given up. If cancelled, it goes on.
    pub(crate) async fn fold(
        &mut self,
        link: &Link,
        (upper, base): (&[PathBuf], &Path),
        give_up: impl Future<Output = ()>,
    ) -> Result<(), VmmError> {
        let Some(top) = upper.first() else {
            return Ok(());
        };
        end_job(link).await?;
        let (active, _) = self.numbers(link).await?;
        let backing_file = argv::text(base)?.to_owned();
        link.ask(BlockCommit {
            job_id: JOB,
            device: argv::slice_name(active),
            top_node: node_of(link, top).await?,
            base_node: node_of(link, base).await?,
            backing_file,
            auto_dismiss: false,
        })
        .await?;
        see_through(link, give_up).await?;
        close_all(link, upper).await
    }

    /// Copies what lies over `base` into the active slice, until it is done or
    /// is to be given up. If cancelled, it goes on.
    pub(crate) async fn lift(
        &mut self,
        link: &Link,
        (upper, base): (&[PathBuf], &Path),
        give_up: impl Future<Output = ()>,
    ) -> Result<(), VmmError> {
        end_job(link).await?;
        let (active, _) = self.numbers(link).await?;
        let backing_file = argv::text(base)?.to_owned();
        link.ask(BlockStream {
            job_id: JOB,
            device: argv::slice_name(active),
            base_node: Some(node_of(link, base).await?),
            backing_file: Some(backing_file),
            speed: 0,
            auto_dismiss: false,
        })
        .await?;
        see_through(link, give_up).await?;
        close_all(link, upper).await
    }

    /// Copies all that lies below into the active slice, at that speed, until it is done or is to be given
    /// up. If cancelled, it goes on.
    pub(crate) async fn own(
        &mut self,
        link: &Link,
        (below, speed): (&[PathBuf], ByteCount),
        told: Told<'_>,
        give_up: impl Future<Output = ()>,
    ) -> Result<(), VmmError> {
        end_job(link).await?;
        let (active, _) = self.numbers(link).await?;
        link.ask(BlockStream {
            job_id: JOB,
            device: argv::slice_name(active),
            base_node: None,
            backing_file: None,
            speed: speed.0,
            auto_dismiss: false,
        })
        .await?;
        see_through_telling(link, told, give_up).await?;
        close_all(link, below).await
    }

    /// Makes the active slice larger. Cancel-safe.
    pub(crate) async fn grow(&mut self, link: &Link, size: ByteCount) -> Result<(), VmmError> {
        let (active, _) = self.numbers(link).await?;
        let node_name = argv::slice_name(active);
        let size = size.0;
        link.ask(BlockResize { node_name, size }).await.map(drop)
    }

    async fn numbers(&mut self, link: &Link) -> Result<(u64, u64), VmmError> {
        if *self == Self::Unknown {
            *self = Self::survey(link).await?;
        }
        match *self {
            Self::Known { active, next } => Ok((active, next)),
            Self::Absent | Self::Unknown => Err(VmmError::NoDisk),
        }
    }
}

/// The file of the slice that is written to. Cancel-safe.
pub(crate) async fn active_file(link: &Link) -> Result<Option<PathBuf>, VmmError> {
    let Some(active) = active(&link.ask(QueryBlock {}).await?) else {
        return Ok(None);
    };
    // Asked of the file below: an image itself is described by all its
    // backing, unless that is what its header says.
    let name = argv::file_name(active);
    let nodes = link.ask(QueryNamedBlockNodes { flat: true }).await?;
    let file = nodes
        .into_iter()
        .find(|node| node.name.as_deref() == Some(&*name))
        .and_then(|node| node.file);
    file.map(Some).ok_or(VmmError::NoDisk)
}

/// Sees the job to its end, and calls it off once it is to be given up.
async fn see_through(link: &Link, give_up: impl Future<Output = ()>) -> Result<(), VmmError> {
    see_through_telling(link, &|_| {}, give_up).await
}

/// Sees the job to its end as [`see_through`] does, and tells how far it is.
async fn see_through_telling(
    link: &Link,
    told: Told<'_>,
    give_up: impl Future<Output = ()>,
) -> Result<(), VmmError> {
    const LOOK: Duration = Duration::from_millis(5);
    let mut give_up = pin!(give_up.fuse());
    loop {
        let jobs = link.ask(QueryJobs {}).await?;
        let job = jobs.into_iter().find(|job| job.id == JOB);
        if let Some(job) = &job {
            told(Copied {
                copied: ByteCount(job.current_progress),
                total: ByteCount(job.total_progress),
            });
        }
        match job {
            Some(job) if job.status == "concluded" => {
                let id = JOB.to_owned();
                link.ask(qapi::qmp::job_dismiss { id }).await?;
                return match job.error {
                    None => Ok(()),
                    Some(said) => Err(VmmError::Fold { said }),
                };
            }
            Some(_) => tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut give_up => {
                    let id = JOB.to_owned();
                    match link.ask(qapi::qmp::job_cancel { id }).await {
                        // It may be done this very moment.
                        Ok(_) | Err(VmmError::Qmp { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            },
            None => {
                let said = "it is not known any more".to_owned();
                return Err(VmmError::Fold { said });
            }
        }
    }
}

/// Calls off a job that is not attended to any more, if there is one.
async fn end_job(link: &Link) -> Result<(), VmmError> {
    let jobs = link.ask(QueryJobs {}).await?;
    if !jobs.iter().any(|job| job.id == JOB) {
        return Ok(());
    }
    match see_through(link, async {}).await {
        Ok(()) | Err(VmmError::Fold { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The node of a slice: one that this QEMU was told to open, or that it found
/// below such a one.
async fn node_of(link: &Link, file: &Path) -> Result<String, VmmError> {
    let nodes = link.ask(QueryNamedBlockNodes { flat: true }).await?;
    let of_file: Vec<_> = nodes
        .into_iter()
        .filter(|node| node.file.as_deref() == Some(file))
        .collect();
    let told = of_file
        .iter()
        .filter_map(|node| argv::file_number(node.name.as_deref()?))
        .map(argv::slice_name)
        .next();
    let found = || {
        let mut slices = of_file.iter().filter(|node| node.driver == "qcow2");
        slices.find_map(|node| node.name.clone())
    };
    told.or_else(found)
        .ok_or_else(|| VmmError::NoSlice { path: file.into() })
}

/// Closes slices that were taken out of the disk, the uppermost first: those
/// this QEMU was told to open it keeps open otherwise, and their room taken.
async fn close_all(link: &Link, slices: &[PathBuf]) -> Result<(), VmmError> {
    let nodes = link.ask(QueryNamedBlockNodes { flat: true }).await?;
    for slice in slices {
        let of_file = nodes
            .iter()
            .filter(|node| node.file.as_ref() == Some(slice));
        let told = of_file.filter_map(|node| argv::file_number(node.name.as_deref()?));
        for number in told {
            // The disk is what it is to be all the same.
            if let Err(error) = close(link, number).await {
                tracing::debug!(
                    number,
                    error = &error as &dyn std::error::Error,
                    "slice kept open"
                );
            }
        }
    }
    Ok(())
}

/// Closes a slice nothing is written to.
pub(crate) async fn close(link: &Link, number: u64) -> Result<(), VmmError> {
    let node_name = argv::slice_name(number);
    link.ask(qapi::qmp::blockdev_del { node_name }).await?;
    Ok(())
}

async fn open_slices(link: &Link) -> Result<Vec<u64>, VmmError> {
    let nodes = link.ask(QueryNamedBlockNodes { flat: true }).await?;
    let names = nodes.iter().filter_map(|node| node.name.as_deref());
    Ok(names.filter_map(argv::slice_number).collect())
}

fn active(disks: &[BlockDevice]) -> Option<u64> {
    disks
        .iter()
        .filter_map(|disk| disk.inserted.as_ref()?.name.as_deref())
        .find_map(argv::slice_number)
}
