//! A pager's side of its keeper: what is to be kept, and another keeper when
//! that one dies, or takes nothing any more.
//!
//! What is said to it is said under locks that faults of VMs wait for. One that was stopped, or hangs, fills
//! its socket: after [`PATIENCE`] it is killed, and another is given everything.

use crate::compaction::LayerId;
use crate::journal::LayerNo;
use crate::keeper::{Key, ProgramRole, Programs, ToKeeper};
use crate::protocol::{receive, send};
use forkyard_image::Layer;
use forkyard_sys_host::process::PidFd;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Before another keeper is tried after one that could not be started.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a keeper to take what is said to it.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct KeeperClient {
    programs: Programs,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    keeper: UnixStream,
    /// The keeper's process, if it is known.
    process: Option<PidFd>,
    /// True if the keeper takes nothing any more: nothing is said until there
    /// is another.
    deaf: bool,
    held: BTreeMap<Key, Holding>,
    numbers: HashMap<LayerId, LayerNo>,
    next: u64,
    /// The keeper need not be there any more.
    over: bool,
}

#[derive(Debug)]
enum Holding {
    File(OwnedFd),
    /// As long as any image has it.
    Layer(Weak<Layer>),
}

impl KeeperClient {
    /// With a keeper of its own.
    pub fn new(programs: Programs) -> io::Result<Arc<Self>> {
        let (keeper, process) = start_keeper(&programs)?;
        Self::of(programs, keeper, process, HashMap::new())
    }

    /// With the keeper of the pager that was here before, which has these layers.
    pub fn with(
        programs: Programs,
        keeper: UnixStream,
        layers: HashMap<LayerNo, Arc<Layer>>,
    ) -> io::Result<Arc<Self>> {
        Self::of(programs, keeper, parent(), layers)
    }

    fn of(
        programs: Programs,
        keeper: UnixStream,
        process: Option<PidFd>,
        layers: HashMap<LayerNo, Arc<Layer>>,
    ) -> io::Result<Arc<Self>> {
        keeper.set_write_timeout(Some(PATIENCE))?;
        let mut inner = Inner {
            keeper,
            process,
            deaf: false,
            held: BTreeMap::new(),
            numbers: HashMap::new(),
            next: 0,
            over: false,
        };
        for (number, layer) in layers {
            inner.next = inner.next.max(number.0.saturating_add(1));
            inner.numbers.insert(LayerId::of(&layer), number);
            let holding = Holding::Layer(Arc::downgrade(&layer));
            inner.held.insert(Key::Layer(number), holding);
        }
        let watched = inner.keeper.try_clone()?;
        let keeper_client = Arc::new(Self {
            programs,
            inner: Mutex::new(inner),
        });
        let watcher = Arc::clone(&keeper_client);
        thread::Builder::new()
            .name("keeper".into())
            .spawn(move || watcher.watch(watched))?;
        Ok(keeper_client)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Left consistent at every point at which we can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the keeper whenever it dies.
    fn watch(&self, mut keeper: UnixStream) {
        loop {
            // It says nothing: whatever comes is its end.
            let _ = receive::<()>(&keeper);
            if self.inner().over {
                return;
            }
            tracing::error!("the keeper is gone; starting another");
            keeper = loop {
                match self.renew() {
                    Ok(keeper) => break keeper,
                    Err(error) => {
                        tracing::error!(%error, "cannot start a keeper");
                        thread::sleep(PAUSE);
                    }
                }
            };
        }
    }

    /// Gives everything to another keeper; the one before is told that it is
    /// not needed.
    fn renew(&self) -> io::Result<UnixStream> {
        let (keeper, process) = start_keeper(&self.programs)?;
        keeper.set_write_timeout(Some(PATIENCE))?;
        let watched = keeper.try_clone()?;
        let mut inner = self.inner();
        for (key, holding) in &inner.held {
            holding.send(&keeper, *key)?;
        }
        let before = std::mem::replace(&mut inner.keeper, keeper);
        inner.process = process;
        // If it is dead, it is dead.
        if !std::mem::take(&mut inner.deaf) {
            let _ = send(&before, &ToKeeper::Farewell, None);
        }
        Ok(watched)
    }

    /// Has a keeper of this program's own take the place of the one inherited.
    pub fn bring_own_keeper(&self) -> io::Result<()> {
        // The old one goes at its farewell, and the watcher then starts one more
        // that gets everything: so the farewell alone is enough.
        send(&self.inner().keeper, &ToKeeper::Farewell, None)
    }

    /// Keeps a file, in place of what was kept under that key.
    pub fn keep(&self, key: Key, file: BorrowedFd<'_>) -> io::Result<()> {
        let holding = Holding::File(file.try_clone_to_owned()?);
        self.inner().hold(key, holding);
        Ok(())
    }

    /// The number of a layer, which is kept from now on if it was not.
    pub fn number(&self, layer: &Arc<Layer>) -> LayerNo {
        let mut inner = self.inner();
        if let Some(number) = inner.numbers.get(&LayerId::of(layer)) {
            return *number;
        }
        let number = LayerNo(inner.next);
        inner.next += 1;
        inner.numbers.insert(LayerId::of(layer), number);
        inner.hold(Key::Layer(number), Holding::Layer(Arc::downgrade(layer)));
        number
    }

    /// Forgets a file.
    pub fn forget(&self, key: Key) {
        let mut inner = self.inner();
        inner.held.remove(&key);
        inner.say(&ToKeeper::Forget(key), None);
    }

    /// Forgets the layers that no image has any more.
    pub fn sweep(&self) {
        let mut inner = self.inner();
        let gone = |(key, holding): (&Key, &Holding)| match holding {
            Holding::Layer(layer) if layer.strong_count() == 0 => Some(*key),
            Holding::Layer(_) | Holding::File(_) => None,
        };
        let gone: Vec<Key> = inner.held.iter().filter_map(gone).collect();
        for key in gone {
            inner.held.remove(&key);
            inner.say(&ToKeeper::Forget(key), None);
        }
        let held: Vec<Key> = inner.held.keys().copied().collect();
        let kept = |number: &LayerNo| held.binary_search(&Key::Layer(*number)).is_ok();
        inner.numbers.retain(|_, number| kept(number));
    }

    /// The pager that comes after this one is to be that program.
    pub fn next(&self, program: PathBuf) -> io::Result<()> {
        send(&self.inner().keeper, &ToKeeper::Next(program), None)
    }

    /// Nothing is needed any more: the keeper goes, and no pager comes after this one.
    pub fn farewell(&self) {
        let mut inner = self.inner();
        inner.over = true;
        inner.say(&ToKeeper::Farewell, None);
    }
}

impl Inner {
    fn hold(&mut self, key: Key, holding: Holding) {
        // If the keeper is dead, the one that takes its place gets this as well:
        // it is given everything once our lock is free.
        if !self.deaf
            && let Err(error) = holding.send(&self.keeper, key)
        {
            self.lost(&error);
        }
        self.held.insert(key, holding);
    }

