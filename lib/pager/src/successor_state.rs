//! State that this pager would leave to another, at any moment: the journal,
//! and in the keeper's hands all that the journal names.

use crate::catalog::{Catalog, Node};
use crate::journal::{Answered, Journal, LayerNo, RecoveredState};
use crate::keeper::{Key, Programs, take_over};
use crate::keeper_client::KeeperClient;
use crate::stacks::Stacks;
use forkyard_image::{ImageError, Layer};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct SuccessorState {
    keeper_client: Arc<KeeperClient>,
    journal: Mutex<Journal>,
}

/// State that a pager that takes over is given.
#[derive(Debug)]
pub(crate) struct Inheritance<W> {
    pub successor_state: SuccessorState,
    pub catalog: Catalog<W>,
    pub answered: Answered,
    /// The connection to the kernel.
    pub kernel: OwnedFd,
    /// The control socket, unless it was closed.
    pub control: Option<OwnedFd>,
}

/// Reason why nothing could be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InheritError {
    /// The keeper did not give all of it.
    #[error("the keeper does not give what it holds")]
    Keeper {
        /// Error of the host.
        source: io::Error,
    },
    /// The keeper has no connection to the kernel, or no journal.
    #[error("the keeper has no {what}")]
    Missing {
        /// Part that is missing.
        what: &'static str,
    },
    /// The journal cannot be read.
    #[error("cannot read the journal")]
    Journal {
        /// Error of the host.
        source: io::Error,
    },
    /// A layer cannot be read any more.
    #[error("cannot read an image of the journal")]
    Image(#[from] ImageError),
}

impl SuccessorState {
    /// Of a pager that has nothing yet.
    pub fn new(programs: Programs) -> io::Result<Self> {
        let keeper_client = KeeperClient::new(programs)?;
        let journal = Journal::new()?;
        keeper_client.keep(Key::Journal, journal.file().as_fd())?;
        let journal = Mutex::new(journal);
        Ok(Self {
            keeper_client,
            journal,
        })
    }

    /// Takes over from a pager that is gone.
    pub fn inherit<W>(
        programs: Programs,
        keeper: UnixStream,
    ) -> Result<Inheritance<W>, InheritError> {
        let failed = |source| InheritError::Keeper { source };
        let (mut held, new_keeper) = take_over(&keeper).map_err(failed)?;
        let mut take = |key, what| held.remove(&key).ok_or(InheritError::Missing { what });
        let kernel = take(Key::Kernel, "connection to the kernel")?;
        let journal = take(Key::Journal, "journal")?;
        let control = held.remove(&Key::Control);
        let unreadable = |source| InheritError::Journal { source };
        let (journal, legacy) = Journal::open(File::from(journal)).map_err(unreadable)?;
        let layers = layers(held)?;
        let keeper_client = KeeperClient::with(programs, keeper, layers.clone()).map_err(failed)?;
        for (key, file) in [
            (Key::Kernel, Some(&kernel)),
            (Key::Control, control.as_ref()),
        ] {
            if let Some(file) = file {
                keeper_client.keep(key, file.as_fd()).map_err(failed)?;
            }
        }
        keeper_client
            .keep(Key::Journal, journal.file().as_fd())
            .map_err(failed)?;
        let catalog = catalog(&legacy, &layers)?;
        drop(layers);
        keeper_client.sweep();
        if new_keeper {
            keeper_client.bring_own_keeper().map_err(failed)?;
        }
        Ok(Inheritance {
            successor_state: Self {
                keeper_client,
                journal: Mutex::new(journal),
            },
            catalog,
            answered: legacy.answered,
            kernel,
            control,
        })
    }

    /// Keeps a descriptor for later pagers.
    pub fn keep(&self, key: Key, file: BorrowedFd<'_>) -> io::Result<()> {
        self.keeper_client.keep(key, file)
    }

    /// Keeps it no longer.
    pub fn forget(&self, key: Key) {
        self.keeper_client.forget(key);
    }

    /// Notes how an image is now. What is not noted is lost if we die; it is
    /// carried out all the same.
    pub fn note<W>(&self, catalog: &Catalog<W>, node: Node, request: Option<u64>) {
        let number = |layer: &Arc<Layer>| self.keeper_client.number(layer);
        let kept = catalog.kept(node, number);
        // One note after the other, and none half written when the lock is free.
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = journal.note(node, kept, request) {
            tracing::error!(%error, "journal not written");
        }
        if journal.is_long(catalog.len())
            && let Err(error) = self.shorten(catalog, &mut journal)
        {
            tracing::error!(%error, "journal not shortened");
        }
    }

    /// Writes the journal anew, of what is there now.
    fn shorten<W>(&self, catalog: &Catalog<W>, journal: &mut Journal) -> io::Result<()> {
        let mut shorter = Journal::new()?;
        for node in catalog.nodes() {
            let kept = catalog.kept(node, |layer| self.keeper_client.number(layer));
            shorter.note(node, kept, None)?;
        }
        // Numbers are not used again, those of images that are gone neither.
        shorter.note(Node(catalog.last()), None, None)?;
        for request in journal.answered() {
            shorter.answer(request)?;
        }
        self.keeper_client
            .keep(Key::Journal, shorter.file().as_fd())?;
        *journal = shorter;
        Ok(())
    }

    /// Forgets the layers that no image has any more.
    pub fn sweep(&self) {
        self.keeper_client.sweep();
    }

    /// Sets the program that the next pager is to run.
    pub fn next(&self, program: PathBuf) -> io::Result<()> {
        self.keeper_client.next(program)
    }

    /// Notes that no pager is to come after this one.
    pub fn farewell(&self) {
        self.keeper_client.farewell();
    }
}

fn layers(held: BTreeMap<Key, OwnedFd>) -> Result<HashMap<LayerNo, Arc<Layer>>, ImageError> {
    let files = held.into_iter().filter_map(|(key, file)| match key {
        Key::Layer(number) => Some((number, file)),
        Key::Kernel | Key::Control | Key::Journal => None,
    });
    files
        .map(|(number, file)| Ok((number, Arc::new(Layer::open(File::from(file))?))))
        .collect()
}

fn catalog<W>(
    legacy: &RecoveredState,
    layers: &HashMap<LayerNo, Arc<Layer>>,
) -> Result<Catalog<W>, InheritError> {
    let mut catalog = Catalog::after(legacy.next);
    let mut stacks = Stacks::default();
    let what = "layer its journal names";
    for (node, kept) in &legacy.images {
        let wanted = kept
            .layers()
            .iter()
            .map(|number| layers.get(number).cloned());
        let stack: Option<Vec<_>> = wanted.collect();
        let image = stacks.image(&stack.ok_or(InheritError::Missing { what })?)?;
        catalog.restore(*node, kept.clone(), image, Instant::now());
    }
    Ok(catalog)
}
