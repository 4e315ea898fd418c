//! The process that holds what must survive the pager.
//!
//! ```text
//! pager --descriptors--> keeper --pager is gone--> another pager, with all of them
//!   '--keeper is gone--> another keeper, with all of them
//! ```
//!
//! The connection to the kernel, the control socket, the journal and the layers
//! are open files; a keeper has a copy of each and looks into none. Either of
//! the two may die; VMs lose their memory only if both do, within the same
//! moment.

use crate::journal::LayerNo;
use crate::protocol::{receive, send};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Variable that tells a program which of the two roles it has.
pub const ROLE: &str = "FORKYARD_PAGER_ROLE";
/// Pagers that may die within [`A_MINUTE`]: one that dies at once every time
/// would do so for ever.
const DEATHS: usize = 8;
const A_MINUTE: Duration = Duration::from_secs(60);
/// Pauses between starts that fail: each twice the one before, between these two.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A host that cannot start a program for so long never will.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Role of a program started as a part of the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramRole {
    /// The first pager at its place.
    First,
    /// A pager that takes over: standard input is the keeper.
    Successor,
    /// The keeper: standard input is the pager.
    Keeper,
}

impl ProgramRole {
    /// The role a program has been given in its environment.
    pub fn given() -> Self {
        match std::env::var(ROLE).as_deref() {
            Ok("successor") => Self::Successor,
            Ok("keeper") => Self::Keeper,
            Ok(_) | Err(_) => Self::First,
        }
    }
}

/// The keeper or the pager that started this process: its standard input.
pub fn other_half() -> io::Result<UnixStream> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// Commands that start the pager's program again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The program.
    pub program: PathBuf,
    /// All its arguments.
    pub arguments: Vec<OsString>,
}

impl Programs {
    /// Starts it; its standard input is the other end of what is returned.
    pub(crate) fn start(&self, role: ProgramRole) -> io::Result<(UnixStream, Child)> {
        let (here, there) = UnixStream::pair()?;
        let (name, role) = match role {
            ProgramRole::Keeper => ("forkyard-keeper", "keeper"),
            ProgramRole::First | ProgramRole::Successor => ("forkyard-pager", "successor"),
        };
        let child = Command::new(&self.program)
            .arg0(name)
            .args(&self.arguments)
            .env(ROLE, role)
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok((here, child))
    }
}

/// Key of a thing that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Key {
    /// The connection to the kernel.
    Kernel,
    /// The control socket, listening.
    Control,
    Journal,
    Layer(LayerNo),
}

/// Message of a pager to its keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToKeeper {
    /// Comes with a descriptor.
    Keep(Key),
    Forget(Key),
    /// The next pager is to be this program, and to bring its own keeper.
    Next(PathBuf),
    /// Nothing is needed any more.
    Farewell,
}

/// Message of a keeper to a pager that takes over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromKeeper {
    /// Comes with a descriptor.
    Held(Key),
    /// That was all. Whether a keeper of its own is to take this one's place.
    All { new_keeper: bool },
}

/// Keeps what the pager at the other end gives, and starts another pager
/// whenever it has gone without a farewell. Returns when nothing is needed any
/// more; an error if pagers keep dying.
pub fn keep(mut pager: UnixStream, mut programs: Programs) -> io::Result<()> {
    let mut held = BTreeMap::new();
    let mut child: Option<Child> = None;
    let mut deaths = Deaths::default();
    loop {
        let new_keeper = match serve(&pager, &mut held) {
            // It goes on without us, or ends by itself.
            After::Farewell => return Ok(()),
            After::Next(program) => {
                programs.program = program;
                true
            }
            After::Gone => {
                tracing::error!("the pager is gone; starting another");
                false
            }
        };
        if let Some(mut child) = child.take() {
            // It has let go of us: it is dead, or as good as.
            let _ = child.kill();
            let _ = child.wait();
        }
        loop {
            if !deaths.another(Instant::now()) {
                return Err(io::Error::other("pagers keep dying"));
            }
            let (stream, mut started) = start(&programs)?;
            match give(&stream, &held, new_keeper) {
                Ok(()) => {
                    (pager, child) = (stream, Some(started));
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "a pager that was started has gone");
                    let _ = started.kill();
                    let _ = started.wait();
                }
            }
        }
    }
}

/// Starts a pager. A host that is out of memory, of processes or of descriptors, or whose program
/// is being replaced, is waited for: VMs stand still meanwhile, and would lose their memory
/// otherwise.
fn start(programs: &Programs) -> io::Result<(UnixStream, Child)> {
    let mut attempts = Attempts::default();
    loop {
        match programs.start(ProgramRole::Successor) {
            Ok(started) => return Ok(started),
            Err(error) => match attempts.failed() {
                Some(pause) => {
                    tracing::error!(%error, ?pause, "cannot start a pager; trying again");
                    thread::sleep(pause);
                }
                None => return Err(error),
            },
        }
    }
}

/// Reason why a pager is not there any more.
enum After {
    Farewell,
    Next(PathBuf),
    Gone,
}

