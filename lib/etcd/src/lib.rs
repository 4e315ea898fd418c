//! A client of etcd v3, by the JSON gateway that every etcd serves on the port
//! of its clients: so it takes HTTP and no gRPC.
//!
//! ```text
//! get, range, put, delete   one key, or those with a prefix
//! txn                       compare, then do one thing or the other: atomic
//! grant, keep_alive, revoke leases: keys that go with their owner
//! watch                     what changes, from a revision on, as a stream
//! ```
//!
//! A call is tried at the endpoints in turn until one can be connected to;
//! once a request is sent it is not sent again, for it may have been carried
//! out: [`EtcdError::is_unknown`] says so, and the caller decides. Calls are
//! cancel-safe in the same sense.

mod client;
mod endpoint;
mod error;
pub mod server;
mod txn;
mod watch;
mod wire;

pub use client::Etcd;
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use error::EtcdError;
pub use txn::{Compare, Op, OpResult, Txn, TxnOutcome};
pub use watch::{EventBatch, KeyEvent, KeyWatch};
pub use wire::{KeyEntry, KeyRange, Keys, LeaseId, Revision};
