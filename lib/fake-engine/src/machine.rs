//! Machines and shells, as the engine's user has them.

use crate::{
    control::{EngineOrder, Reply},
    engine::remove_sockets,
    link::{Link, failed},
    processes::Watched,
};
use async_trait::async_trait;
use forkyard_sys_host::userfault::Userfault;
use forkyard_types::ByteCount;
use forkyard_vmm::{
    Cause, Console, Copied, Exit, Machine, MachineRecord, Overlay, Region, RunState, SchedBoost,
    Shell, Told, VmmError, files,
};
use futures::future::{BoxFuture, Either, select};
use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

/// A machine that runs, or did.
#[derive(Debug)]
pub struct FakeMachine {
    link: Link,
    record: MachineRecord,
    agent: PathBuf,
    console: Console,
}

impl FakeMachine {
    pub(crate) fn new(link: Link, record: MachineRecord) -> Self {
        Self {
            agent: record.dir.join(files::AGENT),
            console: Console::attach(&record.dir),
            link,
            record,
        }
    }

    /// Runs `qemu-img`, until it is done or is to be given up.
    async fn qemu_img<I>(&self, words: I, give_up: BoxFuture<'_, ()>) -> Result<(), VmmError>
    where
        I: IntoIterator<Item: AsRef<std::ffi::OsStr>> + Send,
    {
        let mut command = Command::new("qemu-img");
        command.args(words).kill_on_drop(true);
        let output = command.stdin(Stdio::null()).output();
        let output = match select(Box::pin(output), give_up).await {
            Either::Left((output, _)) => output.map_err(|e| failed("run", "qemu-img", e))?,
            Either::Right(_) => {
                let said = "given up".to_owned();
                return Err(VmmError::Fold { said });
            }
        };
        match output.status.success() {
            true => Ok(()),
            false => Err(VmmError::Fold {
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    }
}

/// The error of an answer that is none.
fn nonsense(command: &'static str) -> VmmError {
    VmmError::Answer {
        command,
        text: "the answer to something else".to_owned(),
    }
}

#[async_trait]
impl Machine for FakeMachine {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    fn agent_socket(&self) -> &Path {
        &self.agent
    }

    fn console(&self) -> &Console {
        &self.console
    }

    fn precedence(&self) -> Option<SchedBoost> {
        None
    }

    async fn stop(&self) -> Result<(), VmmError> {
        self.link.ask("stop", EngineOrder::Stop).await.map(drop)
    }

    async fn cont(&self) -> Result<(), VmmError> {
        self.link.ask("cont", EngineOrder::Cont).await.map(drop)
    }

    async fn run_state(&self) -> Result<RunState, VmmError> {
        let Reply::State(state) = self.link.ask("run_state", EngineOrder::State).await? else {
            return Err(nonsense("run_state"));
        };
        Ok(state)
    }

    async fn active_slice(&self) -> Result<Option<PathBuf>, VmmError> {
        let Reply::Slice(slice) = self.link.ask("active_slice", EngineOrder::Slice).await? else {
            return Err(nonsense("active_slice"));
        };
        Ok(slice)
    }

    async fn prepare_overlay(&self, path: &Path) -> Result<Overlay, VmmError> {
        let order = EngineOrder::Prepare(path.to_owned());
        let Reply::Opened(number, over) = self.link.ask("prepare_overlay", order).await? else {
            return Err(nonsense("prepare_overlay"));
        };
        Ok(Overlay {
            number,
            over,
            path: path.to_owned(),
        })
    }

    async fn freeze_disk(&self, overlay: Overlay) -> Result<(), VmmError> {
        let Overlay { number, over, path } = overlay;
        let order = EngineOrder::Freeze { number, over };
        match self.link.ask("freeze_disk", order).await {
            Err(VmmError::StaleOverlay { .. }) => Err(VmmError::StaleOverlay { path }),
            other => other.map(drop),
        }
    }

    async fn fold_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        let (Some(top), Some(active)) = (upper.first(), self.active_slice().await?) else {
            return Ok(());
        };
        let commit = ["commit", "-q", "-d", "-b"].map(PathBuf::from);
        let words = commit.iter().map(PathBuf::as_path).chain([base, top]);
        self.qemu_img(words, give_up).await?;
        let rebase = ["rebase", "-u", "-F", "qcow2", "-b"].map(PathBuf::from);
        let words = rebase.iter().map(PathBuf::as_path).chain([base, &active]);
        self.qemu_img(words, Box::pin(std::future::pending())).await
    }

    async fn lift_disk(
        &self,
        _upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        let Some(active) = self.active_slice().await? else {
            return Err(VmmError::NoDisk);
        };
        let rebase = ["rebase", "-F", "qcow2", "-b"].map(PathBuf::from);
        let words = rebase.iter().map(PathBuf::as_path).chain([base, &active]);
        self.qemu_img(words, give_up).await
    }

    async fn own_disk(
        &self,
        _below: &[PathBuf],
        _speed: ByteCount,
        told: Told<'_>,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        let Some(active) = self.active_slice().await? else {
            return Err(VmmError::NoDisk);
        };
        // Asked of the machine as well, so that it can fail at this.
        self.link.ask("own_disk", EngineOrder::State).await?;
        told(Copied::default());
        let rebase = ["rebase", "-b", ""].map(PathBuf::from);
        let words = rebase.iter().map(PathBuf::as_path).chain([&*active]);
        self.qemu_img(words, give_up).await
    }

    async fn discard_overlay(&self, overlay: Overlay) -> Result<(), VmmError> {
        let order = EngineOrder::Close(overlay.number);
        self.link.ask("discard_overlay", order).await.map(drop)
    }

    async fn save_descriptor(&self) -> Result<Vec<u8>, VmmError> {
        let Reply::Saved(state) = self.link.ask("save_descriptor", EngineOrder::Save).await? else {
            return Err(nonsense("save_descriptor"));
        };
        Ok(state)
    }

    async fn add_vcpus(&self, _total: NonZeroU8) -> Result<(), VmmError> {
        // It has none: its guest is a process.
        Ok(())
    }

    async fn grow_disk(&self, _size: ByteCount) -> Result<(), VmmError> {
        // Its guest reads none.
        Ok(())
    }

    async fn ram(&self) -> Result<Region, VmmError> {
        let Reply::Ram(hva) = self.link.ask("ram", EngineOrder::Ram).await? else {
            return Err(nonsense("ram"));
        };
        Ok(Region {
            hva,
            len: ByteCount(self.record.memory.0),
        })
    }

    fn write_log(&self) -> Option<Userfault> {
        None
    }

    async fn kill(&self) -> Result<(), VmmError> {
        self.link.process().end().await?;
        remove_sockets(&self.record.dir)
    }

    async fn quit(&self) -> Result<(), VmmError> {
        match self.link.ask("quit", EngineOrder::Quit).await {
            Ok(_) | Err(VmmError::Died { .. }) => {}
            Err(error) => return Err(error),
        }
        self.link.process().exited().await;
        remove_sockets(&self.record.dir)
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        self.link.stopped()
    }

    fn lost(&self) -> BoxFuture<'static, ()> {
        self.link.lost()
    }

    fn exited(&self) -> BoxFuture<'static, Exit> {
        self.link.process().exited()
    }

