//! Places for servers.

use forkyard_types::VmId;
use std::{fmt, time::Duration};

/// Number of a slot, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotNo(pub u16);

impl fmt::Display for SlotNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slot, and the server in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Empty,
    /// The fork has been requested.
    Forking,
    /// A clone that has passed no check yet.
    Joining {
        vm: VmId,
        since: Duration,
    },
    /// Gets requests while it is healthy.
    Serving {
        vm: VmId,
        since: Duration,
        sick: Option<Duration>,
    },
    /// Gets no new requests.
    Draining {
        vm: VmId,
        /// Looks in a row that found no open request.
        idle: u8,
        sick: Option<Duration>,
    },
    /// The removal has been requested.
    Removing {
        vm: VmId,
    },
}

/// Part of its life that a server is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The fork has been requested.
    Forking,
    /// No check has passed yet.
    Joining,
    /// Given requests.
    Serving,
    /// The server's checks fail: it gets no requests.
    Sick,
    /// Given no new ones, and removed when it has answered all.
    Draining,
    /// The removal has been requested.
    Removing,
}

impl Slot {
    pub(crate) fn stage(&self) -> Option<Stage> {
        Some(match self {
            Self::Empty => return None,
            Self::Forking => Stage::Forking,
            Self::Joining { .. } => Stage::Joining,
            Self::Serving { sick: None, .. } => Stage::Serving,
            Self::Serving { sick: Some(_), .. } => Stage::Sick,
            Self::Draining { .. } => Stage::Draining,
            Self::Removing { .. } => Stage::Removing,
        })
    }

    /// The server, if it gets requests, and since when.
    pub(crate) fn healthy(&self) -> Option<(VmId, Duration)> {
        let Self::Serving {
            vm,
            since,
            sick: None,
        } = *self
        else {
            return None;
        };
        Some((vm, since))
    }

    pub(crate) fn vm(&self) -> Option<VmId> {
        match self {
            Self::Empty | Self::Forking => None,
            Self::Joining { vm, .. }
            | Self::Serving { vm, .. }
            | Self::Draining { vm, .. }
            | Self::Removing { vm } => Some(*vm),
        }
    }
}
