//! Starting a command as its image would have it: environment, user, working directory, and a
//! terminal if there is to be one.

use super::{cgroup::CommandGroup, group::Mark, identity, userland::Userland};
use crate::{foreign, init::entry, who};
use forkyard_agent_link as link;
use forkyard_sys_guest::command;
use forkyard_types::{EntryPoint, NotStarted, WindowSize};
use nix::{
    errno::Errno,
    pty::{Winsize, openpty},
    unistd::{Gid, Uid, fchown},
};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

/// Folders in which programs are looked for in an image that does not say.
const PATH: &str = "/opt/forkyard/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directory of our own programs in the guest.
const OURS: &str = "/opt/forkyard/bin";
/// Terminal of a program that is not told of its kind.
const TERM: &str = "xterm";

/// A command that was started.
#[derive(Debug)]
pub struct Launched {
    pub child: Child,
    /// The agent's end of its terminal, if it has one: input and output.
    pub terminal: Option<OwnedFd>,
}

/// Starts a command with this mark, in its own control group or else in that of all commands. Its
/// standard streams are pipes, a terminal; one that is detached reads /dev/null.
pub fn launch(
    wanted: &link::Command,
    mark: &Mark,
    userland: &Userland,
    own: Option<&CommandGroup>,
) -> Result<Launched, NotStarted> {
    let (program, arguments) = wanted
        .argv
        .split_first()
        .ok_or_else(|| cannot_run("no command".to_owned()))?;
    let image = entry::read().ok().flatten().unwrap_or_default();
    let user = wanted.user.as_ref().unwrap_or(&image.user);
    let who = who::look_up(user).map_err(cannot_run)?;
    let workdir = wanted.workdir.as_ref().unwrap_or(&image.dir);
    let workdir = if workdir.is_empty() { "/" } else { workdir };
    let failed = |what: &str, error: io::Error| cannot_run(format!("{what}: {error}"));
    match fs::metadata(workdir) {
        Ok(facts) if facts.is_dir() => {}
        Ok(_) => {
            return Err(cannot_run(format!(
                "working directory {workdir}: not a directory"
            )));
        }
        Err(error) => return Err(failed(&format!("working directory {workdir}"), error)),
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", path(&image))
        .env("HOME", &who.home)
        .env("LANG", "C.UTF-8")
        .current_dir(workdir);
    if wanted.tty.is_some() {
        command.env("TERM", TERM);
    }
    let image_env = image.env.iter().filter(|(name, _)| *name != "PATH");
    command
        .envs(image_env)
        .envs(identity::variables())
        .envs(wanted.env.iter().map(|(name, value)| (name, value)))
        .envs([mark.variable()]);
    let terminal = match (wanted.detach, wanted.tty) {
        (true, _) => {
            let nothing = foreign::null().map_err(|error| failed("no input", error))?;
            let streams = command.stdin(nothing).stdout(Stdio::piped());
            streams.stderr(Stdio::piped()).process_group(0);
            None
        }
        (false, None) => {
            let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            streams.stderr(Stdio::piped()).process_group(0);
            None
        }
        (false, Some(size)) => {
            let terminal = on_terminal(&mut command, size, &who);
            Some(terminal.map_err(|error| failed("cannot open a terminal", error))?)
        }
    };
    command::as_usual(&mut command);
    let procs = userland.exec_procs();
    let procs =
        procs.map_err(|error| failed("cannot enter the control group of commands", error))?;
    let own = own.and_then(|own| own.procs().ok());
    command::in_cgroup(&mut command, own.into_iter().chain([procs]).collect());
    command::as_user(&mut command, who.user, who.group, who.groups);
    let mut child = command.spawn().map_err(|error| NotStarted {
        code: if error.kind() == io::ErrorKind::NotFound {
            NotStarted::NOT_FOUND
        } else {
            NotStarted::CANNOT_RUN
        },
        message: format!("cannot run {program}: {error}"),
    })?;
    // Until its program is loaded, the new process is this one's memory with a usual score, which
    // is the largest there is in a guest full of small programs.
    if was_killed(&mut child)
        && oom_kills(&fs::read_to_string("/proc/vmstat").unwrap_or_default()) > 0
    {
        return Err(cannot_run(format!(
            "cannot run {program}: the guest is out of memory, and its kernel killed the command as it began"
        )));
    }
    Ok(Launched { child, terminal })
}

const SIGKILL: i32 = 9;
/// Looks at a child that is ending, and the pause between two.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(2);

/// Tells whether a child has been killed already. One that ends has no program any more before its end
/// can be heard of.
fn was_killed(child: &mut Child) -> bool {
    if fs::read_link(format!("/proc/{}/exe", child.id())).is_ok() {
        return false;
    }
    for _ in 0..LOOKS {
        match child.try_wait() {
            Ok(Some(status)) => return status.signal() == Some(SIGKILL),
            Ok(None) => sleep(LOOK),
            Err(_) => return false,
        }
    }
    false
}

/// Processes that a kernel has killed for lack of memory, as its /proc/vmstat counts them.
fn oom_kills(vmstat: &str) -> u64 {
    let count = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Sets the window size of a terminal. The kernel sends SIGWINCH to its foreground process group.
pub fn resize(terminal: &OwnedFd, size: WindowSize) {
    // Fails only after the last process on it has ended.
    let _ = command::resize(terminal.as_fd(), size.rows, size.cols);
}

fn on_terminal(command: &mut Command, size: WindowSize, who: &who::Who) -> io::Result<OwnedFd> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = match openpty(Some(&size), None) {
        Err(Errno::ENOENT) => {
            entry::mount_terminals().map_err(io::Error::other)?;
            openpty(Some(&size), None)?
        }
        opened => opened?,
    };
    // Programs open the terminal again by its name.
    fchown(&pty.slave, Some(Uid::from_raw(who.user)), None::<Gid>)?;
    close_on_exec(&pty.slave)?;
    let slave = File::from(pty.slave);
    command
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave);
    command::as_session_leader(command);
    close_on_exec(&pty.master)?;
    Ok(pty.master)
}

fn close_on_exec(file: &OwnedFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    fcntl(file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(())
}

/// Returns PATH: the image's, followed by [`OURS`].
fn path(image: &EntryPoint) -> String {
    match image.env.get("PATH") {
        Some(path) => format!("{path}:{OURS}"),
        None => PATH.to_owned(),
    }
}

fn cannot_run(message: String) -> NotStarted {
    NotStarted {
        code: NotStarted::CANNOT_RUN,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::oom_kills;

    #[test]
    fn kills_for_lack_of_memory_are_read_by_their_name() {
        assert_eq!(oom_kills("pgfault 7\noom_kill 12\noom_kill_x 3\n"), 12);
        assert_eq!(oom_kills("drop_pagecache 0\n"), 0);
    }
}
