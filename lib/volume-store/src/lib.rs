//! Volumes in a folder: the files of [`forkyard_volume`], and what reads and writes them.
//!
//! ```text
//! FOLDER/NAME/lock              held by the process that has the volume open
//!             checkpoint        replaced as a whole
//!             base              of a branch: the snapshot that it lies over
//!             origins           of one that is not all here: hosts that have the rest
//!             needs             hosts that fetch theirs from here
//!             0000000001.seg    segments of the log
//! ```
//!
//! Blocking calls, from any number of threads. Appends happen one after the other, so that the
//! log on disk is always a prefix of what was written; reads run beside them.
//!
//! Failures: a write that finds no room changes nothing, and may be tried again. After a flush
//! that failed it is unknown what is on disk: every later write and flush fails, until the volume
//! is opened anew. A process that dies at any step leaves what [`forkyard_volume::Recovery`]
//! takes up.

mod append;
mod asking;
mod away;
mod base;
mod copy;
mod counts;
mod error;
mod files;
mod heat;
mod library;
mod needs;
mod open;
mod read;
mod receive;
mod send;
mod store;
mod stream;
mod upkeep;

pub use asking::Asking;
pub use away::{Absent, Lacking, PATIENCE};
pub use base::BaseFacts;
pub use counts::Counts;
pub use error::{Blame, StoreError};
pub use library::Library;
pub use needs::Need;
pub use read::{Found, Patience, Scratch};
pub use send::Ahead;
pub use store::{Facts, SnapshotFacts, Store};
pub use stream::{Relayed, StreamHeader, relay};
pub use upkeep::Upkeep;
