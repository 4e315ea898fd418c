//! The initramfs: makes any Linux root file system a guest, unchanged.
//!
//! ```text
//! modules -> root disk -> our own folder on it -> the agent -> the image's init
//!                                                          or its entry point
//! ```
//!
//! The image's init, and whatever it starts, goes into a cgroup of its own,
//! which it sees as the root by a namespace: the agent, outside, can hold all
//! of it still.

pub mod entry;
mod root;

use crate::{AGENT, PROGRAM};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::reboot::{RebootMode, reboot},
};
use std::{
    convert::Infallible,
    ffi::CString,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, ExitCode},
};

/// The image's init, where it does not say otherwise.
const INITS: [&str; 4] = [
    "/sbin/init",
    "/etc/init",
    "/bin/init",
    "/usr/lib/systemd/systemd",
];

/// The command line's word for the smallest piece of free memory that is reported.
const REPORTED: &str = "page_reporting.page_reporting_order";
/// Parameter of page reporting while the kernel runs.
const REPORTING: &str = "/sys/module/page_reporting/parameters/page_reporting_order";

/// Result of a step; an error names the step and its failure.
pub type Outcome<T = ()> = Result<T, String>;

/// Says what was being done when something failed.
pub fn doing<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> String {
    let what = what.into();
    move |error| format!("{what}: {error}")
}

/// Process 1: does not return unless there is nothing to run.
pub fn main() -> ExitCode {
    match boot() {
        Ok(never) => match never {},
        Err(why) => {
            say(&format!("forkyard: this guest cannot start: {why}"));
            power_off()
        }
    }
}

fn boot() -> Outcome<Infallible> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_at(kind, Path::new(place))?;
    }
    mount_shared_memory()?;
    link_streams()?;
    let cmdline =
        fs::read_to_string("/proc/cmdline").map_err(doing("read the kernel's command line"))?;
    let option = |name: &str| {
        cmdline
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    load_modules()?;
    if let Some(order) = option(REPORTED) {
        report_by(order);
    }
    if option("forkyard.probe") == Some("1") {
        say("forkyard-probe-ok");
        power_off();
    }
    root::enter(option("root").unwrap_or("/dev/vda"))?;
    let procs = crate::agent::userland::prepare()?;
    start_agent()?;
    // From here on this is the image's process.
    fs::write(&procs, "1").map_err(doing("enter the image's cgroup"))?;
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(doing("make the cgroup look like the root"))?;
    let entry = entry::wanted();
    // An entry point is what the image is for, whatever else it brings: many
    // container images have an init that was never meant to run.
    let own = INITS.into_iter().filter(|_| entry.is_none());
    let chosen = option("forkyard.init")
        .into_iter()
        .chain(own)
        .find(|path| Path::new(path).exists());
    match (chosen, entry) {
        (Some(path), _) => {
            let error = Command::new(path).exec();
            Err(format!("run {path}: {error}"))
        }
        (None, Some(entry)) if entry.starts() && entry.is_init() => Err(entry::become_init(&entry)),
        // An image without an init, a container's say: orphans are still reaped.
        (None, entry) => entry::see_through(entry),
    }
}

fn mount_at(kind: &str, place: &Path) -> Outcome {
    fs::create_dir_all(place).map_err(doing(format!("create {}", place.display())))?;
    mount_with(kind, place, "")
}

/// Makes what programs take for their own streams; container images expect it to be there, and the device file system
/// has none of it.
fn link_streams() -> Outcome {
    let links = [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ];
    for (to, link) in links {
        if let Err(error) = symlink(to, link)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(doing(format!("link {link}"))(error));
        }
    }
    Ok(())
}

/// Mounts what shm_open(3) takes. Small inits do not, and the others leave one that is there alone.
fn mount_shared_memory() -> Outcome {
    let place = "/dev/shm";
    fs::create_dir_all(place).map_err(doing(format!("create {place}")))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("tmpfs"),
        place,
        Some("tmpfs"),
        flags,
        Some("mode=1777"),
    )
    .map_err(doing(format!("mount {place}")))
}

/// Mounts a file system on a folder that is there.
fn mount_with(kind: &str, place: &Path, options: &str) -> Outcome {
    let options = Some(options).filter(|options| !options.is_empty());
    mount(Some(kind), place, Some(kind), MsFlags::empty(), options)
        .map_err(doing(format!("mount {kind} on {}", place.display())))
}

/// Loads the modules that the initramfs brings, in its order. One that is
/// built into the kernel, or of no use to this machine, is no failure.
fn load_modules() -> Outcome {
    let Ok(order) = fs::read_to_string("/modules") else {
        return Ok(());
    };
    for name in order.lines() {
        let path = Path::new("/lib/modules").join(name);
        let file = File::open(&path).map_err(doing(format!("open {}", path.display())))?;
        if let Err(error) = nix::kmod::finit_module(
            &file,
            &CString::default(),
            nix::kmod::ModuleInitFlags::empty(),
        ) && error != nix::Error::EEXIST
        {
            say(&format!("forkyard: module {name} not loaded: {error}"));
        }
    }
    Ok(())
}

/// Says once more in what pieces free memory is to be reported: Linux before 6.2
/// takes its own size when the balloon is found, whatever the command line says.
/// A kernel that cannot report, or was not asked to, goes on without.
fn report_by(order: &str) {
    if let Err(error) = fs::write(REPORTING, order)
        && Path::new(REPORTING).exists()
    {
        say(&format!(
            "forkyard: free memory is not reported by order {order}: {error}"
        ));
    }
}

fn start_agent() -> Outcome {
    let started = Command::new(PROGRAM).arg0(AGENT).arg("agent").spawn();
    started.map(drop).map_err(doing("start the agent"))
}

/// To the console, and never in the way of anything. The kernel has opened it for
/// process 1; an image need not have one at its usual place.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn power_off() -> ! {
    // The console's last words are still on their way.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let _: Result<Infallible, _> = reboot(RebootMode::RB_POWER_OFF);
    loop {
        std::thread::park();
    }
}

/// Copies a folder and all in it.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&from, &to)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}
