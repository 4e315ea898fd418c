//! A QEMU that runs.

use crate::{
    Cause, Console, Exit, Machine, MachineRecord, Overlay, Region, RunState, SchedBoost, Told,
    VmmError,
    console::blocking,
    disk::{self, Disk},
    files, growth,
    inherited::StateFile,
    jail,
    link::Link,
    region,
    resources::QemuResources,
};
use async_trait::async_trait;
use forkyard_sys_host::userfault::Userfault;
use forkyard_types::ByteCount;
use futures::{FutureExt as _, future::BoxFuture};
use qapi::qmp;
use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tokio::sync::Mutex;

/// A machine on QEMU.
#[derive(Debug)]
pub struct QemuMachine {
    record: MachineRecord,
    link: Link,
    resources: QemuResources,
    agent: PathBuf,
    console: Console,
    ram: OnceLock<Region>,
    // Both are held for the length of one or two commands; QEMU carries out
    // one command at a time anyway.
    disk: Mutex<Disk>,
    state_out: Mutex<StateFile>,
}

impl QemuMachine {
    pub(crate) fn new(
        record: MachineRecord,
        link: Link,
        resources: QemuResources,
        state_out: StateFile,
        disk: Disk,
    ) -> Self {
        Self {
            agent: record.dir.join(files::AGENT),
            console: Console::attach(&record.dir),
            record,
            link,
            resources,
            ram: OnceLock::new(),
            disk: Mutex::new(disk),
            state_out: Mutex::new(state_out),
        }
    }

    /// Has QEMU's monitor for humans carry out a line, and gives its answer:
    /// for a look inside a machine. It reports failures in the answer.
    /// Cancel-safe, though the line may still be carried out.
    pub async fn monitor(&self, line: &str) -> Result<String, VmmError> {
        self.link.ask_human(line).await
    }

    /// Takes files out of QEMU's jail that it has closed. If that fails they
    /// stay, and take up space, for as long as QEMU lives.
    async fn hide(&self, files: Vec<PathBuf>) {
        let process = self.record.process;
        if let Err(error) = blocking(move || jail::remove(process, &files)).await {
            tracing::warn!(%process, error = &error as &dyn std::error::Error, "files stay with QEMU");
        }
    }

    /// Asks QEMU where memory lies, and believes it only if its process has
    /// memory there. Cancel-safe.
    async fn find_ram(&self) -> Result<Region, VmmError> {
        const COMMAND: &str = "gpa2hva 0";
        let answer = self.link.ask_human(COMMAND).await?;
        let Some(hva) = region::parse_hva(&answer) else {
            return Err(VmmError::Answer {
                command: COMMAND,
                text: answer,
            });
        };
        let region = Region {
            hva,
            len: self.record.memory,
        };
        let pid = self.record.process.pid;
        let path = format!("/proc/{pid}/maps");
        let maps = std::fs::read_to_string(&path).map_err(VmmError::io("read", path))?;
        match region.is_mapped(&maps) {
            true => Ok(region),
            false => Err(VmmError::NoMemory { pid, hva }),
        }
    }
}