    fn say(&mut self, said: &ToKeeper, file: Option<BorrowedFd<'_>>) {
        if !self.deaf
            && let Err(error) = send(&self.keeper, said, file)
        {
            self.lost(&error);
        }
    }

    /// Ends a keeper that takes nothing, which the watcher hears of.
    fn lost(&mut self, error: &io::Error) {
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
            return tracing::debug!(%error, "keeper not reached");
        }
        tracing::error!(?PATIENCE, "the keeper takes nothing any more");
        self.deaf = true;
        // Not by its socket alone: it would take that for our end, and start another pager.
        if let Some(process) = &self.process {
            match process.kill() {
                Ok(()) => drop(self.keeper.shutdown(Shutdown::Both)),
                Err(error) => tracing::error!(%error, "the keeper was not ended"),
            }
        }
    }
}

impl Holding {
    fn send(&self, keeper: &UnixStream, key: Key) -> io::Result<()> {
        let said = ToKeeper::Keep(key);
        match self {
            Self::File(file) => send(keeper, &said, Some(file.as_fd())),
            Self::Layer(layer) => match layer.upgrade() {
                Some(layer) => send(keeper, &said, Some(layer.file().as_fd())),
                None => Ok(()),
            },
        }
    }
}

fn start_keeper(programs: &Programs) -> io::Result<(UnixStream, Option<PidFd>)> {
    let (keeper, mut child) = programs.start(ProgramRole::Keeper)?;
    // Before it can be reaped.
    let process = PidFd::open(child.id()).ok();
    // Reaped whenever it ends.
    thread::Builder::new()
        .name("reaper".into())
        .spawn(move || child.wait())?;
    Ok((keeper, process))
}

/// The keeper that started this process, if it did.
fn parent() -> Option<PidFd> {
    let pid = parent_id();
    let process = PidFd::open(pid).ok()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // Looked at after it was opened: it is the one that is meant, or none.
    (words.starts_with(b"forkyard-keeper\0") && parent_id() == pid).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::Command;

    /// A keeper that reads nothing is given more than its socket holds.
    fn flood(process: Option<PidFd>) -> Arc<KeeperClient> {
        let (keeper, unread) = UnixStream::pair().expect("a pair");
        let programs = Programs {
            program: "/bin/false".into(),
            arguments: Vec::new(),
        };
        let keeper_client =
            KeeperClient::of(programs, keeper, process, HashMap::new()).expect("a vault");
        // Nothing comes in the place of this one.
        keeper_client.inner().over = true;
        let file = File::open("/dev/null").expect("there");
        for _ in 0..600 {
            keeper_client
                .keep(Key::Journal, file.as_fd())
                .expect("noted");
        }
        assert!(keeper_client.inner().deaf);
        drop(unread);
        keeper_client
    }

    #[test]
    fn a_keeper_that_takes_nothing_is_ended_and_stalls_nobody_for_long() {
        flood(None);
        let mut child = Command::new("sleep").arg("1000").spawn().expect("started");
        let process = PidFd::open(child.id()).expect("a child");
        flood(Some(process));
        let ended = child.wait().expect("reaped");
        assert!(!ended.success(), "{ended}");
    }
}
