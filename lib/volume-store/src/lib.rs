//! Volumes in a folder: the files of [`forkyard_volume`], and what reads and writes them.
//!
//! ```text
//! FOLDER/NAME/lock              held by the process that has the volume open
//!             checkpoint        replaced as a whole
//!             encryption        of one whose blocks are encrypted: where its key is
//!             base              of a branch: the snapshot that it lies over
//!             law               of one whose law of propagation was changed: its parameters
//!             origins           of one that is not all here: hosts that have the rest
//!             mirrors           of one that other hosts hold flush by flush: these
//!             held              of one that is held for another host, or was
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
mod encryption;
mod error;
mod files;
mod heat;
mod hold;
mod library;
mod mirror;
mod needs;
mod open;
mod plan;
mod read;
mod receive;
mod send;
mod store;
mod stream;
mod upkeep;
mod why;

pub use asking::Asking;
pub use away::{Absent, Lacking, PATIENCE};
pub use base::BaseFacts;
pub use counts::Counts;
pub use encryption::AtRest;
pub use error::{Blame, StoreError};
pub use hold::Held;
pub use library::Library;
pub use mirror::{MirrorLine, Round, Unheld};
pub use needs::Need;
pub use plan::{MirrorFacts, MirrorPlan, WhenAway};
pub use read::{Found, Patience, Scratch};
pub use send::Ahead;
pub use store::{Facts, SnapshotFacts, Store};
pub use stream::{Relayed, StreamHeader, relay};
pub use upkeep::Upkeep;
pub use why::{BlockLocation, Law, Why, WhyTransfer, offset_of};
