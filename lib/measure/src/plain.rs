//! The baselines: QEMU by itself, saving and restoring, and booting.
//!
//! What is saved goes to a file in memory and comes back by `exec:cat`, the
//! way it is commonly done; or into the disk's own file, by savevm.

use crate::{
    BaselineSources, BenchError, Contender, Sample, SilenceSample,
    forked::{SETTLE, fill, ms},
    machine::{Accel, cpu_ms, private_mib},
    monitor::Monitor,
    qemu::{Parts, Qemu, Start},
    report::mib,
    silence::{TALK, during},
};
use forkyard_agent_link::Exec;
use forkyard_guest_image::{Cache, GuestFiles, KernelChoice, Recipe};
use forkyard_types::ByteCount;
use futures::{future::try_join_all, stream};
use serde_json::json;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{process::Command, task::spawn_blocking, time::sleep};

/// The name of a snapshot in a disk's file.
const TAG: &str = "saved";
/// The first command.
const HOSTNAME: [&str; 1] = ["hostname"];

/// The parent of the baseline, and what it takes to start others.
#[derive(Debug)]
pub struct Plain {
    // Before the folder: its files must not go while it runs.
    parent: Qemu,
    nursery: Nursery,
}

/// Source of QEMUs.
#[derive(Debug)]
struct Nursery {
    kernel: PathBuf,
    initramfs: PathBuf,
    image: PathBuf,
    accel: Accel,
    memory_mib: u64,
    vcpus: u8,
    folder: tempfile::TempDir,
    /// Makes the names of files different.
    count: std::sync::atomic::AtomicU32,
}

/// State that the parent left for others to restore.
#[derive(Debug)]
pub struct Saved {
    /// Memory and devices; the caller removes the file.
    pub memory: PathBuf,
    /// Slice that it wrote to until then.
    frozen: PathBuf,
    /// Size of the file.
    pub size: ByteCount,
    pause: Duration,
}

/// Result of one clone, with its times.
struct Born {
    qemu: Qemu,
    running: Option<Duration>,
    first_command: Duration,
}

impl Plain {
    /// Boots it, with as much in its memory as wanted.
    pub async fn boot(
        places: &BaselineSources,
        accel: Accel,
        vcpus: u8,
        memory_mib: u64,
        fill_mib: u64,
    ) -> Result<Self, BenchError> {
        let nursery = Nursery::new(places.clone(), accel, vcpus, memory_mib).await?;
        let parent = nursery.boot().await?;
        parent.booted().await?;
        let fill = fill(fill_mib);
        parent.command(&["sh", "-c", &fill]).await?;
        Ok(Self { nursery, parent })
    }

    /// Save, and as many restores.
    pub async fn migrations(&mut self, clones: u16) -> Result<Sample, BenchError> {
        let begun = Instant::now();
        let saved = self.save().await?;
        let restores = (0..clones).map(|_| self.restored(&saved, &saved.memory, &HOSTNAME, begun));
        let born = try_join_all(restores).await?;
        remove(&saved.memory)?;
        Ok(Sample {
            pause_ms: Some(ms(saved.pause)),
            copied_mib: Some(mib(saved.size)),
            ..sample(Contender::Migrate, clones, born).await?
        })
    }

    /// A snapshot in the disk's file, and as many clones that load it, each from
    /// a copy of that file.
    pub async fn loadvms(&mut self, clones: u16) -> Result<Sample, BenchError> {
        let begun = Instant::now();
        let (saved, pause) = &self.snapshot().await?;
        let nursery = &self.nursery;
        let loads = (0..clones).map(|_| async {
            let slice = nursery.path("qcow2");
            let copied = tokio::fs::copy(saved, &slice).await;
            copied.map_err(BenchError::host("copy the disk of the baseline"))?;
            go_on(
                nursery.start_on(Start::Load { tag: TAG }, slice)?,
                "prelaunch",
                &HOSTNAME,
                begun,
            )
            .await
        });
        let born = try_join_all(loads).await?;
        Ok(Sample {
            pause_ms: Some(ms(*pause)),
            ..sample(Contender::Savevm, clones, born).await?
        })
    }

    /// Saves the parent in its disk's file, whose place this gives; it goes on, on
    /// another.
    async fn snapshot(&mut self) -> Result<(PathBuf, Duration), BenchError> {
        let mut monitor = self.parent.monitor().await?;
        let next = self.nursery.path("qcow2");
        let stopped = Instant::now();
        monitor.ask("stop", json!({})).await?;
        human(&mut monitor, format!("savevm {TAG}")).await?;
        // The parent must not write to what is being copied.
        freeze(&mut monitor, &next).await?;
        monitor.ask("cont", json!({})).await?;
        Ok((self.parent.moved_on(next), stopped.elapsed()))
    }

