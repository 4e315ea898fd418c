//! The baselines: QEMU by itself, with the same machine, kernel and guest.
//!
//! Migration goes to a file in memory and back by `exec:cat`, the way it is
//! commonly done; so these QEMUs are not sandboxed, which only helps them. The
//! guest's network card leads nowhere.

use crate::{Options, Places, Sample, forked::fill, monitor::Monitor};
use anyhow::{Context, Result, bail};
use forkyard_guestlink::{ExecOut, Guest};
use forkyard_recipe::{Cache, GuestFiles, KernelChoice, Recipe};
use forkyard_types::ExitStatus;
use futures::future::try_join_all;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tokio::{
    process::{Child, Command},
    sync::mpsc,
    time::{sleep, timeout},
};

const CMDLINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check mitigations=off";
const PATIENCE: Duration = Duration::from_secs(120);

/// The parent of the baseline.
#[derive(Debug)]
pub struct Plain {
    kernel: PathBuf,
    initramfs: PathBuf,
    image: PathBuf,
    memory_mib: u64,
    vcpus: u8,
    folder: tempfile::TempDir,
    parent: tokio::sync::Mutex<Machine>,
    count: AtomicU32,
}

/// One QEMU; killed when dropped.
#[derive(Debug)]
struct Machine {
    process: Child,
    monitor: PathBuf,
    agent: PathBuf,
    /// The slice it writes to.
    slice: PathBuf,
}

impl Plain {
    /// Boots it, with as much in its memory as wanted.
    pub async fn boot(places: &Places, options: &Options) -> Result<Self> {
        let (places, options) = (places.clone(), options.clone());
        let found = tokio::task::spawn_blocking(move || -> Result<_> {
            let cache = Cache::new(&places.cache);
            let kernel = cache.kernel(&KernelChoice::Debian, |_| {})?;
            let initramfs =
                cache.initramfs(&kernel, &GuestFiles::in_dir(&places.share.join("guest")))?;
            let image = cache.image(
                &Recipe::load(&places.share.join("images/tiny.toml"))?,
                |_| {},
            )?;
            Ok((kernel.image, initramfs, image.path))
        });
        let (kernel, initramfs, image) = found.await??;
        let folder = tempfile::Builder::new()
            .prefix("forkyard-bench.")
            .tempdir_in("/dev/shm")?;
        let mut this = Self {
            kernel,
            initramfs,
            image,
            memory_mib: options.memory_mib,
            vcpus: options.vcpus,
            parent: tokio::sync::Mutex::new(Machine::none()?),
            folder,
            count: AtomicU32::new(0),
        };
        let parent = this.start(None).await?;
        parent
            .command(&["sh", "-c", &fill(options.fill_mib)], true)
            .await?;
        this.parent = tokio::sync::Mutex::new(parent);
        Ok(this)
    }

    /// Save, and as many restores.
    pub async fn migrate(&self, clones: u16) -> Result<Sample> {
        let mut parent = self.parent.lock().await;
        let mut monitor = Monitor::connect(&parent.monitor).await?;
        let saved = self.folder.path().join("saved");
        let next = self.path("qcow2");
        let begun = Instant::now();
        monitor.ask("stop", json!({})).await?;
        let stopped = Instant::now();
        let node = json!({"device": "disk0", "snapshot-file": next, "format": "qcow2", "snapshot-node-name": name(&next)});
        monitor.ask("blockdev-snapshot-sync", node).await?;
        let unlimited = json!({"max-bandwidth": 1_u64 << 40});
        monitor.ask("migrate-set-parameters", unlimited).await?;
        monitor
            .ask(
                "migrate",
                json!({"uri": format!("exec:cat >{}", saved.display())}),
            )
            .await?;
        monitor
            .until("query-migrate", "status", "completed")
            .await?;
        monitor.ask("cont", json!({})).await?;
        let pause = stopped.elapsed();
        let frozen = std::mem::replace(&mut parent.slice, next);
        let restores = (0..clones).map(|_| async {
            let clone = self.start(Some((&frozen, &saved))).await?;
            let mut monitor = Monitor::connect(&clone.monitor).await?;
            // It was saved standing still, and so it is restored.
            monitor.until("query-status", "status", "paused").await?;
            monitor.ask("cont", json!({})).await?;
            let running = begun.elapsed();
            clone.command(&["hostname"], false).await?;
            Ok::<_, anyhow::Error>((clone, running, begun.elapsed()))
        });
        let restored = try_join_all(restores).await?;
        fs::remove_file(&saved)?;
        sample("migrate", clones, restored, Some(pause)).await
    }

    /// As many cold boots.
    pub async fn boots(&self, clones: u16) -> Result<Sample> {
        let begun = Instant::now();
        let boots = (0..clones).map(|_| async {
            let machine = self.start(None).await?;
            let running = begun.elapsed();
            machine.command(&["hostname"], true).await?;
            Ok::<_, anyhow::Error>((machine, running, begun.elapsed()))
        });
        sample("boot", clones, try_join_all(boots).await?, None).await
    }

