//! The engine on stock QEMU: starting it and finding it again.

use crate::{
    Accel, AccelChoice, BootSpec, Engine, Kernel, Machine, MachineRecord, MachineSpec, Probe,
    QemuMachine, QemuShell, RootDisk, Shell, ShellSpec, Verdict, VmmError, argv, calls,
    cgroup::Parent,
    disk::Disk,
    files, growth,
    inherited::{InheritedFds, StateFile},
    jail,
    link::Link,
    process::Process,
    qemu_log::QemuLog,
    resources::{KillOnDrop, QemuResources},
    sched_boost,
};
use async_trait::async_trait;
use forkyard_sys_host::filter::Filter;
use forkyard_sys_host::huge::without_huge_pages;
use forkyard_sys_host::process::{
    Bounds, Credentials, Lifespan, Surroundings, empty_network, in_cgroup, isolate, spawn_first,
};
use forkyard_types::{GuestCpu, VmId};
use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Tells the tracker which descriptor to replace.
const TRACK_PLACE: &str = "FORKYARD_TRACK_FD";

/// Within this a process that was killed is gone.
const ENDS: Duration = Duration::from_secs(1);

/// Configuration of QEMU on this host.
#[derive(Clone, Debug)]
pub struct QemuConfig {
    /// The program.
    pub program: PathBuf,
    /// Name of the cgroup the VMs' cgroups are created in.
    pub cgroup_parent: String,
    /// The library that lets writes to memory be noted, loaded into each QEMU;
    /// none to do without.
    pub tracker: Option<PathBuf>,
    /// Bound on each thing asked of a QEMU. Generous: a host that starts many
    /// machines at once answers each of them late.
    pub patience: Duration,
}

impl Default for QemuConfig {
    fn default() -> Self {
        Self {
            program: "qemu-system-x86_64".into(),
            cgroup_parent: "forkyard".into(),
            tracker: None,
            patience: Duration::from_secs(30),
        }
    }
}

/// Stock QEMU, version 7.2 or later, as root.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    cgroups: Parent,
    tracker: Option<PathBuf>,
    patience: Duration,
    /// Version that it gives, once it was asked.
    version: Arc<OnceLock<String>>,
    /// Network namespace of QEMUs, and of nothing else: their taps are handed to them.
    network: Arc<OwnedFd>,
    /// Filter of the system calls that QEMUs may make.
    calls: Filter,
    calls_with_volume: Filter,
}

/// A QEMU whose monitor answers.
pub(crate) struct Started {
    pub(crate) kill_on_drop: KillOnDrop,
    pub(crate) link: Link,
    pub(crate) record: MachineRecord,
    pub(crate) state_out: StateFile,
}

/// A QEMU about to be started.
struct Plan {
    machine: MachineSpec,
    plumbing: InheritedFds,
    args: Vec<String>,
    /// Files that it opens by name.
    files: Vec<PathBuf>,
    /// True if its memory is a view of a file, of which only the pages it touches
    /// are to be read.
    is_view: bool,
}

/// A QEMU that was just started.
struct Spawned {
    kill_on_drop: KillOnDrop,
    process: Process,
    record: MachineRecord,
    state_out: StateFile,
}

impl Qemu {
    /// The engine; makes its cgroup. Blocks for a few file operations.
    pub fn new(config: QemuConfig) -> Result<Self, VmmError> {
        Ok(Self {
            program: config.program,
            cgroups: Parent::create(&config.cgroup_parent)?,
            tracker: config.tracker,
            patience: config.patience,
            version: Arc::default(),
            network: Arc::new(empty_network().map_err(VmmError::io("make", "an empty network"))?),
            calls: calls::of_qemu().map_err(VmmError::io("make", "a list of system calls"))?,
            calls_with_volume: calls::of_qemu_with_volume()
                .map_err(VmmError::io("make", "a list of system calls"))?,
        })
    }