    /// Measures the pause of the parent for one snapshot.
    pub async fn snapshot_pause(&mut self) -> Result<Duration, BenchError> {
        Ok(self.snapshot().await?.1)
    }

    /// Measures the pause of the parent for one save.
    pub async fn pause(&mut self) -> Result<Duration, BenchError> {
        let saved = self.save().await?;
        remove(&saved.memory)?;
        Ok(saved.pause)
    }

    /// One guest for each copy of what was saved, until all have done a job; then
    /// they end.
    pub async fn restore(
        &self,
        saved: &Saved,
        copies: &[PathBuf],
        job: &[&str],
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        let restores = copies
            .iter()
            .map(|copy| self.restored(saved, copy, job, begun));
        for Born { qemu, .. } in try_join_all(restores).await? {
            let slice = qemu.slice().to_owned();
            qemu.end().await?;
            remove(&slice)?;
        }
        Ok(())
    }

    /// A guest from what was saved, of which `memory` is the file or a copy, that
    /// has run a first command.
    async fn restored(
        &self,
        saved: &Saved,
        memory: &Path,
        command: &[&str],
        begun: Instant,
    ) -> Result<Born, BenchError> {
        let start = Start::Restore { saved: memory };
        let qemu = self.nursery.start(start, &saved.frozen, "qcow2").await?;
        go_on(qemu, "paused", command, begun).await
    }

    /// Runs a command in the parent to its end.
    pub async fn command(&self, argv: &[&str]) -> Result<(), BenchError> {
        self.parent.command(argv).await
    }

    /// Starts a script in the parent; it ends when what is returned is dropped.
    pub async fn script(&self, script: &str) -> Result<Exec, BenchError> {
        self.parent.exec(&["sh", "-c", script]).await
    }

    /// As many cold boots. Their vCPUs run long before there is anything to
    /// compare with a clone, so only the first command is told.
    pub async fn boots(&self, clones: u16) -> Result<Sample, BenchError> {
        let begun = Instant::now();
        let boots = (0..clones).map(|_| async {
            let qemu = self.nursery.boot().await?;
            qemu.booted().await?;
            qemu.command(&HOSTNAME).await?;
            Ok::<_, BenchError>(Born {
                qemu,
                running: None,
                first_command: begun.elapsed(),
            })
        });
        sample(Contender::Boot, clones, try_join_all(boots).await?).await
    }

    /// One save while a program in the parent speaks.
    pub async fn silence(&mut self) -> Result<SilenceSample, BenchError> {
        let words = self.parent.exec(&["sh", "-c", TALK]).await?;
        let words = stream::unfold(words, |mut words| async {
            words.next().await.map(|_| ((), words))
        });
        let (saved, silence) = during(words, self.save()).await?;
        remove(&saved.memory)?;
        Ok(SilenceSample::new(Contender::Migrate, silence, saved.pause))
    }

    /// Saves the parent, which then goes on, on a new slice.
    pub async fn save(&mut self) -> Result<Saved, BenchError> {
        let mut monitor = self.parent.monitor().await?;
        let next = self.nursery.path("qcow2");
        let memory = self.nursery.path("saved");
        let stopped = Instant::now();
        monitor.ask("stop", json!({})).await?;
        let saved = write(&mut monitor, &next, &memory).await;
        monitor.ask("cont", json!({})).await?;
        let pause = stopped.elapsed();
        saved?;
        let size = fs::metadata(&memory).map_err(BenchError::host("look at what was saved"))?;
        Ok(Saved {
            memory,
            frozen: self.parent.moved_on(next),
            size: ByteCount(size.len()),
            pause,
        })
    }
}

/// Has a clone go on that was saved standing still, and so comes back: in
/// `state`, once it is complete.
async fn go_on(
    qemu: Qemu,
    state: &str,
    command: &[&str],
    begun: Instant,
) -> Result<Born, BenchError> {
    let mut monitor = qemu.monitor().await?;
    monitor.until("query-status", "status", state).await?;
    monitor.ask("cont", json!({})).await?;
    let running = Some(begun.elapsed());
    qemu.command(command).await?;
    Ok(Born {
        qemu,
        running,
        first_command: begun.elapsed(),
    })
}

/// A command that QEMU has for people alone; it says something if it fails.
async fn human(monitor: &mut Monitor, line: String) -> Result<(), BenchError> {
    let said = monitor
        .ask("human-monitor-command", json!({"command-line": line}))
        .await?;
    match said.as_str() {
        Some("") | None => Ok(()),
        Some(complaint) => Err(BenchError::Qemu {
            command: "human-monitor-command",
            answer: complaint.trim().to_owned(),
        }),
    }
}

