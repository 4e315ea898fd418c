//! A place to run machines in: a directory, a cgroup, an unprivileged owner.
//! All of it goes with it, also when a test fails.

use forkyard_types::{ByteCount, VmId};
use forkyard_vmm::{
    Accel, BootSpec, Limits, Machine, MachineRecord, MachineSpec, Owner, Qemu, QemuConfig,
    QemuMachine, QemuShell, RootDisk, ShellSpec, files,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::{Read, Seek, SeekFrom, Write},
    num::NonZeroU8,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// Enough for the firmware.
pub const MEMORY: ByteCount = ByteCount(64 << 20);
/// Enough for Linux and an initial RAM disk.
pub const GUEST_MEMORY: ByteCount = ByteCount(256 << 20);

pub struct Site {
    dir: TempDir,
    cgroups: PathBuf,
    pub cgroup_parent: String,
    pub qemu: Qemu,
    pub owner: Owner,
    /// The disk machines boot from and shells lie over.
    pub disk: PathBuf,
    /// The file shells have their memory from.
    pub memory: PathBuf,
    /// Size of memory, the same for every machine.
    size: ByteCount,
}

impl Site {
    pub fn new() -> Self {
        Self::with_memory(MEMORY)
    }

    pub fn with_memory(size: ByteCount) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        // Reached by an unprivileged QEMU; what lies in it it must own.
        fs::set_permissions(&dir, Permissions::from_mode(0o711)).expect("mode");
        let owner = Owner {
            uid: 61_234,
            gid: 61_235,
        };
        let disk = dir.path().join("disk.qcow2");
        run(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&disk)
            .arg("64M"));
        own(&disk, owner);
        let memory = dir.path().join("memory");
        File::create(&memory)
            .expect("file")
            .set_len(size.0)
            .expect("sparse");
        own(&memory, owner);
        let cgroup_parent = format!("forkyard-test-{}", VmId::random());
        let qemu = Qemu::new(QemuConfig {
            cgroup_parent: cgroup_parent.clone(),
            ..QemuConfig::default()
        })
        .expect("root and cgroup v2");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let v2 = mounts
            .lines()
            .find(|line| line.contains(" cgroup2 "))
            .expect("cgroup v2");
        let cgroups = Path::new(v2.split(' ').nth(1).expect("a path")).join(&cgroup_parent);
        Self {
            dir,
            cgroups,
            cgroup_parent,
            qemu,
            owner,
            disk,
            memory,
            size,
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn machine(&self, disk: &Path) -> MachineSpec {
        let id = VmId::random();
        let dir = self.path().join(id.as_str());
        fs::create_dir(&dir).expect("dir");
        // Closed to QEMU: it must do with what it inherits.
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).expect("mode");
        MachineSpec {
            id,
            dir,
            owner: self.owner,
            vcpus: NonZeroU8::new(2).expect("two"),
            memory: self.size,
            booted: self.size,
            accel: Accel::Tcg,
            withheld: Vec::new(),
            disk: Some(RootDisk::Slice(disk.to_owned())),
            data: Vec::new(),
            volumes: None,
            nic: None,
            limits: Limits {
                memory: Some(ByteCount(1 << 30)),
                pids: Some(100),
            },
            page_reporting: true,
        }
    }

    pub fn boot_spec(&self) -> BootSpec {
        BootSpec {
            machine: self.machine(&self.disk),
            kernel: None,
        }
    }

    pub async fn boot(&self) -> QemuMachine {
        self.qemu.boot(self.boot_spec()).await.expect("boots")
    }

    /// One whose disk is a fresh slice over the others'.
    pub async fn boot_over_the_disk(&self) -> QemuMachine {
        let own = self.path().join(format!("{}.qcow2", VmId::random()));
        slice(&own, &self.disk, self.owner);
        let machine = self.machine(&own);
        let kernel = None;
        let booted = self.qemu.boot(BootSpec { machine, kernel }).await;
        booted.expect("boots")
    }

    /// A shell with a fresh slice over `backing`.
    pub async fn shell(&self, backing: &Path) -> QemuShell {
        let own = self.path().join(format!("{}.qcow2", VmId::random()));
        slice(&own, backing, self.owner);
        let machine = self.machine(&own);
        let memory_file = self.memory.clone();
        let spec = ShellSpec {
            machine,
            memory_file,
        };
        self.qemu.shell(spec).await.expect("starts")
    }

    /// Copies a machine's memory into the file the shells map.
    pub async fn copy_memory(&self, machine: &QemuMachine) {
        let region = machine.ram().await.expect("found");
        let pid = machine.record().process.pid;
        let mut memory = File::open(format!("/proc/{pid}/mem")).expect("root");
        memory.seek(SeekFrom::Start(region.hva)).expect("seek");
        let mut bytes = vec![0; usize::try_from(region.len.0).expect("64-bit")];
        memory.read_exact(&mut bytes).expect("mapped");
        let mut file = File::options()
            .write(true)
            .open(&self.memory)
            .expect("file");
        file.write_all(&bytes).expect("written");
    }

    pub fn kill_9(&self, machine: &QemuMachine) {
        let pid = machine.record().process.pid.try_into().expect("a process");
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("killed");
    }

    pub fn assert_gone(&self, record: &MachineRecord) {
        let pid = record.process.pid;
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process");
        assert!(self.is_quiet(record.id, &record.dir), "cgroup or sockets");
    }

    /// Waits until nothing of a machine is left, and stays so.
    pub async fn wait_quiet(&self, id: VmId, dir: &Path) {
        // Whatever a thread has begun is done by then; a longer time only
        // makes the test more severe.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..3000 {
            if self.is_quiet(id, dir) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("something is left of {id}");
    }

    fn is_quiet(&self, id: VmId, dir: &Path) -> bool {
        !self.cgroups.join(id.as_str()).exists()
            && !dir.join(files::QMP).exists()
            && !dir.join(files::AGENT).exists()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for group in fs::read_dir(&self.cgroups).into_iter().flatten().flatten() {
            // A test failed: end what it left running.
            let _ = fs::write(group.path().join("cgroup.kill"), "1");
            for _ in 0..1000 {
                if !group.path().is_dir() || fs::remove_dir(group.path()).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let removed = fs::remove_dir(&self.cgroups);
        if !std::thread::panicking() {
            removed.expect("all machines have ended");
        }
    }
}

/// An empty slice over a qcow2 file.
pub fn slice(path: &Path, backing: &Path, owner: Owner) {
    let mut command = Command::new("qemu-img");
    command
        .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-u", "-b"])
        .arg(backing);
    run(command.args(["-o", "cluster_size=4k"]).arg(path).arg("64M"));
    own(path, owner);
}

/// Has QEMU itself write to a machine's active slice, as a guest would.
pub async fn write_behind(machine: &QemuMachine, pattern: u8) {
    qemu_io(machine, &format!("write -P {pattern} 1M 64k")).await;
}

/// Ends a machine; whether it read what [`write_behind`] wrote.
pub async fn read_and_quit(machine: QemuMachine, pattern: u8) -> bool {
    qemu_io(&machine, &format!("read -P {pattern} 1M 64k")).await;
    // It tells on its standard output, which is buffered until it ends.
    machine.quit().await.expect("quits");
    let log = fs::read_to_string(machine.record().dir.join(files::LOG)).expect("log");
    assert!(log.contains("read 65536/65536"), "{log}");
    !log.contains("Pattern verification failed")
}

/// Has QEMU itself do something to a machine's disk, and tell of it in its log.
pub async fn qemu_io(machine: &QemuMachine, command: &str) {
    const DISK: &str = "/machine/peripheral/disk0/virtio-backend";
    let line = format!("qemu-io -d {DISK} \"{command}\"");
    let refused = machine.monitor(&line).await.expect("carried out");
    assert_eq!(refused, "");
}

/// Names of the threads of a process that go before all usual ones.
pub fn real_time_threads(pid: u32) -> Vec<String> {
    let mut names = Vec::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("alive");
    for task in tasks.flatten() {
        let read = |name| fs::read_to_string(task.path().join(name));
        // One that has ended meanwhile goes before no other.
        let (Ok(stat), Ok(name)) = (read("stat"), read("comm")) else {
            continue;
        };
        // Field 41 of the whole, counted from 1; two are gone.
        let (_, rest) = stat.rsplit_once(") ").expect("a name");
        match rest.split(' ').nth(38).expect("a policy") {
            "0" => {}
            _ => names.push(name.trim_end().to_owned()),
        }
    }
    names.sort();
    names
}

/// The fields of /proc/PID/status.
pub fn status_of(pid: u32) -> BTreeMap<String, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn own(path: &Path, owner: Owner) {
    chown(path, Some(owner.uid), Some(owner.gid)).expect("root");
}

pub fn run(command: &mut Command) {
    let status = command.status().expect("installed");
    assert!(status.success(), "{command:?}: {status}");
}