#[async_trait]
impl Machine for QemuMachine {
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
        Some(SchedBoost::of(self.link.process()))
    }

    async fn stop(&self) -> Result<(), VmmError> {
        self.link.ask(qmp::stop {}).await?;
        Ok(())
    }

    async fn cont(&self) -> Result<(), VmmError> {
        self.link.ask(qmp::cont {}).await?;
        Ok(())
    }

    async fn run_state(&self) -> Result<RunState, VmmError> {
        let status = self.link.ask(qmp::query_status {}).await?;
        Ok(run_state(status.status))
    }

    async fn active_slice(&self) -> Result<Option<PathBuf>, VmmError> {
        disk::active_file(&self.link).await
    }

    async fn prepare_overlay(&self, path: &Path) -> Result<Overlay, VmmError> {
        let (process, file) = (self.record.process, path.to_owned());
        blocking(move || jail::add(process, &file)).await?;
        let prepared = self.disk.lock().await.prepare(&self.link, path).await;
        if prepared.is_err() {
            self.hide(vec![path.to_owned()]).await;
        }
        prepared
    }

    async fn freeze_disk(&self, overlay: Overlay) -> Result<(), VmmError> {
        self.disk.lock().await.freeze(&self.link, overlay).await
    }

    async fn fold_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        // Held throughout: nothing may be frozen meanwhile.
        let mut disk = self.disk.lock().await;
        disk.fold(&self.link, (upper, base), give_up).await?;
        self.hide(upper.to_vec()).await;
        Ok(())
    }

    async fn lift_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        let mut disk = self.disk.lock().await;
        disk.lift(&self.link, (upper, base), give_up).await?;
        self.hide(upper.to_vec()).await;
        Ok(())
    }

    async fn own_disk(
        &self,
        below: &[PathBuf],
        speed: ByteCount,
        told: Told<'_>,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError> {
        let mut disk = self.disk.lock().await;
        disk.own(&self.link, (below, speed), told, give_up).await?;
        self.hide(below.to_vec()).await;
        Ok(())
    }

    async fn discard_overlay(&self, overlay: Overlay) -> Result<(), VmmError> {
        disk::close(&self.link, overlay.number).await?;
        self.hide(vec![overlay.path]).await;
        Ok(())
    }

    async fn save_descriptor(&self) -> Result<Vec<u8>, VmmError> {
        let state_out = self.state_out.lock().await;
        if !self.link.qmp.seen_stopped() {
            match self.run_state().await? {
                RunState::Running => {
                    let state = RunState::Running;
                    return Err(VmmError::WrongState { state });
                }
                RunState::Paused | RunState::Waiting | RunState::Failed | RunState::Ended => {}
            }
        }
        self.link
            .ask(qmp::xen_save_devices_state {
                filename: state_out.name_in_qemu(),
                // Leaves the disks with this QEMU: it is to go on.
                live: Some(false),
            })
            .await?;
        state_out.take()
    }

    async fn add_vcpus(&self, total: NonZeroU8) -> Result<(), VmmError> {
        growth::add_vcpus(&self.link, total).await
    }

    async fn grow_disk(&self, size: ByteCount) -> Result<(), VmmError> {
        self.disk.lock().await.grow(&self.link, size).await
    }

    async fn ram(&self) -> Result<Region, VmmError> {
        match self.ram.get() {
            Some(region) => Ok(*region),
            None => {
                let found = self.find_ram().await?;
                Ok(*self.ram.get_or_init(|| found))
            }
        }
    }

    fn write_log(&self) -> Option<Userfault> {
        let MachineRecord {
            process, track_fd, ..
        } = &self.record;
        match Userfault::of_process(process.pid, *track_fd) {
            Ok(log) => Some(log),
            Err(error) => {
                tracing::debug!(pid = process.pid, %error, "writes cannot be noted");
                None
            }
        }
    }

    async fn kill(&self) -> Result<(), VmmError> {
        self.resources.end().await
    }

    async fn quit(&self) -> Result<(), VmmError> {
        match self.link.ask(qmp::quit {}).await {
            // It may end before it has answered, or have ended long ago.
            Ok(_) | Err(VmmError::Died { .. }) => {}
            Err(error) => return Err(error),
        }
        self.resources.end_by_itself().await
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        self.link.qmp.stopped().boxed()
    }

    fn lost(&self) -> BoxFuture<'static, ()> {
        self.link.qmp.closed().boxed()
    }

    fn exited(&self) -> BoxFuture<'static, Exit> {
        self.link.process().exited().boxed()
    }

    fn cause(&self) -> BoxFuture<'static, Cause> {
        self.link.qmp.cause().boxed()
    }
}

fn run_state(state: qmp::RunState) -> RunState {
    use qmp::RunState as Qemu;
    match state {
        Qemu::running => RunState::Running,
        Qemu::paused
        | Qemu::suspended
        | Qemu::save_vm
        | Qemu::finish_migrate
        | Qemu::postmigrate
        | Qemu::debug
        | Qemu::colo => RunState::Paused,
        Qemu::inmigrate | Qemu::prelaunch | Qemu::restore_vm => RunState::Waiting,
        Qemu::internal_error | Qemu::io_error | Qemu::watchdog | Qemu::guest_panicked => {
            RunState::Failed
        }
        Qemu::shutdown => RunState::Ended,
    }
}
