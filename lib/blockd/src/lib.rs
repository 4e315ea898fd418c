//! Server of volumes: NBD for their users, a control socket for their managers.
//!
//! ```text
//! QEMU --NBD--> connection --reads, writes--> Library --> files
//!                   |  ^
//!                   v  | flushes, reads that a disk answers
//!                 workers                  control socket --> Library
//! ```
//!
//! Exports are `NAME:EPOCH`, for a writer that was opened by the control socket, `NAME`, which is
//! opened for one connection and closed with it, and `NAME@SNAPSHOT`, read-only.
//!
//! May be killed at any time. What was flushed is there when the next server starts, and so are
//! writers that were opened by the control socket: clients that reconnect go on. A client that
//! breaks the protocol loses its connection, and one that does not read its replies holds up
//! itself alone. Clients of other users than the server's open only what they have a pass for, a
//! code in the name of the export, and are few of each user.

mod client;
mod connection;
mod control;
mod exports;
mod lines;
mod mirrors;
mod passes;
mod protocol;
mod server;
mod status;
mod workers;

pub use client::{BlockdClient, BlockdError};
pub use forkyard_volume::Geometry;
pub use forkyard_volume_store::{
    Blame, BlockLocation, Counts, Held, Law, MirrorFacts, MirrorPlan, Need, Relayed,
    StoreError as StreamError, WhenAway, Why, WhyTransfer, relay,
};
pub use protocol::{Answer, Encrypt, Hot, Request};
pub use server::{BlockServer, BlockdSetup, BlockdStartError, EndRequest, Users};
pub use status::{LackingStatus, SnapshotStatus, Status, Writer};
