//! The dispatcher with sched_ext, and its test in a guest.
//!
//! ```text
//! build: dispatcher with the feature, scheduler in BPF --> target/sched-ext
//! test:  a kernel with sched_ext, once, in the cache
//!        + an initramfs of what was built --> a guest of two CPUs, in QEMU
//! ```
//!
//! Debian's kernels are built without sched_ext; their source has it.

use crate::{dist::Profile, packages, run::program};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

/// Packages that the dispatcher's feature and the scheduler take, beyond the
/// usual.
const TO_BUILD: [&str; 6] = [
    "clang-19",
    "libbpf-dev",
    "libelf-dev",
    "make",
    "pkg-config",
    "zlib1g-dev",
];
/// Packages that the kernel and the guest take.
const TO_TEST: [&str; 9] = [
    "bc",
    "bison",
    "busybox-static",
    "cpio",
    "dwarves",
    "flex",
    "libssl-dev",
    SOURCE,
    "qemu-system-x86",
];
const SOURCE: &str = "linux-source-6.12";
const FEATURE: &str = "forkyard-dispatcher/sched-ext";
const CONFIG: &str = "lib/vcpu-dispatch/sched-ext/kernel.config";
/// Last line of the guest's output.
const PASSED: &str = "guest: the tests ended with 0";
/// Seconds that the guest may take: ten times what it does on a busy machine.
const PATIENCE: &str = "3600";

const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tracefs trace /sys/kernel/tracing
mount -t tmpfs tmp /tmp
export RUST_BACKTRACE=0 FORKYARD_DISPATCHER=/bin/forkyard-dispatcher
export FORKYARD_SCHED_EXT=/lib/forkyard.bpf.o
/bin/sched_ext --ignored --skip stand_in --test-threads=1 --nocapture $TESTS
echo \"guest: the tests ended with $?\"
dmesg | grep -i -E 'sched_ext|warn|bug|oops' | tail -n 40
reboot -f
";

/// Files that were built.
#[derive(Debug)]
pub struct Built {
    dispatcher: PathBuf,
    object: PathBuf,
    tests: PathBuf,
}

/// Builds the dispatcher with the feature, its tests, and the scheduler in BPF, into
/// `target/sched-ext`.
pub fn build(root: &Path) -> Result<Built> {
    packages::install(root, &TO_BUILD)?;
    let folder = root.join("target/sched-ext");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let object = folder.join("forkyard.bpf.o");
    program(Path::new("clang-19"), root)
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror",
        ])
        .args(["-Wno-unused-function", "-I/usr/include/x86_64-linux-gnu"])
        .args(["-c", "lib/vcpu-dispatch/sched-ext/forkyard.bpf.c", "-o"])
        .args([&object])
        .done()?;
    // As a whole, for then dependencies have the features they have elsewhere.
    let said = Profile::Quick
        .cargo(root)
        .args(["test", "--profile", Profile::Quick.name()])
        .args(["--workspace", "--no-run"])
        .args(["--features", FEATURE, "--test", "sched_ext"])
        .args(["--message-format", "json-render-diagnostics"])
        .printed()?;
    let (mut tests, mut dispatcher) = (None, None);
    for line in said.lines() {
        let Some(made) = field(line, "executable") else {
            continue;
        };
        match Path::new(made).file_name().and_then(|name| name.to_str()) {
            Some("forkyard-dispatcher") => dispatcher = Some(made),
            Some(name) if name.starts_with("sched_ext-") => tests = Some(made),
            Some(_) | None => {}
        }
    }
    let keep = |from: Option<&str>, name: &str| {
        let from = from.with_context(|| format!("cargo made no {name}"))?;
        let to = folder.join(name);
        fs::copy(from, &to).with_context(|| from.to_owned())?;
        anyhow::Ok(to)
    };
    Ok(Built {
        dispatcher: keep(dispatcher, "forkyard-dispatcher")?,
        tests: keep(tests, "sched_ext")?,
        object,
    })
}

/// A field of what cargo says in JSON, which holds a path without escapes.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = line.split_once(&format!("\"{name}\":\""))?;
    after.split_once('"').map(|(value, _)| value)
}

/// Builds all of it, and runs the tests; `only` those whose names hold this, if any.
pub fn test(root: &Path, only: &[String]) -> Result<()> {
    packages::install(root, &TO_TEST)?;
    let built = build(root)?;
    refuses(root, &built)?;
    let kernel = kernel(root)?;
    let initramfs = pack(root, &built, only)?;
    let mut passed = false;
    let run = program(Path::new("timeout"), root)
        .args([PATIENCE, "qemu-system-x86_64"])
        .args(["-machine", "pc", "-cpu", "max", "-m", "768", "-no-reboot"])
        // Time is told by instructions, not by the host's clock: what else the host
        // does takes nothing from the guest's CPUs.
        .args([
            "-accel",
            "tcg,thread=single",
            "-icount",
            "shift=1,sleep=off",
        ])
        // The table in which the guest finds its CPUs has one of each socket.
        .args(["-smp", "2,sockets=2,cores=1,threads=1", "-nodefaults"])
        .args(["-display", "none", "-serial", "stdio", "-append"])
        .args(["console=ttyS0 quiet panic=-1 reboot=t tsc=reliable random.trust_cpu=on"])
        .args([
            Path::new("-kernel"),
            &kernel,
            Path::new("-initrd"),
            &initramfs,
        ])
        .done_seeing(|line| passed |= line.trim() == PASSED);
    run.context("the guest")?;
    ensure!(passed, "the tests in the guest did not pass: see above");
    Ok(())
}

