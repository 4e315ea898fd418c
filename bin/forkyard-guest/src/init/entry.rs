//! The program that an image is there to run: a container image's entry point.
//!
//! ```text
//! process 1 --once it has an identity--> "entry" --exec--> the entry point
//!     ^--------- its end, and those of orphans -----------------+
//! ```
//!
//! It starts when the agent has applied the VM's identity: the network is up. What
//! it says goes to the console, and so does how it ended; the VM goes on then.
//! It is user code like any other: it stands still in a fork, and clones go on
//! with it.

use super::{Outcome, doing, say};
use crate::{PROGRAM, agent::userland, foreign, who};
use forkyard_sys_guest::process::Process;
use forkyard_types::{EntryPoint, Start};
use nix::{
    mount::{MsFlags, mount},
    sys::{
        reboot::{RebootMode, reboot},
        signal::{Signal, kill},
        wait::{WaitStatus, wait},
    },
    unistd::{Gid, Pid, Uid, fchown, setgid, setgroups, setsid, setuid, sync},
};
use std::{
    convert::Infallible,
    fs::{self, File},
    io,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// There once this VM has its identity.
const UP: &str = "/opt/forkyard/up";
/// SIGTERM.
const TERM: u8 = 15;
/// Number of the entry point's process, as long as it runs.
const RUNS: &str = "/opt/forkyard/entry";
/// Stand before the image's own, if it has them: those would talk to an init which is
/// not there.
const ENDS: [&str; 2] = ["/opt/forkyard/bin/poweroff", "/opt/forkyard/bin/reboot"];
const TERMINALS: &str = "/dev/pts";
const LOOK: Duration = Duration::from_millis(20);
/// Time for the entry point, and then for all other processes, to end at power-off. Together
/// shorter than the host's own limit.
const ENTRY_TO_END: Duration = Duration::from_secs(8);
const TO_END: Duration = Duration::from_secs(4);
/// As shells have it: found, and cannot be run.
const CANNOT_RUN: u8 = 126;

/// Returns the program that the image wants to run, or that nothing is to be. What makes no
/// sense is told of, and not run.
pub fn wanted() -> Option<EntryPoint> {
    match read() {
        Ok(entry) => entry.filter(|entry| entry.start == Start::Never || !entry.argv.is_empty()),
        Err(why) => {
            say(&format!("forkyard: the entry point is not run: {why}"));
            None
        }
    }
}

/// Reads the image's entry point, if it has one.
pub fn read() -> Outcome<Option<EntryPoint>> {
    let text = match foreign::bytes(EntryPoint::PLACE, EntryPoint::MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(doing(format!("read {}", EntryPoint::PLACE)))?,
    };
    let entry = serde_json::from_slice(&text);
    entry.map(Some).map_err(doing(EntryPoint::PLACE))
}

/// The agent has applied this VM's identity. Told again, nothing more happens.
pub fn is_up() {
    if let Err(error) = foreign::put(UP, "") {
        eprintln!("forkyard-guest: the entry point does not start: {error}");
    }
}

/// Process 1's work from here on in an image without an init: reaps, and starts
/// the entry point, if there is one, when the time has come.
#[allow(clippy::wildcard_enum_match_arm, reason = "all else ends no process")]
pub fn see_through(entry: Option<EntryPoint>) -> ! {
    // An image may have a read-only or a full disk; this is ours, in memory.
    for end in ENDS {
        if let Err(error) = symlink(PROGRAM, end) {
            say(&format!("forkyard: no {end} here: {error}"));
        }
    }
    if let Err(why) = furnish() {
        say(&format!("forkyard: {why}"));
    }
    let child = entry.filter(EntryPoint::starts).and_then(|entry| {
        while !Path::new(UP).exists() {
            sleep(LOOK);
        }
        match start() {
            Ok(pid) => {
                // The program that powers off asks it to end first.
                let _ = foreign::put(RUNS, pid.to_string());
                Some((pid, entry.argv))
            }
            Err(why) => {
                say(&format!("forkyard: the entry point does not start: {why}"));
                None
            }
        }
    });
    loop {
        let ended = match wait() {
            Ok(ended) => ended,
            Err(_) => {
                sleep(Duration::from_secs(1));
                continue;
            }
        };
        let Some((pid, argv)) = &child else { continue };
        let how = match ended {
            WaitStatus::Exited(ended, code) if ended == *pid => format!("status {code}"),
            WaitStatus::Signaled(ended, signal, _) if ended == *pid => signal.to_string(),
            _ => continue,
        };
        let _ = fs::remove_file(RUNS);
        say(&format!(
            "forkyard: the entry point {} ended: {how}",
            argv.join(" ")
        ));
    }
}

/// Runs an entry point that is an init as process 1. Returns only why not.
pub fn become_init(entry: &EntryPoint) -> String {
    let error = command(entry, "/root").exec();
    format!("run {}: {error}", entry.argv[0])
}

/// Makes the files that programs in containers expect in /dev, and that an init
/// would put there.
fn furnish() -> Outcome {
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ];
    for (name, target) in links {
        match symlink(target, Path::new("/dev").join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("make /dev/{name}: {error}"));
            }
            Ok(()) | Err(_) => {}
        }
    }
    if !Path::new(TERMINALS).join("ptmx").exists() {
        mount_terminals()?;
    }
    Ok(())
}

