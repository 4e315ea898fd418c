//! Orders that `forkyard-porter` is given on its standard input, one line of JSON, and what it
//! says on its standard output, a line each. It ends when its input does: with the daemon.

use crate::{Digest, Piece, StoreAddress};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Address of the store.
    pub store: StoreAddress,
    /// File with the operator's settings and keys for stores.
    #[serde(default)]
    pub settings: Option<PathBuf>,
    /// Work that is wanted.
    pub work: Work,
}

/// Work that is wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Says every [manifest](Said::Manifest) that there is.
    List,
    /// Says [one](Said::Manifest), if it is there.
    Get {
        /// Name of the substrate.
        name: String,
    },
    /// Sends the pieces that the store has not, then a manifest.
    Put {
        /// Name of the substrate.
        name: String,
        /// Manifest, sealed.
        manifest: String,
        /// Files that its pieces are in.
        files: Vec<File>,
        /// Treatment of a manifest of that name that is there.
        over: ExistingManifest,
        /// Pieces that are there are read, and sent again if they are damaged.
        verify: bool,
    },
    /// Makes files of pieces.
    Fetch {
        /// The files, which must be new.
        files: Vec<File>,
    },
    /// Removes a manifest, then collects.
    Remove {
        /// Name of the substrate.
        name: String,
    },
    /// Removes pieces that no manifest names.
    Collect,
}

/// Treatment of a manifest that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExistingManifest {
    /// None must be there.
    Nothing,
    /// One that is there is replaced.
    Replaced,
}

/// A file and its pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct File {
    /// Path of the file.
    pub path: PathBuf,
    /// Pieces of it, in order.
    pub pieces: Vec<Piece>,
}

/// A line of what is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// A manifest, as it is in the store.
    Manifest {
        /// Name that it has there.
        name: String,
        /// The object.
        object: String,
        /// Seconds since 1970 at which it was stored, by the store's clock.
        stored: u64,
    },
    /// The work is done.
    Done(Done),
    /// The work could not be done.
    Failed(Failed),
}

/// Account of what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Bytes that were sent or fetched.
    pub moved: u64,
    /// Bytes that were in the store already.
    pub shared: u64,
    /// Pieces that were removed.
    pub removed: u64,
    /// Bytes of those.
    pub freed: u64,
}

/// Reason why work could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failed {
    /// No substrate of that name is in the store.
    #[error("there is no {0:?} in the store")]
    Absent(String),
    /// One of that name is in the store.
    #[error("there is a {0:?} in the store")]
    Taken(String),
    /// A piece is not in the store.
    #[error("piece {0} is missing in the store")]
    Missing(Digest),
    /// A piece is not what its name says.
    #[error("piece {0} in the store is damaged")]
    Damaged(Digest),
    /// The store does not answer, or refuses.
    #[error("{0}")]
    Store(String),
    /// A file of this host could not be read or written.
    #[error("{0}")]
    Here(String),
    /// The settings of stores cannot be used.
    #[error("{0}")]
    Settings(String),
}