    /// Starts a process and connects to it. Cancel-safe: it is killed.
    async fn start(
        &self,
        plan: impl FnOnce() -> Result<Plan, VmmError> + Send + 'static,
    ) -> Result<Started, VmmError> {
        let engine = self.clone();
        // Files and forks block. Whatever becomes of this future, the thread
        // ends with a tether, so that no process is forgotten.
        let spawned = tokio::task::spawn_blocking(move || engine.spawn(plan()?));
        let Spawned {
            kill_on_drop,
            process,
            record,
            state_out,
        } = match spawned.await {
            Ok(spawned) => spawned?,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down, and with it this future.
                Err(_) => std::future::pending().await,
            },
        };
        match Link::open(process, &record.dir.join(files::QMP), self.patience).await {
            Ok(link) => Ok(Started {
                kill_on_drop,
                link,
                record,
                state_out,
            }),
            Err(error) => Err(kill_on_drop.end_after(error).await),
        }
    }

    /// Starts a process in its cgroup. Blocks for some milliseconds.
    fn spawn(&self, plan: Plan) -> Result<Spawned, VmmError> {
        let Plan {
            machine,
            plumbing,
            args,
            files,
            is_view,
        } = plan;
        let jail = jail::build(jail::Guest {
            programs: [Some(&self.program), self.tracker.as_deref()],
            accel: machine.accel,
            files: &files,
        })?;
        let state_out = StateFile::create_in(&jail, machine.owner)?;
        if !is_view {
            growth::furnish(&jail)?;
        }
        let (out, err) = (plumbing.log.try_clone(), plumbing.log);
        let out = out.map_err(VmmError::io("share", machine.dir.join(files::LOG_PIPE)))?;
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        let track = plumbing.numbers.track;
        if let Some(tracker) = &self.tracker {
            command
                .env("LD_PRELOAD", tracker)
                .env(TRACK_PLACE, track.to_string());
        }
        let credentials = Credentials {
            uid: machine.owner.uid,
            gid: machine.owner.gid,
            groups: machine.accel.groups(),
        };
        // In its cgroup before it is QEMU, and before it has lost its rights: whatever
        // becomes of this daemon meanwhile, the next one finds it there.
        let cgroup = self.cgroups.of(machine.id);
        cgroup.create(machine.limits)?;
        in_cgroup(&mut command, cgroup.door()?);
        let surroundings = Surroundings {
            network: self.network.clone(),
            jail,
            bounds: Bounds {
                file: Some(jail::largest_file(slice_of(&machine))?),
                ..machine.limits.bounds()
            },
            calls: Some(match machine.volumes {
                None => self.calls.clone(),
                Some(_) => self.calls_with_volume.clone(),
            }),
            capabilities: Vec::new(),
            ends: Lifespan::ByItself,
        };
        isolate(&mut command, credentials, surroundings, plumbing.inherited);
        if is_view {
            without_huge_pages(&mut command);
        }
        let program = || self.program.clone();
        let spawn_error = |source| VmmError::Spawn {
            program: program(),
            source,
        };
        let spawned = spawn_first(&mut command).map_err(spawn_error);
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                cgroup.remove_empty()?;
                return Err(error);
            }
        };
        let process = Process::of_child(child, plumbing.words).map_err(spawn_error)?;
        let kill_on_drop = KillOnDrop::new(QemuResources {
            process: Some(process.clone()),
            cgroup: cgroup.clone(),
            dir: machine.dir.clone(),
        });
        let record = MachineRecord {
            id: machine.id,
            dir: machine.dir,
            process: process.id(),
            memory: machine.memory,
            accel: machine.accel,
            state_fd: None,
            track_fd: track,
        };
        Ok(Spawned {
            kill_on_drop,
            process,
            record,
            state_out,
        })
    }

    /// Finds the parts of a record's machine that still exist.
    fn resources(&self, record: &MachineRecord) -> Result<QemuResources, VmmError> {
        let process = Process::of_stranger(record.process, || QemuLog::listen(&record.dir))
            .map_err(VmmError::io("watch process of", &record.dir))?;
        Ok(QemuResources {
            process,
            cgroup: self.cgroups.of(record.id),
            dir: record.dir.clone(),
        })
    }
}

impl Qemu {
    /// Starts a machine, as [`Engine::boot`] does.
    pub async fn boot(&self, mut spec: BootSpec) -> Result<QemuMachine, VmmError> {
        let disk = Disk::fresh(spec.machine.disk.as_ref());
        let started = self
            .start(move || {
                let plumbing = InheritedFds::lay(&spec.machine.dir, spec.machine.nic.take())?;
                let args = argv::boot(&spec, plumbing.numbers)?;
                let BootSpec { machine, kernel } = spec;
                let mut files = files_of(&machine)?;
                files.extend(kernel.into_iter().flat_map(|kernel| {
                    let Kernel { image, initrd, .. } = kernel;
                    std::iter::once(image).chain(initrd)
                }));
                Ok(Plan {
                    machine,
                    plumbing,
                    args,
                    files,
                    is_view: false,
                })
            })
            .await?;
        let Started {
            kill_on_drop,
            link,
            record,
            state_out,
        } = started;
        let resources = kill_on_drop.release();
        Ok(QemuMachine::new(record, link, resources, state_out, disk))
    }

    /// Starts a shell, as [`Engine::shell`] does.
    pub async fn shell(&self, mut spec: ShellSpec) -> Result<QemuShell, VmmError> {
        let disk = Disk::fresh(spec.machine.disk.as_ref());
        let (state_in, inherited) = StateFile::create()?;
        let started = self
            .start(move || {
                let mut plumbing = InheritedFds::lay(&spec.machine.dir, spec.machine.nic.take())?;
                plumbing.inherited.push(inherited);
                let args = argv::shell(&spec, plumbing.numbers)?;
                let ShellSpec {
                    machine,
                    memory_file,
                } = spec;
                let mut files = files_of(&machine)?;
                files.push(memory_file);
                Ok(Plan {
                    machine,
                    plumbing,
                    args,
                    files,
                    is_view: true,
                })
            })
            .await?;
        Ok(QemuShell::new(started, state_in, disk))
    }

