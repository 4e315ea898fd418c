//! Counters of requests and connections, in the format of Prometheus. The names are an
//! interface: they are listed in docs/operations.md.

use forkyard_auth::Refused;
use forkyard_types::ErrorKind;
use metrics::{counter, describe_counter, describe_gauge, gauge};

const ERRORS: &str = "forkyard_errors_total";
const NOT_LET_IN: &str = "forkyard_unauthorized_total";
const CONNECTIONS: &str = "forkyard_connections";

/// Says what they are.
pub fn describe() {
    describe_counter!(ERRORS, "Requests refused or failed, by kind");
    describe_counter!(NOT_LET_IN, "Requests over the network without a good token");
    describe_gauge!(CONNECTIONS, "Connections over the network");
}

/// A request was refused, or failed.
pub fn refused(kind: ErrorKind) {
    let kind = match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Exhausted => "exhausted",
        ErrorKind::Guest => "guest",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Host => "host",
        ErrorKind::Unauthorized => "unauthorized",
        ErrorKind::Forbidden => "forbidden",
    };
    counter!(ERRORS, "kind" => kind).increment(1);
}

/// Counts a request over the network without a good token.
pub fn not_let_in(why: &Refused) {
    let reason = match why {
        Refused::NoToken => "none",
        Refused::Expired { .. } => "expired",
        Refused::Unknown => "unknown",
        // No fault of the client's.
        Refused::Store(_) => return,
    };
    counter!(NOT_LET_IN, "reason" => reason).increment(1);
}

/// A connection over the network, until dropped.
#[derive(Debug)]
pub struct Connected(());

impl Connected {
    /// One more.
    pub fn counted() -> Self {
        gauge!(CONNECTIONS).increment(1);
        Self(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        gauge!(CONNECTIONS).decrement(1);
    }
}
