//! The processes of one command: whatever it starts can be killed with it.
//!
//! A process belongs to a command if it is in the command's control group. Where there is none, and for
//! processes that have moved to another one: if it has the command's mark in its environment, descends
//! from the command's first process, or is in that one's process group or session.

use super::{cgroup::CommandGroup, userland::Userland};
use forkyard_types::RequestId;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid, getsid},
};
use std::{
    collections::BTreeSet,
    fs,
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

/// The variable that bears the mark.
const MARK: &str = "FORKYARD_COMMAND";
/// Time between SIGHUP and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two scans of the processes.
const PAUSE: Duration = Duration::from_millis(100);
/// Serializes scans: each reads several files of /proc per process, and many commands may be hung
/// up on at once.
static SCAN: Mutex<()> = Mutex::new(());
/// Most scans for processes to be killed. A process that was started during a scan is found by the
/// next.
const SCANS: u32 = 100;
/// Most ancestors of a process that are looked up.
const DEPTH: u32 = 1000;

/// Mark in the environment of a command's processes.
#[derive(Clone, Debug)]
pub struct Mark(String);

impl Mark {
    /// Draws a mark that no other command has, in this VM or in a clone.
    pub fn draw() -> Self {
        Self(RequestId::random().to_string())
    }

    /// The mark of a command's control group.
    pub fn of(name: String) -> Self {
        Self(name)
    }

    /// Environment variable that carries it.
    pub fn variable(&self) -> (&'static str, &str) {
        (MARK, &self.0)
    }

    /// Name of the command's control group.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The processes of a command.
#[derive(Clone, Debug)]
pub struct Group {
    userland: Userland,
    mark: Mark,
    leader: Pid,
    cgroup: Option<CommandGroup>,
}

impl Group {
    /// Group of the command whose first process is `leader`, started with this mark and in this
    /// control group, if it could have one.
    pub fn new(userland: Userland, mark: Mark, leader: Pid, cgroup: Option<CommandGroup>) -> Self {
        Self {
            userland,
            mark,
            leader,
            cgroup,
        }
    }

    /// Group of a command of an earlier worker, whose first process is not known.
    pub fn lost(userland: Userland, mark: Mark, cgroup: CommandGroup) -> Self {
        Self::new(userland, mark, Pid::from_raw(i32::MAX), Some(cgroup))
    }

    /// Sends a signal that a user has sent. Those of a terminal's keys are for the process group, as on
    /// a terminal; any other is for the command's first process, as of kill(1).
    pub fn pass(&self, signal: Signal) {
        // Nothing receives it if the command has just ended.
        let _ = if matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
            killpg(self.leader, signal)
        } else {
            kill(self.leader, signal)
        };
    }

    /// No client waits for it: it does not end with the agent.
    pub fn spare(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.spare();
        }
    }

    /// Gives back what the command had, now that it has ended.
    pub fn release(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// Sends SIGKILL to all processes until none is left. Blocks.
    pub fn kill(&self) {
        for _ in 0..SCANS {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            if self.signal(Signal::SIGKILL) == 0 {
                return;
            }
            sleep(PAUSE);
        }
    }

    /// Sends SIGHUP to all processes, and SIGKILL to those left after [`GRACE`]. Blocks.
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
        // A stopped process handles SIGHUP when it is continued.
        self.signal(Signal::SIGCONT);
        let begun = Instant::now();
        while !self.processes().is_empty() {
            if begun.elapsed() > GRACE {
                return self.kill();
            }
            sleep(PAUSE);
        }
    }

    /// Sends a signal to all processes and returns their number.
    fn signal(&self, signal: Signal) -> usize {
        let all = self.processes();
        for process in &all {
            // It may have ended since the scan.
            let _ = kill(*process, signal);
        }
        all.len()
    }

    fn processes(&self) -> Vec<Pid> {
        let _scan = SCAN.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = self.cgroup.as_ref().map(CommandGroup::processes);
        let all = self.userland.processes().into_iter().filter(|id| *id > 0);
        all.map(Pid::from_raw)
            .filter(|id| self.has(*id, inside.as_ref()))
            .collect()
    }

    fn has(&self, process: Pid, inside: Option<&BTreeSet<i32>>) -> bool {
        if inside.is_some_and(|inside| inside.contains(&process.as_raw())) {
            return is_alive(process);
        }
        let is_led = [getpgid(Some(process)), getsid(Some(process))].contains(&Ok(self.leader));
        // The cheapest test first.
        let is_ours = is_led
            || mark_of(process).is_some_and(|mark| mark == self.mark.0.as_bytes())
            || self.is_below(process);
        is_ours && is_alive(process)
    }

    fn is_below(&self, process: Pid) -> bool {
        let mut above = Some(process);
        for _ in 0..DEPTH {
            match above {
                Some(found) if found == self.leader => return true,
                Some(found) => above = stat_of(found).map(|(_, parent)| parent),
                None => return false,
            }
        }
        false
    }
}

/// Reads the mark of a process, if it has one.
fn mark_of(process: Pid) -> Option<Vec<u8>> {
    let set = fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut variables = set.split(|byte| *byte == 0);
    variables.find_map(|variable| {
        let mark = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        Some(mark.to_owned())
    })
}

/// Tests that a process is no zombie.
fn is_alive(process: Pid) -> bool {
    stat_of(process).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Reads the state and the parent of a process from proc(5). They follow its name, which may hold any
/// character.
fn stat_of(process: Pid) -> Option<(char, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, Pid::from_raw(fields.next()?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::process::CommandExt,
        path::Path,
        process::{Command, Stdio},
    };

    /// User code that has just these processes.
    fn userland(folder: &Path, processes: &[u32]) -> Userland {
        let user = folder.join("user");
        fs::create_dir_all(&user).expect("made");
        let lines: String = processes.iter().map(|id| format!("{id}\n")).collect();
        fs::write(user.join("cgroup.procs"), lines).expect("written");
        Userland::at(folder)
    }

    #[test]
    fn what_a_command_has_started_is_its_own_by_mark_or_descent_and_nothing_else_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let sleeper = |mark: Option<&Mark>| {
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null()).process_group(0);
            command.envs(mark.map(Mark::variable));
            command.spawn().expect("started")
        };
        let (mark, other) = (Mark::draw(), Mark::draw());
        let mut leader = sleeper(Some(&mark));
        let mut far = sleeper(Some(&mark));
        let mut foreign = sleeper(Some(&other));
        let mut plain = sleeper(None);
        let all = [&leader, &far, &foreign, &plain].map(std::process::Child::id);
        let id = Pid::from_raw(i32::try_from(leader.id()).expect("small"));
        let group = Group::new(userland(folder.path(), &all), mark, id, None);
        let mut found: Vec<_> = group.processes().iter().map(|id| id.as_raw()).collect();
        found.sort_unstable();
        let mut wanted = [leader.id(), far.id()].map(|id| i32::try_from(id).expect("small"));
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        group.kill();
        for child in [&mut leader, &mut far] {
            assert!(!child.wait().expect("ended").success());
        }
        for child in [&mut foreign, &mut plain] {
            assert!(child.try_wait().expect("asked").is_none(), "it lives");
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }
}