    /// A QEMU that boots, or restores what was saved over a frozen disk.
    async fn start(&self, restore: Option<(&Path, &Path)>) -> Result<Machine> {
        let slice = self.path("qcow2");
        let (backing, format) = match restore {
            Some((frozen, _)) => (frozen, "qcow2"),
            None => (self.image.as_path(), "raw"),
        };
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", format, "-b"])
            .arg(backing)
            .arg(&slice)
            .status()
            .await?;
        if !made.success() {
            bail!("qemu-img failed");
        }
        let (monitor, agent) = (self.path("qmp"), self.path("agent"));
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args("-nodefaults -no-user-config -display none -vga none -no-reboot -M q35 -accel tcg -cpu max".split(' '))
            .args(["-global", "apic-common.vapic=off", "-smp", &self.vcpus.to_string()])
            .args(["-m", &self.memory_mib.to_string(), "-serial", "null"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()))
            .args(["-device", "virtio-serial-pci,id=serial0,addr=4", "-chardev"])
            .arg(format!("socket,id=agent,path={},server=on,wait=off", agent.display()))
            .args(["-device", "virtserialport,bus=serial0.0,chardev=agent,name=org.forkyard.agent"])
            .args(["-device", "virtio-balloon-pci,id=balloon0,addr=5,free-page-reporting=on"])
            .arg("-drive")
            // The parent goes on writing its own disk, which holds a lock.
            .arg(format!("if=none,id=disk0,format=qcow2,file={},file.locking=off,backing.file.locking=off", slice.display()))
            .args(["-device", "virtio-blk-pci,addr=2,drive=disk0"])
            .args(["-netdev", "hubport,id=net0,hubid=0"])
            .args(["-device", "virtio-net-pci,id=nic0,addr=3,netdev=net0,romfile="]);
        match restore {
            Some((_, saved)) => command
                .arg("-incoming")
                .arg(format!("exec:cat {}", saved.display())),
            None => command
                .arg("-kernel")
                .arg(&self.kernel)
                .arg("-initrd")
                .arg(&self.initramfs)
                .args(["-append", CMDLINE]),
        };
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Machine {
            process,
            monitor,
            agent,
            slice,
        })
    }

    fn path(&self, kind: &str) -> PathBuf {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("{number}.{kind}"))
    }
}

impl Machine {
    fn none() -> Result<Self> {
        let process = Command::new("true").kill_on_drop(true).spawn()?;
        Ok(Self {
            process,
            monitor: PathBuf::new(),
            agent: PathBuf::new(),
            slice: PathBuf::new(),
        })
    }

    /// Runs a command in the guest to its end; `booting`: once it is up.
    async fn command(&self, argv: &[&str], booting: bool) -> Result<()> {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let (calls, _calls) = mpsc::channel(1);
        let guest = timeout(PATIENCE, async {
            loop {
                match Guest::connect(&self.agent, calls.clone()).await {
                    Ok(guest) => return guest,
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
            }
        })
        .await
        .context("no agent")?;
        if booting {
            guest.hello(PATIENCE).await?;
        }
        let mut running = guest.exec(argv, Vec::new()).await?;
        loop {
            match timeout(PATIENCE, running.next())
                .await
                .context("the guest is silent")?
            {
                Some(ExecOut::Output { .. }) => {}
                Some(ExecOut::Ended(ExitStatus::Code(0))) => return Ok(()),
                failed @ (Some(ExecOut::Ended(_) | ExecOut::NotStarted(_) | ExecOut::Lost(_))
                | None) => {
                    bail!("the command failed: {failed:?}")
                }
            }
        }
    }
}

async fn sample(
    contender: &str,
    clones: u16,
    machines: Vec<(Machine, Duration, Duration)>,
    pause: Option<Duration>,
) -> Result<Sample> {
    let last =
        |times: Vec<Duration>| times.into_iter().max().unwrap_or_default().as_secs_f64() * 1e3;
    let sample = Sample {
        contender: contender.to_owned(),
        clones,
        running_ms: last(machines.iter().map(|(_, running, _)| *running).collect()),
        first_command_ms: last(machines.iter().map(|(_, _, command)| *command).collect()),
        pause_ms: pause.map(|pause| pause.as_secs_f64() * 1e3),
    };
    for (mut machine, _, _) in machines {
        machine.process.kill().await?;
        fs::remove_file(&machine.slice)?;
    }
    Ok(sample)
}

/// A node's name: QEMU wants letters first and none of a path's.
fn name(slice: &Path) -> String {
    let stem = slice.file_stem().unwrap_or_default().to_string_lossy();
    format!("slice-{stem}")
}
