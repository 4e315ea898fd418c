//! Processes of machines: started, watched, found again, ended.
//!
//! A machine is known by its command line, which says whose it is. So whatever a daemon
//! that died left can be found, recorded or not.

use crate::link::failed;
use forkyard_sys_host::process::{Ending, PidFd};
use forkyard_types::VmId;
use forkyard_vmm::{Exit, ProcessId, VmmError};
use futures::future::BoxFuture;
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Child, ExitStatus},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// Time in which a process that was killed is gone.
const TO_DIE: Duration = Duration::from_secs(30);

/// A process, watched until it ends.
#[derive(Clone, Debug)]
pub struct Watched {
    id: ProcessId,
    handle: Arc<PidFd>,
    exit: watch::Receiver<Option<Option<ExitStatus>>>,
}

impl Watched {
    /// Watches a child; it is reaped as it ends. Within a runtime.
    pub fn child(child: Child) -> io::Result<Self> {
        let handle = PidFd::open(child.id())?;
        Self::watch(ProcessId::of(child.id())?, handle, Some(child))
    }

    /// Watches a process that another daemon started; none if it has ended. Within a runtime.
    pub fn stranger(id: ProcessId) -> io::Result<Option<Self>> {
        let handle = match PidFd::open(id.pid) {
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => return Ok(None),
            other => other?,
        };
        match ProcessId::of(id.pid) {
            Ok(now) if now == id => Ok(Some(Self::watch(id, handle, None)?)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn watch(id: ProcessId, handle: PidFd, mut child: Option<Child>) -> io::Result<Self> {
        let handle = Arc::new(handle);
        let ending = Ending::of(handle.clone())?;
        let (sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            if ending.wait().await.is_ok() {
                let status = child.as_mut().and_then(|child| child.wait().ok());
                sender.send_replace(Some(status));
            }
        });
        Ok(Self { id, handle, exit })
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    pub fn kill(&self) -> io::Result<()> {
        self.handle.kill()
    }

    /// Kills it and waits until it is gone.
    pub async fn end(&self) -> Result<(), VmmError> {
        self.kill().map_err(|e| failed("kill", "a machine", e))?;
        let gone = tokio::time::timeout(TO_DIE, self.exited()).await;
        gone.map(drop).map_err(|_| VmmError::Timeout {
            what: "the end of a killed process",
            after: TO_DIE,
        })
    }

    pub fn exited(&self) -> BoxFuture<'static, Exit> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.map(|exit| *exit);
            match ended {
                Ok(status) => Exit {
                    status: status.flatten(),
                    stderr: String::new(),
                },
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// Finds the machines of an engine by its home: their VMs and processes.
pub fn of_home(home: &Path) -> io::Result<Vec<(VmId, u32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that ends meanwhile is none.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let mut words = line.split(|byte| *byte == 0).skip(1);
        let (Some(whose), Some(vm)) = (words.next(), words.next()) else {
            continue;
        };
        if OsStr::from_bytes(whose) != home.as_os_str() {
            continue;
        }
        if let Some(vm) = std::str::from_utf8(vm).ok().and_then(|vm| vm.parse().ok()) {
            found.push((vm, pid));
        }
    }
    Ok(found)
}
