//! A place to run machines of either engine in.

use forkyard_fake_engine::FakeEngine;
use forkyard_types::{ByteCount, VmId};
use forkyard_vmm::{
    Accel, BootSpec, Engine, Limits, Machine, MachineRecord, MachineSpec, Owner, Qemu, QemuConfig,
    RootDisk, Shell, ShellSpec, files,
};
use std::{
    fs::{self, File, Permissions},
    num::NonZeroU8,
    os::unix::fs::{FileExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

const MEMORY: ByteCount = ByteCount(64 << 20);
/// A page that no firmware writes to.
const PAGE: u64 = 40 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The engines.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Qemu,
    Fake,
}

pub struct Site {
    dir: TempDir,
    pub engine: Arc<dyn Engine>,
    owner: Owner,
    /// The disk of what boots.
    pub disk: PathBuf,
    memory: PathBuf,
}

impl Site {
    pub fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        fs::set_permissions(&dir, Permissions::from_mode(0o711)).expect("mode");
        let engine: Arc<dyn Engine> = match kind {
            Kind::Qemu => Arc::new(
                Qemu::new(QemuConfig {
                    cgroup_parent: format!("forkyard-test-{}", VmId::random()),
                    patience: PATIENCE,
                    ..QemuConfig::default()
                })
                .expect("root and cgroup v2"),
            ),
            Kind::Fake => {
                let program = env!("CARGO_BIN_EXE_forkyard-fake-machine");
                Arc::new(FakeEngine::new(program.into(), dir.path(), PATIENCE))
            }
        };
        let owner = Owner {
            uid: 61_234,
            gid: 61_235,
        };
        let mut site = Self {
            disk: PathBuf::new(),
            memory: dir.path().join("memory"),
            dir,
            engine,
            owner,
        };
        let memory = File::create(&site.memory).expect("file");
        memory.set_len(MEMORY.0).expect("sparse");
        site.own(&site.memory);
        site.disk = site.path().join("disk");
        run(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&site.disk)
            .arg("16M"));
        site.own(&site.disk);
        site
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn own(&self, path: &Path) {
        chown(path, Some(self.owner.uid), Some(self.owner.gid)).expect("root");
    }

    /// An empty slice over a file.
    pub fn slice(&self, name: &str, backing: &Path) -> PathBuf {
        let path = self.path().join(name);
        run(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
            .arg(backing)
            .arg(&path));
        self.own(&path);
        path
    }

    fn machine(&self, disk: &Path) -> MachineSpec {
        let id = VmId::random();
        let dir = self.path().join(id.as_str());
        fs::create_dir(&dir).expect("dir");
        MachineSpec {
            id,
            dir,
            owner: self.owner,
            vcpus: NonZeroU8::MIN,
            memory: MEMORY,
            booted: MEMORY,
            accel: Accel::Tcg,
            withheld: Vec::new(),
            disk: Some(RootDisk::Slice(disk.to_owned())),
            data: Vec::new(),
            volumes: None,
            nic: None,
            limits: Limits::default(),
            page_reporting: true,
        }
    }

    pub async fn boot(&self) -> Box<dyn Machine> {
        self.boot_over(&self.disk).await
    }

    pub async fn boot_over(&self, disk: &Path) -> Box<dyn Machine> {
        let spec = BootSpec {
            machine: self.machine(disk),
            kernel: None,
        };
        self.engine.boot(spec).await.expect("boots")
    }

    /// A shell with a slice of its own over the disk.
    pub async fn shell(&self, name: &str) -> Box<dyn Shell> {
        let own = self.slice(name, &self.disk);
        let spec = ShellSpec {
            machine: self.machine(&own),
            memory_file: self.memory.clone(),
        };
        self.engine.shell(spec).await.expect("starts")
    }

    /// Writes one byte of the memory that shells are a view of.
    pub fn write_memory(&self, byte: u8) {
        let memory = File::options().write(true).open(&self.memory);
        memory
            .expect("there")
            .write_all_at(&[byte], PAGE)
            .expect("written");
    }

    /// Reads it in a machine.
    pub async fn read_memory(&self, machine: &dyn Machine) -> u8 {
        let ram = machine.ram().await.expect("told");
        let memory = File::open(format!("/proc/{}/mem", machine.record().process.pid));
        let mut byte = [0];
        let read = memory
            .expect("root")
            .read_exact_at(&mut byte, ram.hva + PAGE);
        read.expect("mapped");
        byte[0]
    }

    fn is_gone(record: &MachineRecord) -> bool {
        let sockets = [files::QMP, files::AGENT, files::CONSOLE_SOCKET];
        !Path::new(&format!("/proc/{}", record.process.pid)).exists()
            && sockets.iter().all(|name| !record.dir.join(name).exists())
    }

    pub fn assert_gone(&self, record: &MachineRecord) {
        assert!(Self::is_gone(record), "process or sockets");
    }

    pub async fn wait_gone(&self, record: &MachineRecord) {
        let gone = async {
            while !Self::is_gone(record) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("gone");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Left running by a test that failed: machines outlive their parents.
            let engine = self.engine.clone();
            let ended = std::thread::spawn(move || end_all(&*engine));
            let _ = ended.join();
        }
        let closed = self.engine.close();
        if !std::thread::panicking() {
            closed.expect("all machines have ended");
        }
    }
}

/// Ends whatever runs.
fn end_all(engine: &dyn Engine) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for vm in engine.vms().unwrap_or_default() {
        let _ = runtime.block_on(engine.end_processes(vm));
    }
}

/// Reads or writes a slice that nothing has open.
pub fn io(slice: &Path, command: &str) {
    run(Command::new("qemu-io")
        .args(["-f", "qcow2", "-c", command])
        .arg(slice));
}

fn run(command: &mut Command) {
    let output = command.output().expect("installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let is_good = output.status.success() && !said.contains("failed");
    assert!(
        is_good,
        "{command:?}: {said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
