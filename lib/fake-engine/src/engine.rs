//! The engine.

use crate::{
    CONTROL,
    faults::{Fault, Faults, refused},
    link::{Link, failed},
    machine::{FakeMachine, FakeShell},
    processes::{self, Watched},
};
use async_trait::async_trait;
use forkyard_types::{GuestCpu, VmId};
use forkyard_vmm::{
    Accel, AccelChoice, BootSpec, Engine, Machine, MachineRecord, MachineSpec, Probe, RootDisk,
    Shell, ShellSpec, Verdict, VmmError, files,
};
use std::{
    fs, io,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Files of a machine's directory that go with it.
const SOCKETS: [&str; 3] = [CONTROL, files::AGENT, files::CONSOLE_SOCKET];

/// An engine whose machines are processes of `forkyard-fake-machine`.
#[derive(Clone, Debug)]
pub struct FakeEngine {
    program: PathBuf,
    /// Folder that tells its machines apart from those of others.
    home: PathBuf,
    faults: Faults,
    patience: Duration,
}

impl FakeEngine {
    /// Over the program of a machine, for the host that runs there.
    pub fn new(program: PathBuf, run: &Path, patience: Duration) -> Self {
        Self {
            program,
            home: run.to_owned(),
            faults: Faults::of(run),
            patience,
        }
    }

    async fn start(
        &self,
        call: &'static str,
        machine: MachineSpec,
        memory: Option<PathBuf>,
    ) -> Result<(Link, MachineRecord), VmmError> {
        let fault = self.faults.take(call).await;
        if fault == Some(Fault::Refuse) {
            return Err(refused(call));
        }
        let engine = self.clone();
        let started = tokio::task::spawn_blocking(move || engine.spawn(machine, memory)).await;
        let (process, record) =
            started.map_err(|error| failed("start", "a machine", io::Error::other(error)))??;
        if fault == Some(Fault::Kill) {
            process.end().await?;
        }
        let link = Link::open(
            &record.dir,
            process.clone(),
            self.faults.clone(),
            self.patience,
        );
        match link.await {
            Ok(link) => Ok((link, record)),
            Err(error) => {
                process.end().await?;
                Err(error)
            }
        }
    }

    /// Starts a process, and waits until it listens.
    fn spawn(
        &self,
        machine: MachineSpec,
        memory: Option<PathBuf>,
    ) -> Result<(Watched, MachineRecord), VmmError> {
        // A guest that is made up writes no volume.
        let slice = match machine.disk {
            Some(RootDisk::Slice(path)) => path,
            Some(RootDisk::Volume(_)) | None => PathBuf::new(),
        };
        let mut command = Command::new(&self.program);
        command
            .arg(&self.home)
            .arg(machine.id.as_str())
            .arg(&machine.dir)
            .arg(machine.memory.0.to_string())
            .arg(memory.unwrap_or_default())
            .arg(slice)
            .env_clear()
            // Held for as long as it runs: so long does the interface exist.
            .stdin(machine.nic.map_or_else(Stdio::null, |nic| nic.tap.into()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let spawn_error = |source| VmmError::Spawn {
            program: self.program.clone(),
            source,
        };
        let mut child = command.spawn().map_err(spawn_error)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(spawn_error)?;
        }
        let process = Watched::child(child).map_err(spawn_error)?;
        let record = MachineRecord {
            id: machine.id,
            dir: machine.dir,
            process: process.id(),
            memory: machine.memory,
            accel: Accel::Tcg,
            state_fd: None,
            track_fd: -1,
        };
        match line.trim_end() {
            "ready" => Ok((process, record)),
            said => {
                let _ = process.kill();
                Err(VmmError::Answer {
                    command: "start",
                    text: said.to_owned(),
                })
            }
        }
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn choose_accel(&self, _: AccelChoice, _: &Probe, _: &Path) -> Result<Verdict, VmmError> {
        Ok(Verdict {
            accel: Accel::Tcg,
            why: "nothing is executed".to_owned(),
        })
    }

    async fn boot(&self, spec: BootSpec) -> Result<Box<dyn Machine>, VmmError> {
        let (link, record) = self.start("boot", spec.machine, None).await?;
        let machine = FakeMachine::new(link, record);
        Ok(Box::new(machine))
    }

    async fn shell(&self, spec: ShellSpec) -> Result<Box<dyn Shell>, VmmError> {
        let (link, record) = self
            .start("shell", spec.machine, Some(spec.memory_file))
            .await?;
        Ok(Box::new(FakeShell::new(link, record)))
    }

    async fn adopt(&self, record: MachineRecord) -> Result<Box<dyn Machine>, VmmError> {
        self.faults.take("adopt").await;
        let process = Watched::stranger(record.process)
            .map_err(|error| failed("watch process of", &record.dir, error))?;
        let gone = VmmError::Gone {
            process: record.process,
        };
        let process = process.ok_or(gone)?;
        let link = Link::open(&record.dir, process, self.faults.clone(), self.patience).await?;
        Ok(Box::new(FakeMachine::new(link, record)))
    }

    async fn discard(&self, record: &MachineRecord) -> Result<(), VmmError> {
        let process = Watched::stranger(record.process)
            .map_err(|error| failed("watch process of", &record.dir, error))?;
        if let Some(process) = process {
            process.end().await?;
        }
        remove_sockets(&record.dir)
    }

    fn vms(&self) -> Result<Vec<VmId>, VmmError> {
        let found = processes::of_home(&self.home);
        let found = found.map_err(|error| failed("read", "/proc", error))?;
        Ok(found.into_iter().map(|(vm, _)| vm).collect())
    }

    async fn end_processes(&self, vm: VmId) -> Result<(), VmmError> {
        let found = processes::of_home(&self.home);
        let found = found.map_err(|error| failed("read", "/proc", error))?;
        for (_, pid) in found.into_iter().filter(|(found, _)| *found == vm) {
            let watched = forkyard_vmm::ProcessId::of(pid).and_then(Watched::stranger);
            if let Ok(Some(process)) = watched {
                process.end().await?;
            }
        }
        Ok(())
    }

    async fn clear(&self, vm: VmId, dir: &Path) -> Result<(), VmmError> {
        self.end_processes(vm).await?;
        remove_sockets(dir)
    }

    /// As a file `cpu` in the host's run folder has it: features, apart by blanks.
    fn cpu(&self, _: Accel) -> Result<GuestCpu, VmmError> {
        let features = fs::read_to_string(self.home.join("cpu")).unwrap_or_default();
        Ok(GuestCpu {
            model: "made up".into(),
            features: features.split_whitespace().map(str::to_owned).collect(),
        })
    }

    fn withhold(&self, accel: Accel, most: &GuestCpu) -> Result<Vec<String>, VmmError> {
        let given = self.cpu(accel)?.features;
        Ok(given.difference(&most.features).cloned().collect())
    }

    fn version(&self) -> Result<String, VmmError> {
        Ok(concat!("forkyard-fake-machine ", env!("CARGO_PKG_VERSION")).to_owned())
    }

    fn close(&self) -> Result<(), VmmError> {
        Ok(())
    }
}

/// Removes the sockets of a machine that has ended.
pub fn remove_sockets(dir: &Path) -> Result<(), VmmError> {
    for name in SOCKETS {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", path, error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