    fn cause(&self) -> BoxFuture<'static, Cause> {
        self.link.cause()
    }
}

/// A machine that waits for a state.
#[derive(Debug)]
pub struct FakeShell {
    machine: FakeMachine,
    kill_on_drop: KillOnDrop,
}

/// A process that ends with this value, unless it is released.
#[derive(Debug)]
struct KillOnDrop(Option<(Watched, PathBuf)>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some((process, dir)) = self.0.take() {
            let _ = process.kill();
            let _ = remove_sockets(&dir);
        }
    }
}

impl FakeShell {
    pub(crate) fn new(link: Link, record: MachineRecord) -> Self {
        let kill_on_drop = KillOnDrop(Some((link.process().clone(), record.dir.clone())));
        Self {
            machine: FakeMachine::new(link, record),
            kill_on_drop,
        }
    }
}

#[async_trait]
impl Shell for FakeShell {
    fn record(&self) -> &MachineRecord {
        &self.machine.record
    }

    async fn load(self: Box<Self>, descriptor: &[u8]) -> Result<Box<dyn Machine>, VmmError> {
        let Self {
            machine,
            mut kill_on_drop,
        } = *self;
        let order = EngineOrder::Load(descriptor.to_vec());
        match machine.link.ask("load", order).await {
            Ok(_) => {
                kill_on_drop.0 = None;
                Ok(Box::new(machine))
            }
            Err(error) => {
                machine.kill().await?;
                Err(error)
            }
        }
    }

    async fn kill(self: Box<Self>) -> Result<(), VmmError> {
        self.machine.kill().await
    }

    fn exited(&self) -> BoxFuture<'static, Exit> {
        self.machine.exited()
    }
}
