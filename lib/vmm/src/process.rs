//! A QEMU process: which one it is, and how it ended.
//!
//! It may be our child, or one that an earlier daemon started. Either is held
//! by descriptor, so that its number may pass to another without harm.

use crate::qemu_log::QemuLog;
use forkyard_sys_host::process::{Ending, PidFd};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs, io,
    process::{Child, ExitStatus},
    sync::Arc,
};
use tokio::sync::watch;

/// One process, told from every other that has or will have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Time of its start, in the kernel's clock ticks since the host booted.
    pub start: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (started at tick {})", self.pid, self.start)
    }
}

impl ProcessId {
    /// The process that has this number now; `NotFound` if none has.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start = parse_start(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, start })
    }
}

/// Field 22 of /proc/PID/stat. The second, the name of the program, may hold
/// blanks and parentheses.
fn parse_start(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(19)?.parse().ok()
}

/// End of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit status; unknown of a process that was not our child.
    pub status: Option<ExitStatus>,
    /// The last it wrote to its standard error.
    pub stderr: String,
}

/// A process, watched until it ends. Dropping this lets it run.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    id: ProcessId,
    handle: Arc<PidFd>,
    exit: watch::Receiver<Option<Exit>>,
}

/// A process that keeps its number for us, and the news of its end.
struct Held {
    handle: Arc<PidFd>,
    ending: Ending,
}

impl Held {
    fn of(handle: PidFd) -> io::Result<Self> {
        let handle = Arc::new(handle);
        let ending = Ending::of(handle.clone())?;
        Ok(Self { handle, ending })
    }
}

impl Process {
    /// Watches a child; it is reaped as it ends. A child that cannot be
    /// watched is killed.
    pub(crate) fn of_child(mut child: Child, words: QemuLog) -> io::Result<Self> {
        let held = || {
            // An unreaped child keeps its number.
            let handle = PidFd::open(child.id())?;
            Ok((ProcessId::of(child.id())?, Held::of(handle)?))
        };
        match held() {
            Ok((id, held)) => Ok(Self::watch(id, held, Some(child), words)),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Watches a process that another started, and listens to it; none if it has
    /// ended.
    pub(crate) fn of_stranger(
        id: ProcessId,
        listen: impl FnOnce() -> QemuLog,
    ) -> io::Result<Option<Self>> {
        let handle = match PidFd::open(id.pid) {
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => return Ok(None),
            other => other?,
        };
        // In this order: if the process meant is alive now, it was when its
        // number was looked up.
        match ProcessId::of(id.pid) {
            Ok(now) if now == id => {
                let held = Held::of(handle)?;
                Ok(Some(Self::watch(id, held, None, listen())))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn watch(id: ProcessId, held: Held, mut child: Option<Child>, words: QemuLog) -> Self {
        let Held { handle, ending } = held;
        let (sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            if let Err(error) = ending.wait().await {
                tracing::error!(%id, %error, "cannot wait for a process");
                return;
            }
            // The end has come: waiting for the status does not block.
            let status = child.as_mut().and_then(|child| child.wait().ok());
            let stderr = words.last().await;
            sender.send_replace(Some(Exit { status, stderr }));
        });
        Self { id, handle, exit }
    }

    pub(crate) fn id(&self) -> ProcessId {
        self.id
    }

    /// Asks the kernel to end it; no error if it has ended.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.handle.kill()
    }

    /// Resolves once it has ended. Cancel-safe.
    pub(crate) fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            let ended = exit
                .wait_for(Option::is_some)
                .await
                .map(|exit| exit.clone());
            match ended {
                Ok(exit) => exit.unwrap_or_default(),
                // The watcher is gone without a word: it could not wait, or
                // the runtime is being shut down. Claim nothing.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::process::ExitStatusExt,
        path::Path,
        process::{Command, Stdio},
    };

    fn child(script: &str, dir: &Path) -> (Child, QemuLog) {
        let (stderr, words) = QemuLog::lay(dir).expect("pipe");
        let child = Command::new("sh")
            .args(["-c", script])
            .stderr(stderr)
            .stdin(Stdio::null())
            .spawn();
        (child.expect("sh"), words)
    }

    #[test]
    fn the_start_is_found_behind_a_name_with_blanks_and_parentheses() {
        let stat = "17 (a) R (b) S 1 17 17 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 8675309 99";
        assert_eq!(parse_start(stat), Some(8_675_309));
        assert_eq!(parse_start("17 (cut short) S 1 17"), None);
    }

    #[tokio::test]
    async fn a_child_that_ends_leaves_its_status_and_last_words() {
        let dir = tempfile::tempdir().expect("dir");
        let (child, words) = child("echo oops >&2; exit 3", dir.path());
        let process = Process::of_child(child, words).expect("child");
        let exit = process.exited().await;
        assert_eq!(exit.status, Some(ExitStatus::from_raw(3 << 8)));
        assert_eq!(exit.stderr, "oops");
    }

    #[tokio::test]
    async fn a_stranger_is_watched_and_killed() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut child, words) = child("exec sleep 600", dir.path());
        let id = ProcessId::of(child.id()).expect("alive");
        let found = Process::of_stranger(id, || words).expect("host");
        let process = found.expect("alive");
        process.kill().expect("killed");
        assert_eq!(process.exited().await.status, None);
        child.wait().expect("reaped");
    }

    #[tokio::test]
    async fn a_number_that_changed_hands_is_not_the_process_meant() {
        let own = ProcessId::of(std::process::id()).expect("alive");
        let former = ProcessId {
            start: own.start - 1,
            ..own
        };
        let listen = || panic!("nobody is listened to");
        let found = Process::of_stranger(former, listen).expect("host");
        assert!(found.is_none());
    }
}
