//! All there is of a QEMU on the host: process, cgroup, sockets. Ends them
//! together.

use crate::{Exit, VmmError, cgroup::Cgroup, files, process::Process};
use std::{fs, io, path::PathBuf, time::Duration};

/// Bound on the end of a process that was killed, and on each further step.
const TO_DIE: Duration = Duration::from_secs(30);

/// Parts of a QEMU that exist, or may: each part may have gone already.
#[derive(Clone, Debug)]
pub(crate) struct QemuResources {
    /// None if it is known to have ended.
    pub(crate) process: Option<Process>,
    pub(crate) cgroup: Cgroup,
    pub(crate) dir: PathBuf,
}

impl QemuResources {
    /// Gives a process that was told to end the time to do so, then does as
    /// [`QemuResources::end`]. Cancel-safe: call it again.
    pub(crate) async fn end_by_itself(&self) -> Result<(), VmmError> {
        if let Some(process) = &self.process
            && gone(process.exited()).await.is_err()
        {
            tracing::warn!(dir = %self.dir.display(), "QEMU did not quit and is killed");
        }
        self.end().await
    }

    /// Kills the process and removes the rest. Cancel-safe: call it again.
    pub(crate) async fn end(&self) -> Result<(), VmmError> {
        self.cgroup.kill()?;
        if let Some(process) = &self.process {
            process
                .kill()
                .map_err(VmmError::io("kill process of", &self.dir))?;
            gone(process.exited()).await?;
        }
        self.cgroup.remove(TO_DIE).await?;
        let ends = [
            files::QMP,
            files::AGENT,
            files::CONSOLE_SOCKET,
            files::LOG_PIPE,
        ];
        for end in ends {
            let path = self.dir.join(end);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(VmmError::io("remove", path)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

async fn gone(exit: impl Future<Output = Exit>) -> Result<Exit, VmmError> {
    tokio::time::timeout(TO_DIE, exit)
        .await
        .map_err(|_| VmmError::Timeout {
            what: "the end of a killed process",
            after: TO_DIE,
        })
}

/// A QEMU that ends with this value, unless it is released.
#[derive(Debug)]
pub(crate) struct KillOnDrop {
    resources: QemuResources,
    held: Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Yes,
    No,
}

impl KillOnDrop {
    pub(crate) fn new(resources: QemuResources) -> Self {
        let held = Held::Yes;
        Self { resources, held }
    }

    /// Lets it live on by itself.
    pub(crate) fn release(mut self) -> QemuResources {
        self.held = Held::No;
        self.resources.clone()
    }

    /// Ends it because of an error, and gives that back.
    pub(crate) async fn end_after(self, cause: VmmError) -> VmmError {
        let dir = self.resources.dir.clone();
        if let Err(error) = self.end().await {
            tracing::error!(%error, dir = %dir.display(), "QEMU not cleaned up");
        }
        cause
    }

    /// Ends it now. If cancelled, it ends in the background.
    pub(crate) async fn end(self) -> Result<(), VmmError> {
        self.resources.end().await?;
        // What has ended needs no second end.
        self.release();
        Ok(())
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.held == Held::No {
            return;
        }
        let resources = self.resources.clone();
        if let Some(process) = &resources.process
            && let Err(error) = process.kill()
        {
            tracing::error!(%error, "cannot kill a QEMU that is not wanted");
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    if let Err(error) = resources.end().await {
                        tracing::error!(%error, dir = %resources.dir.display(), "QEMU not cleaned up");
                    }
                });
            }
            // The daemon is on its way out; the next one finds the record.
            Err(_) => tracing::warn!(dir = %resources.dir.display(), "QEMU not cleaned up"),
        }
    }
}