/// Mounts the file system of terminals, which not every init does.
pub fn mount_terminals() -> Outcome {
    mount_with("devpts", TERMINALS, "ptmxmode=0666,mode=0620,gid=5")
}

fn mount_with(kind: &str, place: &str, options: &str) -> Outcome {
    fs::create_dir_all(place).map_err(doing(format!("create {place}")))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some(kind), place, Some(kind), flags, Some(options))
        .map_err(doing(format!("mount {kind} on {place}")))
}

fn start() -> Outcome<Pid> {
    let console = || File::options().write(true).open("/dev/console");
    let open = || doing::<io::Error>("open the console");
    let child = Command::new(PROGRAM)
        .arg("entry")
        .stdin(Stdio::null())
        .stdout(console().map_err(open())?)
        .stderr(console().map_err(open())?)
        .spawn()
        .map_err(doing(format!("run {PROGRAM}")))?;
    i32::try_from(child.id())
        .map(Pid::from_raw)
        .map_err(doing("a process"))
}

/// A process on its way to be the entry point.
pub fn main() -> ExitCode {
    let Err(why) = turn_into_it();
    eprintln!("forkyard: the entry point cannot be run: {why}");
    ExitCode::from(CANNOT_RUN)
}

fn turn_into_it() -> Outcome<Infallible> {
    let entry = read()?.ok_or("it has gone")?;
    let who = who::look_up(&entry.user)?;
    let (user, group) = (Uid::from_raw(who.user), Gid::from_raw(who.group));
    setsid().map_err(doing("become a session"))?;
    // So that it can open /dev/stdout, which many do for their logs.
    fchown(io::stdout(), Some(user), Some(group)).map_err(doing("give the console away"))?;
    let groups: Vec<_> = who.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups).map_err(doing("set its groups"))?;
    setgid(group).map_err(doing(format!("become group {group}")))?;
    setuid(user).map_err(doing(format!("become user {user}")))?;
    let error = command(&entry, &who.home).exec();
    Err(format!("{}: {error}", entry.argv[0]))
}

fn command(entry: &EntryPoint, home: &str) -> Command {
    let mut command = Command::new(&entry.argv[0]);
    let dir = if entry.dir.is_empty() {
        "/"
    } else {
        &entry.dir
    };
    command
        .args(&entry.argv[1..])
        .env_clear()
        .env("PATH", EntryPoint::PATH)
        .env("HOME", home)
        .envs(&entry.env)
        .current_dir(dir);
    command
}

/// Asks the entry point to end, as its image has it, and waits for that.
fn end_entry() {
    let pid = foreign::text(RUNS).ok().and_then(|pid| pid.parse().ok());
    // One that has ended meanwhile is no longer in the way.
    let Some(process) = pid.and_then(|pid| Process::open(pid).ok()) else {
        return;
    };
    let signal = read().ok().flatten().and_then(|entry| entry.stop_number());
    let asked = process.signal(signal.unwrap_or(TERM));
    let _ = asked.and_then(|()| process.wait_at_most(ENTRY_TO_END));
}

/// `poweroff` and `reboot`, where process 1 is ours: the entry point is asked to end,
/// then all other programs, and then the machine is off, or restarts.
pub fn end(how: RebootMode) -> ExitCode {
    end_entry();
    let me = Pid::this();
    let userland = userland::Userland::default();
    let others = || -> Vec<Pid> {
        let all = userland.processes().into_iter().map(Pid::from_raw);
        all.filter(|pid| ![me, Pid::from_raw(1)].contains(pid))
            .collect()
    };
    for pid in others() {
        // One that has ended is no longer in the way.
        let _ = kill(pid, Signal::SIGTERM);
    }
    let begun = Instant::now();
    while !others().is_empty() && begun.elapsed() < TO_END {
        sleep(LOOK);
    }
    sync();
    match reboot(how) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("forkyard-guest: the machine does not end: {error}");
            ExitCode::FAILURE
        }
    }
}
