//! The processes of one command: whatever it starts can be killed with it.
//!
//! They are known by a mark in their environment, which programs pass on to what they start,
//! and by being below the command's own process or in its process group or session. A cgroup for each command would be
//! simpler, but then those of a guest that adapts (`forkyard-friendly`) would not be in one.

use super::userland::Userland;
use forkyard_types::RequestId;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getpgid, getsid},
};
use std::{
    fs,
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

/// The variable that bears the mark.
const MARK: &str = "FORKYARD_COMMAND";
/// How long a command may take to end after it was hung up on.
const GRACE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);
/// Held by whoever looks: the guest has other things to do than to look for the processes of many
/// commands at once.
static LOOKING: Mutex<()> = Mutex::new(());
/// Looks for processes to be killed: one that has been started since the last look is seen by the
/// next.
const LOOKS: u32 = 100;
/// Parents that are asked after, at most.
const DEPTH: u32 = 1000;

/// What marks the processes of a command.
#[derive(Clone, Debug)]
pub struct Mark(String);

impl Mark {
    /// One that no other command has, in a clone neither.
    pub fn draw() -> Self {
        Self(RequestId::random().to_string())
    }

    /// The variable that the command starts with.
    pub fn variable(&self) -> (&'static str, &str) {
        (MARK, &self.0)
    }
}

/// The processes of a command.
#[derive(Clone, Debug)]
pub struct Group {
    userland: Userland,
    mark: Mark,
    leader: Pid,
}

impl Group {
    /// Those that bear this mark or come from `leader`, which was started with it.
    pub fn new(userland: Userland, mark: Mark, leader: Pid) -> Self {
        Self {
            userland,
            mark,
            leader,
        }
    }

    /// Kills all of them.
    pub fn kill(&self) {
        for _ in 0..LOOKS {
            if self.signal(Signal::SIGKILL) == 0 {
                return;
            }
            sleep(LOOK);
        }
    }

    /// Tells all of them that nobody listens any more, and kills those that are left after
    /// a while. Waits for it.
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
        // One that is stopped hears of it as well.
        self.signal(Signal::SIGCONT);
        let begun = Instant::now();
        while !self.processes().is_empty() {
            if begun.elapsed() > GRACE {
                return self.kill();
            }
            sleep(LOOK);
        }
    }

    /// Sends all of them a signal; how many there were.
    fn signal(&self, signal: Signal) -> usize {
        let all = self.processes();
        for process in &all {
            // One that has ended meanwhile needs none.
            let _ = kill(*process, signal);
        }
        all.len()
    }

    fn processes(&self) -> Vec<Pid> {
        let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.userland.processes().into_iter().filter(|id| *id > 0);
        all.map(Pid::from_raw).filter(|id| self.has(*id)).collect()
    }

    fn has(&self, process: Pid) -> bool {
        let is_led = [getpgid(Some(process)), getsid(Some(process))].contains(&Ok(self.leader));
        // What costs least first: many commands may end at once.
        let is_ours = is_led
            || match mark_of(process) {
                Some(mark) => mark == self.mark.0.as_bytes(),
                None => self.is_below(process),
            };
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

/// The mark that a process bears.
fn mark_of(process: Pid) -> Option<Vec<u8>> {
    let set = fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut variables = set.split(|byte| *byte == 0);
    variables.find_map(|variable| {
        let mark = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        Some(mark.to_owned())
    })
}

/// Whether it is more than what its parent has not yet asked after.
fn is_alive(process: Pid) -> bool {
    stat_of(process).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// A process's state and its parent, as proc(5) has them: after its name, which may hold anything.
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
        let group = Group::new(userland(folder.path(), &all), mark, id);
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
