//! Reasons why etcd did not do what it was asked.

use crate::{Endpoint, Revision};
use std::io;

/// Reason why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// None was named.
    #[error("no etcd was named")]
    NoEndpoint,
    /// No endpoint can be connected to; nothing was asked.
    #[error("no etcd answers at {}", listed(tried))]
    Unreachable {
        /// Those that were tried.
        tried: Vec<Endpoint>,
        /// Error of the last one.
        source: io::Error,
    },
    /// The etcd did not answer in time. What was asked may have been done.
    #[error("the etcd at {endpoint} did not answer in time")]
    Late {
        /// Server that was asked.
        endpoint: Endpoint,
    },
    /// The connection broke off. What was asked may have been done.
    #[error("the connection to the etcd at {endpoint} broke")]
    Broke {
        /// Server that was asked.
        endpoint: Endpoint,
        /// Error of the connection.
        source: hyper::Error,
    },
    /// The etcd refused, or failed.
    #[error("etcd refused: {message}")]
    Refused {
        /// gRPC's code of it.
        code: u32,
        /// Message of the etcd.
        message: String,
    },
    /// The lease has run out, or was given back.
    #[error("the lease is gone")]
    LeaseGone,
    /// The revision has been compacted: look again, and watch from there.
    #[error("etcd has compacted its revisions before {kept:?}")]
    Compacted {
        /// The oldest it still knows of.
        kept: Revision,
    },
    /// The stream of changes has ended.
    #[error("etcd ended the stream of changes")]
    WatchEnded,
    /// The etcd's answer makes no sense.
    #[error("etcd's answer cannot be parsed: etcd 3.4 or later is needed")]
    Nonsense {
        /// Error of the parser, with its place.
        #[from]
        source: serde_json::Error,
    },
    /// The answer lacks something, or is too large.
    #[error("etcd's answer is not what was asked for: {what}")]
    Unexpected {
        /// Fault of the answer.
        what: &'static str,
    },
    /// The request cannot be written.
    #[error("the request to etcd cannot be written")]
    Request {
        /// Cause.
        #[from]
        source: hyper::http::Error,
    },
}

/// gRPC's code for a server that cannot serve at the moment.
const UNAVAILABLE: u32 = 14;
/// gRPC's code for one that did not manage in time.
const DEADLINE: u32 = 4;

impl EtcdError {
    /// Tells whether the request may have been carried out all the same.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Late { .. }
            | Self::Broke { .. }
            | Self::Nonsense { .. }
            | Self::Unexpected { .. } => true,
            Self::Refused { code, .. } => [UNAVAILABLE, DEADLINE].contains(code),
            Self::NoEndpoint
            | Self::Unreachable { .. }
            | Self::LeaseGone
            | Self::Compacted { .. }
            | Self::WatchEnded
            | Self::Request { .. } => false,
        }
    }

    /// Returns advice to an operator.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } | Self::NoEndpoint => Some(
                "is etcd running, and is its address right? `etcdctl --endpoints URL endpoint health` tells",
            ),
            Self::Late { .. } | Self::Broke { .. } => Some(
                "is etcd overloaded, or has it lost its majority? `etcdctl endpoint status` tells",
            ),
            Self::Refused { message, .. } if message.contains("space exceeded") => {
                Some("etcd is full: compact and defragment it, then `etcdctl alarm disarm`")
            }
            Self::Refused { .. }
            | Self::LeaseGone
            | Self::Compacted { .. }
            | Self::WatchEnded
            | Self::Nonsense { .. }
            | Self::Unexpected { .. }
            | Self::Request { .. } => None,
        }
    }
}

fn listed(endpoints: &[Endpoint]) -> String {
    let words: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
    words.join(", ")
}
