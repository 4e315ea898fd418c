//! Which of its slices a QEMU writes to, and how it moves on to the next.
//!
//! Slices are numbered as they are opened and never renumbered, so that the
//! active one is always newer than those frozen below it.

use crate::{
    Overlay, VmmError, argv,
    link::Link,
    qmp::{BlockCommit, BlockDevice, BlockdevAdd, QueryBlock, QueryJobs, QueryNamedBlockNodes},
};
use futures::FutureExt;
use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

/// What is known of a machine's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// There is none.
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
    pub(crate) fn fresh(file: Option<&Path>) -> Self {
        match file {
            None => Self::Absent,
            Some(_) => Self::Known {
                active: argv::FIRST_SLICE,
                next: argv::FIRST_SLICE + 1,
            },
        }
    }

    /// The disk as QEMU has it. Cancel-safe.
    pub(crate) async fn survey(link: &Link) -> Result<Self, VmmError> {
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

    /// Copies slices into the one below them, until it is done or is to be given
    /// up. If cancelled, it goes on.
    pub(crate) async fn fold(
        &mut self,
        link: &Link,
        (top, base): (&Path, &Path),
        give_up: impl Future<Output = ()>,
    ) -> Result<(), VmmError> {
        const JOB: &str = "fold";
        const LOOK: Duration = Duration::from_millis(5);
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
        let mut give_up = pin!(give_up.fuse());
        loop {
            let jobs = link.ask(QueryJobs {}).await?;
            let job = jobs.into_iter().find(|job| job.id == JOB);
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

/// The node of a slice that this QEMU was told to open.
async fn node_of(link: &Link, file: &Path) -> Result<String, VmmError> {
    let nodes = link.ask(QueryNamedBlockNodes { flat: true }).await?;
    nodes
        .iter()
        .filter(|node| node.file.as_deref() == Some(file))
        .filter_map(|node| argv::file_number(node.name.as_deref()?))
        .map(argv::slice_name)
        .next()
        .ok_or_else(|| VmmError::NoSlice { path: file.into() })
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
