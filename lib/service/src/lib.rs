//! Layers between a socket and the routes of the daemon's HTTP API.
//!
//! ```text
//! connection --remote: TLS, doors: a place--> request
//! request --gate: the asker--> audit --bodies: memory, input: form--> a route
//! route --reply--> answer or error; lines, streams, upgrade, websocket: answers without an end
//!       --gone---> an answer ends with its client
//!       --unread--> the rest of a body that it has not read is thrown away
//! ```
//!
//! It knows no VM, and decides nothing about any.

pub mod audit;
pub mod bodies;
pub mod counts;
pub mod doors;
pub mod gate;
pub mod gone;
pub mod input;
pub mod lines;
pub mod links;
pub mod local;
pub mod log_lines;
pub mod page;
pub mod parameters;
mod passing;
pub mod remote;
pub mod replay;
pub mod reply;
pub mod streams;
pub mod unread;
pub mod unreadable;
pub mod upgrade;
pub mod volume_way;
pub mod websocket;

pub use passing::{changes, strip};

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
