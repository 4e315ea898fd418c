//! KVM, tried on machines that have none: in a guest of QEMU's translator, whose
//! processor has AMD's virtualization, nested paging included.
//!
//! ```text
//! base:    Debian, a kernel with KVM, QEMU, and what Forkyard runs; once, in the cache
//! payload: what was built, a guest's image and kernel from the cache, the tests
//! lab:     boots the base, runs tests of whole hosts on /dev/kvm, powers off
//! ```
//!
//! All of it is KVM as the kernel has it (its clock, its interrupt controller, its notes of
//! what was written), only slow: what passes is right, and how long it took says little.
//! One processor: Linux patches its own code while others run it, which the translator
//! does not see.

use crate::{packages, programs, run::program};
use anyhow::{Context, Result, ensure};
use forkyard_guest_image::Cache;
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Packages that building and booting the lab take on this host.
const TO_RUN: [&str; 4] = ["e2fsprogs", "mmdebstrap", "qemu-system-x86", "qemu-utils"];
/// Kernels that are new enough for live forks.
const KERNELS: &str = "^linux-image-6[.]12[.0-9]*[+]deb12-amd64$";
/// Packages in the lab beside a kernel.
const IN_LAB: [&str; 14] = [
    "busybox-static",
    "e2fsprogs",
    "gcc",
    "initramfs-tools",
    "iproute2",
    "kmod",
    "libc6-dev",
    "libsqlite3-0",
    "libzstd1",
    "nftables",
    "procps",
    "python3-minimal",
    "qemu-system-x86",
    "qemu-utils",
];
/// MiB of the lab's disks. They are sparse.
const BASE_MIB: u32 = 3072;
const PAYLOAD_MIB: u32 = 2048;
/// Seconds that the lab may take: ten times what it does.
const PATIENCE: &str = "14400";
/// Tests that show that it works at all.
const SMOKE: [&str; 3] = [
    "clock::",
    "live::memory_of_a_live_fork",
    "fork::memory_and_disk",
];
/// Tests that are tried: those whose claim KVM could break.
const TESTS: [&str; 12] = [
    "again::",
    "balloon::",
    "checkpoint::",
    "clock::",
    "crash::",
    "fork::",
    "generations::",
    "identity::",
    "live::",
    "network::",
    "pause::",
    "warm::",
];
/// Measurement: forks beside QEMU's migration, once. The lab is slow; ratios of one run are
/// what counts.
const BENCH: &str = "FORKYARD_CACHE_DIR=/payload/cache FORKYARD_RUN_DIR=/run/lab \
    FORKYARD_STATE_DIR=/tmp/lab FORKYARD_ACCEL=kvm /payload/dist/bin/forkyard bench \
    --only race --clones 1,4 --rounds 3 --vcpus 1 --memory 192 --fill 16 --out /tmp/bench 2>&1";
/// Last line of the lab's output.
const PASSED: &str = "lab: it ended with 0";

/// The first program of the lab.
const INIT: &str = "#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys 2>/dev/null
mkdir -p /dev/pts /dev/shm /payload
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs -o size=2G tmp /tmp && chmod 1777 /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
/usr/sbin/modprobe -a kvm_amd fuse tun bridge nf_tables
# As udev has it.
chown 0:kvm /dev/kvm && chmod 660 /dev/kvm
mount /dev/vdb /payload
sh /payload/run
echo \"lab: it ended with $?\"
dmesg | grep -iE 'oops|soft lockup|call trace' | tail -n 20
sync
echo o > /proc/sysrq-trigger
sleep 60
";

/// Work to be done in the lab.
#[derive(Debug)]
pub enum Work<'a> {
    /// Tests that show that it works at all.
    Smoke,
    /// Tests whose names hold one of these; all that are tried if there are none.
    Tests(&'a [String]),
    /// Measuring.
    Bench,
}

impl Work<'_> {
    /// The command that does it.
    fn command(&self) -> String {
        let names: Vec<&str> = match self {
            Self::Bench => return BENCH.to_owned(),
            Self::Smoke => SMOKE.to_vec(),
            Self::Tests([]) => TESTS.to_vec(),
            Self::Tests(only) => only.iter().map(String::as_str).collect(),
        };
        format!("/payload/needs_root {} 2>&1", names.join(" "))
    }
}

/// Builds what is needed, has the lab do the work, and passes on what that prints.
pub fn run(root: &Path, dist: &Path, work: &Work<'_>) -> Result<()> {
    packages::install(root, &TO_RUN)?;
    let base = base(root)?;
    let payload = payload(root, dist, &work.command())?;
    let mut passed = false;
    let drive = |path: &Path| format!("file={},if=virtio,snapshot=on,format=raw", path.display());
    program(Path::new("timeout"), root)
        .args([PATIENCE, "qemu-system-x86_64"])
        .args([
            "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1",
        ])
        .args(["-m", "6G", "-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-device", "virtio-rng-pci"])
        .arg("-kernel")
        .arg(base.join("vmlinuz"))
        .arg("-initrd")
        .arg(base.join("initrd"))
        .args(["-drive", &drive(&base.join("base.img"))])
        .args(["-drive", &drive(&payload)])
        .args([
            "-append",
            "root=/dev/vda rw console=ttyS0 quiet panic=-1 init=/lab-init",
        ])
        .done_seeing(|line| passed |= line.trim() == PASSED)
        .context("the lab")?;
    ensure!(passed, "the lab failed: see above");
    Ok(())
}