fn serve(pager: &UnixStream, held: &mut BTreeMap<Key, OwnedFd>) -> After {
    let mut next = None;
    // An error is as good as the end: what it said last cannot be known.
    while let Ok(Some((said, file))) = receive::<ToKeeper>(pager) {
        match said {
            ToKeeper::Keep(key) => {
                if let Some(file) = file {
                    held.insert(key, file);
                }
            }
            ToKeeper::Forget(key) => {
                held.remove(&key);
            }
            ToKeeper::Next(program) => next = Some(program),
            ToKeeper::Farewell => return After::Farewell,
        }
    }
    next.map_or(After::Gone, After::Next)
}

fn give(pager: &UnixStream, held: &BTreeMap<Key, OwnedFd>, new_keeper: bool) -> io::Result<()> {
    for (key, file) in held {
        send(pager, &FromKeeper::Held(*key), Some(file.as_fd()))?;
    }
    send(pager, &FromKeeper::All { new_keeper }, None)
}

/// Everything that was kept, and whether to bring another keeper.
pub(crate) fn take_over(keeper: &UnixStream) -> io::Result<(BTreeMap<Key, OwnedFd>, bool)> {
    let mut held = BTreeMap::new();
    loop {
        match receive::<FromKeeper>(keeper)? {
            Some((FromKeeper::Held(key), Some(file))) => {
                held.insert(key, file);
            }
            Some((FromKeeper::Held(_), None)) | None => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Some((FromKeeper::All { new_keeper }, _)) => return Ok((held, new_keeper)),
        }
    }
}

/// Starts that failed one after the other.
#[derive(Debug, Default)]
struct Attempts {
    waited: Duration,
    next: Duration,
}

impl Attempts {
    /// Pause before the next attempt; none once the host has been waited for long enough.
    fn failed(&mut self) -> Option<Duration> {
        if self.waited >= LONGEST_WAIT {
            return None;
        }
        self.next = (self.next * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.waited += self.next;
        Some(self.next)
    }
}

/// Times of deaths, by which it is given up.
#[derive(Debug, Default)]
struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// Another has died; false if that were too many.
    fn another(&mut self, now: Instant) -> bool {
        let old = |then: &Instant| now.saturating_duration_since(*then) > A_MINUTE;
        while self.0.front().is_some_and(old) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        self.0.len() <= DEATHS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pagers_that_die_again_and_again_are_given_up() {
        let mut deaths = Deaths::default();
        let start = Instant::now();
        let mut far_apart = (0..40).map(|n| start + A_MINUTE / 4 * n);
        assert!(far_apart.all(|now| deaths.another(now)));
        let now = start + A_MINUTE * 100;
        let at_once: Vec<bool> = (0..=DEATHS).map(|_| deaths.another(now)).collect();
        assert_eq!(at_once.iter().filter(|more| **more).count(), DEATHS);
        assert!(!deaths.another(now));
        assert!(deaths.another(now + A_MINUTE * 2));
    }

    #[test]
    fn host_that_can_start_nothing_for_a_while_is_waited_for_with_growing_pauses() {
        let mut attempts = Attempts::default();
        let pauses: Vec<Duration> = std::iter::from_fn(|| attempts.failed()).collect();
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.is_sorted() && pauses.contains(&LONGEST_PAUSE));
        let waited: Duration = pauses.iter().sum();
        assert!(waited >= LONGEST_WAIT && waited < LONGEST_WAIT + LONGEST_PAUSE);
    }

    #[test]
    fn program_that_cannot_be_started_at_first_is_started_and_none_counts_as_dead() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("pager");
        let programs = Programs {
            program: program.clone(),
            arguments: Vec::new(),
        };
        let (_, mut child) = thread::scope(|scope| {
            let starting = scope.spawn(|| start(&programs));
            std::os::unix::fs::symlink("/bin/true", &program).expect("a link");
            starting.join().expect("no panic").expect("is started")
        });
        assert!(child.wait().expect("waited for").success());
    }

    #[test]
    fn what_is_kept_is_handed_on_and_what_is_forgotten_is_not() {
        let (pager, keeper) = UnixStream::pair().expect("pair");
        let file = std::fs::File::open("/dev/null").expect("device");
        for key in [Key::Kernel, Key::Layer(LayerNo(7)), Key::Journal] {
            send(&pager, &ToKeeper::Keep(key), Some(file.as_fd())).expect("sends");
        }
        send(&pager, &ToKeeper::Forget(Key::Journal), None).expect("sends");
        drop(pager);
        let mut held = BTreeMap::new();
        assert!(matches!(serve(&keeper, &mut held), After::Gone));
        let (next, keeper) = UnixStream::pair().expect("pair");
        give(&keeper, &held, true).expect("sends");
        let (taken, new_keeper) = take_over(&next).expect("all of it");
        let keys: Vec<Key> = taken.into_keys().collect();
        assert_eq!(keys, [Key::Kernel, Key::Layer(LayerNo(7))]);
        assert!(new_keeper);
    }

    #[test]
    fn successor_does_not_start_with_half_of_it() {
        let (next, keeper) = UnixStream::pair().expect("pair");
        let file = std::fs::File::open("/dev/null").expect("device");
        send(&keeper, &FromKeeper::Held(Key::Kernel), Some(file.as_fd())).expect("sends");
        drop(keeper);
        assert!(take_over(&next).is_err());
    }
}
