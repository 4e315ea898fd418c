//! One QEMU of the baseline, started as usual: with our machine, kernel
//! and guest, without sandbox, user or cgroup of its own, which only helps it.
//! Its network card leads nowhere.

use crate::{BenchError, machine::Accel, monitor::Monitor};
use forkyard_agent_link::{self as link, Exec, ExecOut, Guest, LinkError};
use forkyard_types::ExitStatus;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    sync::mpsc,
    time::{sleep, timeout},
};

/// Time a guest may be silent, also while it boots beside many others.
pub const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(1);
/// As Forkyard boots its guests.
const CMDLINE: &str =
    "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check mitigations=off cryptomgr.notests";
const MACHINE: &str = "-nodefaults -no-user-config -display none -vga none -no-reboot \
     -M q35 -global apic-common.vapic=off -serial null \
     -device virtio-serial-pci,id=serial0,addr=4 \
     -device virtserialport,bus=serial0.0,chardev=agent,name=org.forkyard.agent \
     -device virtio-balloon-pci,id=balloon0,addr=5,free-page-reporting=on,page-poison=off \
     -device virtio-blk-pci,addr=2,drive=disk0 \
     -netdev hubport,id=net0,hubid=0 \
     -device virtio-net-pci,id=nic0,addr=3,netdev=net0,romfile=";

/// Parts that it is made of.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Accelerator.
    pub accel: Accel,
    /// vCPUs.
    pub vcpus: u8,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Slice of the disk that it has for itself.
    pub slice: PathBuf,
    /// Sockets: a path each, which does not exist yet.
    pub monitor: PathBuf,
    /// The agent's.
    pub agent: PathBuf,
    /// Way in which it starts.
    pub start: Start<'a>,
}

/// Ways in which a QEMU starts.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// From the beginning.
    Boot {
        /// The kernel.
        kernel: &'a Path,
        /// The agent, and what else is needed to find the disk.
        initramfs: &'a Path,
    },
    /// From what another has saved.
    Restore {
        /// The file.
        saved: &'a Path,
    },
    /// From a snapshot in its disk, standing still.
    Load {
        /// The snapshot's name.
        tag: &'a str,
    },
}

/// One QEMU; killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    process: Child,
    monitor: PathBuf,
    agent: PathBuf,
    slice: PathBuf,
}

impl Qemu {
    /// Starts it. Returns before it answers.
    pub fn start(parts: Parts<'_>) -> Result<Self, BenchError> {
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", &parts.accel.to_string()])
            .args(["-cpu", parts.accel.cpu_model()])
            .args(["-smp", &parts.vcpus.to_string()])
            .args(["-m", &parts.memory_mib.to_string()])
            .arg("-qmp")
            .arg(format!(
                "unix:{},server=on,wait=off",
                parts.monitor.display()
            ))
            .arg("-chardev")
            .arg(format!(
                "socket,id=agent,path={},server=on,wait=off",
                parts.agent.display()
            ))
            .arg("-drive")
            // The parent goes on writing its own disk, which holds a lock.
            .arg(format!(
                "if=none,id=disk0,format=qcow2,file={},file.locking=off,backing.file.locking=off",
                parts.slice.display()
            ))
            .args(MACHINE.split_ascii_whitespace());
        match parts.start {
            Start::Boot { kernel, initramfs } => command
                .arg("-kernel")
                .arg(kernel)
                .arg("-initrd")
                .arg(initramfs)
                .args(["-append", CMDLINE]),
            Start::Restore { saved } => command
                .arg("-incoming")
                .arg(format!("exec:cat {}", saved.display())),
            Start::Load { tag } => command.args(["-S", "-loadvm", tag]),
        };
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::host("run QEMU"))?;
        Ok(Self {
            process,
            monitor: parts.monitor,
            agent: parts.agent,
            slice: parts.slice,
        })
    }

    /// Returns the process id, unless it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Returns the slice of the disk that it has for itself.
    pub fn slice(&self) -> &Path {
        &self.slice
    }

    /// Notes that it writes to another slice now; returns the one it wrote to
    /// before.
    pub fn moved_on(&mut self, slice: PathBuf) -> PathBuf {
        std::mem::replace(&mut self.slice, slice)
    }

    /// A connection to its monitor, as soon as there is one.
    pub async fn monitor(&self) -> Result<Monitor, BenchError> {
        Monitor::connect(&self.monitor).await
    }

    /// Waits until its agent answers.
    pub async fn booted(&self) -> Result<(), BenchError> {
        self.guest().await?.hello(PATIENCE).await?;
        Ok(())
    }

    /// Runs a command in the guest to its end.
    pub async fn command(&self, argv: &[&str]) -> Result<(), BenchError> {
        let mut running = self.exec(argv).await?;
        loop {
            let next = timeout(PATIENCE, running.next());
            let next = next.await.map_err(|_| BenchError::Silent {
                what: "a command in a guest of the baseline",
            })?;
            match next {
                Some(ExecOut::Output { .. }) => {}
                Some(ExecOut::Ended(ExitStatus::Code(0))) => return Ok(()),
                other => {
                    return Err(BenchError::Command {
                        vm: "a guest of the baseline".to_owned(),
                        command: argv.join(" "),
                        outcome: format!("{other:?}"),
                    });
                }
            }
        }
    }

    /// Starts a command in the guest.
    pub async fn exec(&self, argv: &[&str]) -> Result<Exec, BenchError> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        Ok(self
            .guest()
            .await?
            .exec(link::Command::of_root(argv))
            .await?)
    }

    /// Ends it and waits until it is gone.
    pub async fn end(mut self) -> Result<(), BenchError> {
        let killed = self.process.kill().await;
        killed.map_err(BenchError::host("end QEMU"))
    }

    async fn guest(&self) -> Result<Guest, BenchError> {
        let connect = async {
            loop {
                // No calls come from these guests: the receiver may go.
                let (calls, _) = mpsc::channel(1);
                match Guest::connect(&self.agent, calls).await {
                    Ok(guest) => return Ok(guest),
                    Err(LinkError::Connect { .. }) => sleep(POLL).await,
                    Err(other) => return Err(other.into()),
                }
            }
        };
        timeout(PATIENCE, connect)
            .await
            .map_err(|_| BenchError::Silent {
                what: "a socket of QEMU",
            })?
    }
}