/// The folder of the lab's kernel and disk: from the cache, or made once.
fn base(root: &Path) -> Result<PathBuf> {
    let kernel = newest_kernel(root)?;
    let cache = env::var_os("FORKYARD_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Cache::DEFAULT_DIR.into());
    let folder = cache.join("kvm-lab").join(&kernel);
    let (of, wanted) = (
        folder.join("made-of"),
        format!("{IN_LAB:?}{BASE_MIB}{INIT}"),
    );
    if fs::read_to_string(&of).is_ok_and(|had| had == wanted) {
        return Ok(folder);
    }
    println!("making the lab, once: this takes four minutes and 2 GiB");
    // What is left of one that was not finished.
    let _ = fs::remove_dir_all(&folder);
    let tree = folder.join("root");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    program(Path::new("mmdebstrap"), root)
        .args([
            "--quiet",
            "--variant=minbase",
            "--aptopt=APT::Install-Recommends \"false\"",
        ])
        .args([
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
        ])
        .arg(format!("--include={kernel},{}", IN_LAB.join(",")))
        .arg("bookworm")
        .arg(&tree)
        .done()?;
    let init = tree.join("lab-init");
    fs::write(&init, INIT).context("lab-init")?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let boot = |from: &str, to: &str| {
        let version = kernel.trim_start_matches("linux-image-");
        let from = tree.join("boot").join(format!("{from}-{version}"));
        fs::copy(&from, folder.join(to)).with_context(|| from.display().to_string())
    };
    boot("vmlinuz", "vmlinuz")?;
    boot("initrd.img", "initrd")?;
    disk(root, &tree, &folder.join("base.img"), BASE_MIB)?;
    fs::remove_dir_all(&tree)?;
    fs::write(of, wanted)?;
    Ok(folder)
}

/// The newest of the kernels that Debian has for this.
fn newest_kernel(root: &Path) -> Result<String> {
    let said = program(Path::new("apt-cache"), root)
        .args(["search", "--names-only", KERNELS])
        .printed()?;
    let names = said.lines().filter_map(|line| line.split(' ').next());
    let numbers = |name: &str| -> Vec<u32> {
        let parts = name.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    let newest = names.max_by_key(|name| numbers(name));
    newest.map(ToOwned::to_owned).context(
        "Debian has no linux-image-6.12 for bookworm: apt-get update, with bookworm-security",
    )
}

/// A disk with what has been built, what guests boot, and what to run.
fn payload(root: &Path, dist: &Path, command: &str) -> Result<PathBuf> {
    let tests = programs::of_whole_hosts(root)?;
    let folder = root.join("target/kvm-lab");
    let tree = folder.join("payload");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(tree.join("cache/images"))?;
    let copy = |from: &Path, to: &Path| {
        let copied = program(Path::new("cp"), root).args(["-a", "--sparse=always", "--"]);
        copied.arg(from).arg(to).done()
    };
    copy(dist, &tree.join("dist"))?;
    copy(&tests, &tree.join("needs_root"))?;
    // The sources that tests compile, where the tests know them to be.
    copy(&root.join("e2e"), &tree.join("e2e"))?;
    let cache = env::var_os("FORKYARD_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Cache::DEFAULT_DIR.into());
    for part in ["kernels", "initramfs"] {
        copy(&cache.join(part), &tree.join("cache").join(part))?;
    }
    for image in fs::read_dir(cache.join("images"))?.flatten() {
        if image.file_name().to_string_lossy().starts_with("tiny-") {
            copy(&image.path(), &tree.join("cache/images"))?;
        }
    }
    let run = format!(
        "chmod 755 /payload\n\
         mkdir -p {root} && ln -s /payload/e2e {root}/e2e\n\
         export FORKYARD_DIST=/payload/dist FORKYARD_CACHE=/payload/cache FORKYARD_E2E_ACCEL=kvm\n\
         export FORKYARD_PATIENCE=240 FORKYARD_E2E_HOSTS=1 RUST_TEST_THREADS=1 RUST_BACKTRACE=0\n\
         {command}\n",
        root = root.display(),
    );
    fs::write(tree.join("run"), run)?;
    let image = folder.join("payload.img");
    disk(root, &tree, &image, PAYLOAD_MIB)?;
    fs::remove_dir_all(&tree)?;
    Ok(image)
}

/// Makes an ext4 file system of a folder.
fn disk(root: &Path, tree: &Path, image: &Path, mib: u32) -> Result<()> {
    let _ = fs::remove_file(image);
    program(Path::new("mke2fs"), root)
        .args(["-q", "-t", "ext4", "-d"])
        .arg(tree)
        .arg(image)
        .arg(format!("{mib}M"))
        .done()
}