    /// Takes charge of a machine, as [`Engine::adopt`] does.
    pub async fn adopt(&self, record: MachineRecord) -> Result<QemuMachine, VmmError> {
        let id = record.process;
        let gone = VmmError::Gone { process: id };
        let resources = self.resources(&record)?;
        let Some(process) = resources.process.clone() else {
            return Err(gone);
        };
        let exited = process.exited();
        match self.take_charge(record, resources, process).await {
            Ok(machine) => Ok(machine),
            // It may have been about to end, killed by the earlier daemon.
            Err(error) => match tokio::time::timeout(ENDS, exited).await {
                Ok(_) => Err(gone),
                Err(_) => Err(error),
            },
        }
    }
}

impl Qemu {
    async fn take_charge(
        &self,
        record: MachineRecord,
        resources: QemuResources,
        process: Process,
    ) -> Result<QemuMachine, VmmError> {
        sched_boost::end_of(&process);
        let state_out = StateFile::of_process(record.process, record.state_fd)?;
        let link = Link::open(process, &record.dir.join(files::QMP), self.patience).await?;
        let disk = Disk::survey(&link).await?;
        disk.close_leftovers(&link).await?;
        Ok(QemuMachine::new(record, link, resources, state_out, disk))
    }
}

#[async_trait]
impl Engine for Qemu {
    async fn choose_accel(
        &self,
        choice: AccelChoice,
        probe: &Probe,
        cache: &Path,
    ) -> Result<Verdict, VmmError> {
        Qemu::choose_accel(self, choice, probe, cache).await
    }

    async fn boot(&self, spec: BootSpec) -> Result<Box<dyn Machine>, VmmError> {
        Ok(Box::new(Qemu::boot(self, spec).await?))
    }

    async fn shell(&self, spec: ShellSpec) -> Result<Box<dyn Shell>, VmmError> {
        Ok(Box::new(Qemu::shell(self, spec).await?))
    }

    async fn adopt(&self, record: MachineRecord) -> Result<Box<dyn Machine>, VmmError> {
        Ok(Box::new(Qemu::adopt(self, record).await?))
    }

    async fn discard(&self, record: &MachineRecord) -> Result<(), VmmError> {
        self.resources(record)?.end().await
    }

    fn vms(&self) -> Result<Vec<VmId>, VmmError> {
        self.cgroups.list()
    }

    async fn end_processes(&self, vm: VmId) -> Result<(), VmmError> {
        let cgroup = self.cgroups.of(vm);
        cgroup.kill()?;
        cgroup.remove(self.patience).await
    }

    async fn clear(&self, vm: VmId, dir: &Path) -> Result<(), VmmError> {
        let resources = QemuResources {
            process: None,
            cgroup: self.cgroups.of(vm),
            dir: dir.to_owned(),
        };
        resources.end().await
    }

    fn cpu(&self, accel: Accel) -> Result<GuestCpu, VmmError> {
        match accel {
            Accel::Kvm => crate::cpu::of_host(),
            // What it translates depends on itself alone.
            Accel::Tcg => Ok(GuestCpu {
                model: format!("{} of {}", accel.cpu_model(), self.version()?),
                features: BTreeSet::new(),
            }),
        }
    }

    fn withhold(&self, accel: Accel, most: &GuestCpu) -> Result<Vec<String>, VmmError> {
        let given = Engine::cpu(self, accel)?.features;
        let surplus: Vec<_> = given.difference(&most.features).collect();
        if surplus.is_empty() {
            return Ok(Vec::new());
        }
        let failed = VmmError::io("ask for its CPUs", &self.program);
        let said = Command::new(&self.program).args(["-cpu", "help"]).output();
        let said = said.map_err(failed)?.stdout;
        let known = String::from_utf8_lossy(&said);
        Ok(crate::cpu::names(&known, surplus.into_iter()))
    }

    fn version(&self) -> Result<String, VmmError> {
        if let Some(version) = self.version.get() {
            return Ok(version.clone());
        }
        let failed = VmmError::io("ask for its version", &self.program);
        let said = Command::new(&self.program).arg("--version").output();
        let said = said.map_err(failed)?.stdout;
        let first = String::from_utf8_lossy(&said);
        let first = first.lines().next().unwrap_or_default().to_owned();
        Ok(self.version.get_or_init(|| first).clone())
    }

    fn close(&self) -> Result<(), VmmError> {
        self.cgroups.remove_if_empty()
    }
}

/// The files of a machine's disk.
fn files_of(machine: &MachineSpec) -> Result<Vec<PathBuf>, VmmError> {
    let slices = slice_of(machine).map(jail::chain);
    let mut files = slices.unwrap_or_else(|| Ok(Vec::new()))?;
    // As a folder: the socket in it is another once the server was started again.
    files.extend(machine.volumes.clone());
    Ok(files)
}

/// The slice that a machine writes, if it has one.
fn slice_of(machine: &MachineSpec) -> Option<&Path> {
    match &machine.disk {
        Some(RootDisk::Slice(path)) => Some(path),
        Some(RootDisk::Volume(_)) | None => None,
    }
}