/// Has a machine that stands still write to another slice from here on.
async fn freeze(monitor: &mut Monitor, next: &Path) -> Result<(), BenchError> {
    let stem = next.file_stem().unwrap_or_default().to_string_lossy();
    // A node's name begins with a letter.
    let overlay = json!({
        "device": "disk0",
        "snapshot-file": next,
        "format": "qcow2",
        "snapshot-node-name": format!("slice-{stem}"),
    });
    monitor.ask("blockdev-snapshot-sync", overlay).await?;
    Ok(())
}

/// Freezes the disk and writes everything else to a file.
async fn write(monitor: &mut Monitor, next: &Path, memory: &Path) -> Result<(), BenchError> {
    freeze(monitor, next).await?;
    let unlimited = json!({"max-bandwidth": 1_u64 << 40});
    monitor.ask("migrate-set-parameters", unlimited).await?;
    let uri = json!({"uri": format!("exec:cat >{}", memory.display())});
    monitor.ask("migrate", uri).await?;
    monitor.until("query-migrate", "status", "completed").await
}

impl Nursery {
    async fn new(
        places: BaselineSources,
        accel: Accel,
        vcpus: u8,
        memory_mib: u64,
    ) -> Result<Self, BenchError> {
        let build = spawn_blocking(move || -> Result<_, BenchError> {
            let cache = Cache::new(&places.cache);
            let kernel = cache.kernel(&KernelChoice::Debian, |_| {})?;
            let files = GuestFiles::in_dir(&places.share.join("guest"));
            let initramfs = cache.initramfs(&kernel, &files)?;
            let recipe = Recipe::load(&places.share.join("images/tiny.toml"))?;
            let image = cache.image(&recipe, |_| {})?;
            Ok((kernel.image, initramfs, image.path))
        });
        let (kernel, initramfs, image) = build
            .await
            .map_err(io::Error::from)
            .map_err(BenchError::host("wait for the build"))??;
        Ok(Self {
            kernel,
            initramfs,
            image,
            accel,
            memory_mib,
            vcpus,
            folder: tempfile::Builder::new()
                .prefix("forkyard-bench.")
                .tempdir_in("/dev/shm")
                .map_err(BenchError::host("make a folder in /dev/shm"))?,
            count: Default::default(),
        })
    }

    async fn boot(&self) -> Result<Qemu, BenchError> {
        let start = Start::Boot {
            kernel: &self.kernel,
            initramfs: &self.initramfs,
        };
        self.start(start, &self.image, "raw").await
    }

    async fn start(
        &self,
        start: Start<'_>,
        backing: &Path,
        format: &str,
    ) -> Result<Qemu, BenchError> {
        let slice = self.path("qcow2");
        let failed = BenchError::host("make a slice with qemu-img");
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", format, "-b"])
            .arg(backing)
            .arg(&slice)
            .status()
            .await
            .map_err(&failed)?;
        if !made.success() {
            return Err(failed(io::Error::other(made.to_string())));
        }
        self.start_on(start, slice)
    }

    fn start_on(&self, start: Start<'_>, slice: PathBuf) -> Result<Qemu, BenchError> {
        Qemu::start(Parts {
            accel: self.accel,
            vcpus: self.vcpus,
            memory_mib: self.memory_mib,
            slice,
            monitor: self.path("qmp"),
            agent: self.path("agent"),
            start,
        })
    }

    fn path(&self, kind: &str) -> PathBuf {
        let number = self
            .count
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.folder.path().join(format!("{number}.{kind}"))
    }
}

/// Makes a sample of the slowest of the clones; they end.
async fn sample(contender: Contender, clones: u16, born: Vec<Born>) -> Result<Sample, BenchError> {
    let first_command = born.iter().map(|clone| clone.first_command).max();
    let running = born.iter().filter_map(|clone| clone.running).max();
    let pids = || born.iter().filter_map(|clone| clone.qemu.pid());
    let (cpu, private) = (cpu_ms(pids()), private_mib(pids()));
    sleep(SETTLE).await;
    let settled = private_mib(pids());
    for Born { qemu, .. } in born {
        let slice = qemu.slice().to_owned();
        qemu.end().await?;
        remove(&slice)?;
    }
    Ok(Sample {
        contender,
        clones,
        running_ms: running.map(ms),
        first_command_ms: first_command.map(ms).unwrap_or_default(),
        cpu_ms: cpu / f64::from(clones),
        private_mib: private,
        settled_mib: settled,
        pause_ms: None,
        copied_mib: None,
        report: None,
    })
}

fn remove(file: &Path) -> Result<(), BenchError> {
    fs::remove_file(file).map_err(BenchError::host("remove a file of the baseline"))
}
