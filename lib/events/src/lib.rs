//! One broadcast of what happens on a host.
//!
//! ```text
//! publisher --publish--> Log (a ring, the last N) <--next-- Subscription (a position)
//! publisher --'                                   <--next-- Subscription
//! ```
//!
//! Publishers never wait. Events are kept once, in a ring: a subscription is a position in it
//! and no queue, so a slow reader costs no memory. A reader that the ring has overtaken, or
//! that resumes at an event which is gone, reads a `lagged` event with the number of those
//! that it missed, and goes on with the oldest one kept.
//!
//! The stream has a new id after each start of the daemon, for events are not kept on disk. A
//! reader that resumes in another stream is told that it missed an unknown number.
//!
//! Opens no socket and writes no file.

mod broadcast;
mod filter;
mod log;

pub use broadcast::{Broadcast, Subscription};
pub use filter::Selection;
pub use log::Log;

#[cfg(test)]
mod tests;
