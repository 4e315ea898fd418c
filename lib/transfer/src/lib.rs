//! Moving the pages of an image from the host that has it to those that need it.
//!
//! ```text
//!                 unicast: asks, reports
//! Receiver <-----------------------------> Sender <-- PageSource
//!    |     <------------------------------
//!    v      unicast or multicast: pages
//! PageSink
//! ```
//!
//! State machines: bytes and `now` go in, bytes, events and the time to wait come out.
//! They open no socket, read no clock and draw no random number, so
//! that thousands of runs with every kind of bad network fit into seconds, and
//! each can be run again. Pages of memory and of disk are the same to them.
//!
//! - [`wire`]: packets, byte by byte; what is not authentic installs nothing.
//! - [`Sender`]: membership, lockstep detection, push, flow control, end game
//!   (SnowFlock, 3.5).
//! - [`Receiver`]: sees to it that what is wanted comes, or says that it will not.
//! - [`flow`]: the paper's law and a better one.
//! - [`driver`]: all that on sockets and threads.
//!
//! What it is like, and what was measured, is in `docs/transfer.md`.

mod asks;
mod assembly;
mod codec;
pub mod driver;
pub mod flow;
mod key;
mod lane;
mod lockstep;
mod members;
mod meter;
mod pace;
mod pages;
mod push;
mod receiver;
mod roundtrip;
mod seal;
mod sender;
mod serving;
mod source;
mod stats;
mod step;
pub mod wire;

pub use codec::{Encoding, Page, is_noise};
pub use key::{Channel, CookieSecret, FamilyKey, ImageKey};
pub use lockstep::Window;
pub use pages::{PageSet, Run};
pub use push::{Push, UnknownPush};
pub use receiver::{ClientTurn, Complete, Loss, Receiver, ReceiverEvent, Receiving, Via};
pub use sender::Sender;
pub use serving::{EndGame, LEAST_DATAGRAM, Serving};
pub use source::{PageContent, PageSink, PageSource};
pub use stats::{CountedLink, Received, Sent, Tally};
pub use step::{SenderStep, To};
pub use wire::{ClientId, ServerEpoch, Urgency};
