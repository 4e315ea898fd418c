//! A pager's side of its keeper: what is to be kept, and another keeper when
//! that one dies.

use crate::journal::LayerNo;
use crate::keeper::{Key, Programs, Role, Say};
use crate::protocol::{receive, send};
use crate::tidy::LayerId;
use forkyard_image::Layer;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Before another keeper is tried after one that could not be started.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Vault {
    programs: Programs,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    keeper: UnixStream,
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

impl Vault {
    /// With a keeper of its own.
    pub fn new(programs: Programs) -> io::Result<Arc<Self>> {
        let keeper = start_keeper(&programs)?;
        Self::with(programs, keeper, HashMap::new())
    }

    /// With the keeper of the pager that was here before, who has these layers.
    pub fn with(
        programs: Programs,
        keeper: UnixStream,
        layers: HashMap<LayerNo, Arc<Layer>>,
    ) -> io::Result<Arc<Self>> {
        let mut inner = Inner {
            keeper,
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
        let vault = Arc::new(Self {
            programs,
            inner: Mutex::new(inner),
        });
        let watcher = Arc::clone(&vault);
        thread::Builder::new()
            .name("keeper".into())
            .spawn(move || watcher.watch(watched))?;
        Ok(vault)
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
        let keeper = start_keeper(&self.programs)?;
        let watched = keeper.try_clone()?;
        let mut inner = self.inner();
        for (key, holding) in &inner.held {
            holding.send(&keeper, *key)?;
        }
        let before = std::mem::replace(&mut inner.keeper, keeper);
        // If it is dead, it is dead.
        let _ = send(&before, &Say::Farewell, None);
        Ok(watched)
    }

    /// Has a keeper of this program's own take the place of the one inherited.
    pub fn bring_own_keeper(&self) -> io::Result<()> {
        // The old one goes at its farewell, and the watcher then starts one more
        // that gets everything: so the farewell alone is enough.
        send(&self.inner().keeper, &Say::Farewell, None)
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
        inner.say(&Say::Forget(key), None);
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
            inner.say(&Say::Forget(key), None);
        }
        let held: Vec<Key> = inner.held.keys().copied().collect();
        let kept = |number: &LayerNo| held.binary_search(&Key::Layer(*number)).is_ok();
        inner.numbers.retain(|_, number| kept(number));
    }

    /// The pager that comes after this one is to be that program.
    pub fn next(&self, program: PathBuf) -> io::Result<()> {
        send(&self.inner().keeper, &Say::Next(program), None)
    }

    /// Nothing is needed any more: the keeper goes, and nobody comes after us.
    pub fn farewell(&self) {
        let mut inner = self.inner();
        inner.over = true;
        inner.say(&Say::Farewell, None);
    }
}

impl Inner {
    fn hold(&mut self, key: Key, holding: Holding) {
        // If the keeper is dead, the one that takes its place gets this as well:
        // it is given everything once our lock is free.
        let sent = holding.send(&self.keeper, key);
        self.held.insert(key, holding);
        if let Err(error) = sent {
            tracing::debug!(%error, "keeper not reached");
        }
    }

    fn say(&self, said: &Say, file: Option<BorrowedFd<'_>>) {
        if let Err(error) = send(&self.keeper, said, file) {
            tracing::debug!(%error, "keeper not reached");
        }
    }
}

impl Holding {
    fn send(&self, keeper: &UnixStream, key: Key) -> io::Result<()> {
        let said = Say::Keep(key);
        match self {
            Self::File(file) => send(keeper, &said, Some(file.as_fd())),
            Self::Layer(layer) => match layer.upgrade() {
                Some(layer) => send(keeper, &said, Some(layer.file().as_fd())),
                None => Ok(()),
            },
        }
    }
}

fn start_keeper(programs: &Programs) -> io::Result<UnixStream> {
    let (keeper, mut child) = programs.start(Role::Keeper)?;
    // Reaped whenever it ends.
    thread::Builder::new()
        .name("reaper".into())
        .spawn(move || child.wait())?;
    Ok(keeper)
}
