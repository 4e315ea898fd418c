//! Next action of a server, and where its packets go.

use crate::receiver::Via;
use crate::stats::CountedLink;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Instant;

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To one.
    One(SocketAddr),
    /// To all, with a TTL of 1.
    Group(SocketAddrV4),
}

impl To {
    /// Returns the way that packets take.
    pub fn via(self) -> Via {
        match self {
            Self::One(_) => Via::Alone,
            Self::Group(_) => Via::Group,
        }
    }

    pub(crate) fn link(self) -> CountedLink {
        match self {
            Self::One(to) => CountedLink::Host(to.ip()),
            Self::Group(_) => CountedLink::Group,
        }
    }
}

/// Next action of a server.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderStep {
    /// Send what was written, then ask again.
    Send(To),
    /// Nothing before then, unless a packet comes; `None`: nothing at all.
    Wait(Option<Instant>),
}