/// Checks that the dispatcher says so where the kernel has no sched_ext.
fn refuses(root: &Path, built: &Built) -> Result<()> {
    if Path::new("/sys/kernel/sched_ext").exists() {
        println!("skipped: this host has sched_ext, and refuses no scheduler");
        return Ok(());
    }
    let socket = root.join("target/sched-ext/sched.sock");
    let refused = program(&built.dispatcher, root)
        .args([Path::new("serve"), Path::new("--socket"), &socket])
        .args([Path::new("--sched-ext"), &built.object])
        .done();
    ensure!(refused.is_err(), "a dispatcher runs without sched_ext");
    Ok(())
}

/// The kernel: from the cache, or built anew where the source or the configuration
/// is another.
fn kernel(root: &Path) -> Result<PathBuf> {
    let version = program(Path::new("dpkg-query"), root)
        .args(["-W", "-f", "${Version}", SOURCE])
        .printed()?;
    let cache = std::env::var_os("FORKYARD_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| forkyard_guest_image::Cache::DEFAULT_DIR.into());
    let folder = cache.join("sched-ext").join(version);
    let (image, of) = (folder.join("bzImage"), folder.join("kernel.config"));
    let config = root.join(CONFIG);
    let wanted = fs::read_to_string(&config).context(CONFIG)?;
    if image.exists() && fs::read_to_string(&of).is_ok_and(|had| had == wanted) {
        return Ok(image);
    }
    println!("building a kernel with sched_ext, once: this takes ten minutes and 2 GiB");
    let work = folder.join("work");
    let tree = work.join(SOURCE);
    let out = work.join("build");
    // One may be left of a build that was ended.
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    program(Path::new("tar"), &work)
        .args(["-xf", &format!("/usr/src/{SOURCE}.tar.xz")])
        .done()?;
    let make = |args: &[&str]| {
        program(Path::new("make"), &tree)
            .args(["-s".to_owned(), format!("O={}", out.display())])
            .args(args)
            .done()
    };
    make(&["tinyconfig"])?;
    program(&tree.join("scripts/kconfig/merge_config.sh"), &out)
        .args(["-m", "-O", ".", ".config"])
        .args([&config])
        .printed()?;
    make(&["olddefconfig"])?;
    taken(&wanted, &out.join(".config"))?;
    let processors = std::thread::available_parallelism()?.to_string();
    make(&["-j", &processors, "bzImage"])?;
    fs::copy(out.join("arch/x86/boot/bzImage"), &image).context("bzImage")?;
    fs::write(of, wanted)?;
    fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    Ok(image)
}

/// An option that lacks what it depends on is left out without a word.
fn taken(wanted: &str, config: &Path) -> Result<()> {
    let got = fs::read_to_string(config).with_context(|| config.display().to_string())?;
    let is_there = |line: &&str| line.starts_with('#') || got.lines().any(|had| had == *line);
    let lost: Vec<_> = wanted.lines().filter(|line| !is_there(line)).collect();
    if !lost.is_empty() {
        bail!("the kernel does not take {}", lost.join(", "));
    }
    Ok(())
}

/// Packs what the guest boots from.
fn pack(root: &Path, built: &Built, only: &[String]) -> Result<PathBuf> {
    let folder = root.join("target/sched-ext/root");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    for name in ["bin", "dev", "lib", "lib64", "proc", "sys", "tmp"] {
        fs::create_dir_all(folder.join(name)).context("the initramfs")?;
    }
    let copy = |from: &Path, to: &str| {
        let to = folder.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap_or(&folder))?;
        fs::copy(from, to).with_context(|| from.display().to_string())
    };
    copy(Path::new("/bin/busybox"), "bin/busybox")?;
    copy(&built.object, "lib/forkyard.bpf.o")?;
    for (program, to) in [
        (&built.dispatcher, "bin/forkyard-dispatcher"),
        (&built.tests, "bin/sched_ext"),
    ] {
        copy(program, to)?;
        for library in libraries(root, program)? {
            copy(Path::new(&library), &library)?;
        }
    }
    symlink("busybox", folder.join("bin/sh")).context("the initramfs")?;
    let init = folder.join("init");
    fs::write(&init, INIT.replace("$TESTS", &only.join(" "))).context("the initramfs")?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("the initramfs")?;
    let script = "find . | cpio --quiet -o -H newc -R 0:0 | gzip -1 >../initramfs";
    program(Path::new("sh"), &folder)
        .args(["-c", script])
        .done()?;
    Ok(root.join("target/sched-ext/initramfs"))
}

/// The libraries a program loads, as `ldd` lists them: `name => /path (address)`, or
/// `/path (address)`.
fn libraries(root: &Path, of: &Path) -> Result<Vec<String>> {
    let listed = program(Path::new("ldd"), root).args([of]).printed()?;
    let paths = listed.lines().filter_map(|line| {
        let line = line.trim().split(" (").next()?;
        let path = line.rsplit(" => ").next()?;
        path.starts_with('/').then(|| path.to_owned())
    });
    Ok(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","executable":"/a/b-1","fresh":true}"#;
        assert_eq!(field(line, "executable"), Some("/a/b-1"));
        assert_eq!(field(r#"{"executable":null}"#, "executable"), None);
    }

    #[test]
    fn what_a_kernel_does_not_take_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join(".config");
        fs::write(&config, "CONFIG_A=y\n# CONFIG_B is not set\n").expect("written");
        taken("# said\nCONFIG_A=y\n", &config).expect("taken");
        let lost = taken("CONFIG_A=y\nCONFIG_B=y\n", &config).expect_err("lost");
        assert!(lost.to_string().contains("CONFIG_B=y"), "{lost}");
    }
}
