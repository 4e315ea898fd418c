//! The part that a site has in the move of a member.
//!
//! ```text
//! source       none -Stopped-> Passing -Stayed-> Here
//!                                 `----Left----> none
//! destination  none -Expected-> Expecting -Announced-> Arrived -Settled-> Here
//!                                   `------GivenUp---> none
//! ```
//!
//! An event that does not belong to the part a site has changes nothing.

use forkyard_types::VmId;
use std::net::Ipv4Addr;

/// Part of a site in a move, or what one has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Destination: frames go to the port and wait there.
    Expecting {
        /// Site that has the member, and will pass frames on.
        from: Ipv4Addr,
        /// VM whose port it is.
        port: VmId,
    },
    /// Source: the member stands still, frames are passed on.
    Passing {
        /// Site that they are passed on to.
        to: Ipv4Addr,
        /// VM whose port had them.
        port: VmId,
    },
    /// Destination: the member runs here, and sites that have not heard of it are served by
    /// its former site.
    Arrived {
        /// Former site of the member.
        from: Ipv4Addr,
        /// VM whose port it is.
        port: VmId,
    },
    /// The member runs here; frames go to its port before it has ever spoken.
    Here {
        /// VM whose port it is.
        port: VmId,
    },
}

/// Port of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Frames wait, and the VM does not speak.
    Shut(VmId),
    /// Frames go to the VM.
    Open(VmId),
}

/// Step of a move, as one site sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The member comes here from that site: its port is there.
    Expected {
        /// Site that has the member.
        from: Ipv4Addr,
        /// VM whose port it is.
        port: VmId,
    },
    /// The member stands still here, and goes to that site.
    Stopped {
        /// Site that it goes to.
        to: Ipv4Addr,
        /// VM whose port it is.
        port: VmId,
    },
    /// The member has said, itself or by its host, that it is here.
    Announced,
    /// All sites have heard of it.
    Settled,
    /// The member does not come.
    GivenUp,
    /// The member goes on here after all.
    Stayed,
    /// The member goes on elsewhere.
    Left,
}

impl Part {
    /// Takes a step of a site that has this part, or none.
    pub fn step(part: Option<Self>, event: Event) -> Option<Self> {
        match (part, event) {
            // What was before is over: a VM that comes has no other part.
            (_, Event::Expected { from, port }) => Some(Self::Expecting { from, port }),
            (_, Event::Stopped { to, port }) => Some(Self::Passing { to, port }),
            (Some(Self::Expecting { from, port }), Event::Announced) => {
                Some(Self::Arrived { from, port })
            }
            (Some(Self::Arrived { port, .. }), Event::Settled)
            | (Some(Self::Passing { port, .. }), Event::Stayed) => Some(Self::Here { port }),
            (Some(Self::Expecting { .. }), Event::GivenUp)
            | (
                Some(Self::Passing { .. } | Self::Here { .. } | Self::Arrived { .. }),
                Event::Left,
            ) => None,
            (
                part,
                Event::Announced | Event::Settled | Event::GivenUp | Event::Stayed | Event::Left,
            ) => part,
        }
    }

    /// Port that frames go to, if that is here.
    pub fn port(self) -> Option<Port> {
        match self {
            Self::Expecting { port, .. } => Some(Port::Shut(port)),
            Self::Arrived { port, .. } | Self::Here { port } => Some(Port::Open(port)),
            Self::Passing { .. } => None,
        }
    }

    /// VM that it is about.
    pub fn vm(self) -> VmId {
        match self {
            Self::Expecting { port, .. }
            | Self::Arrived { port, .. }
            | Self::Here { port }
            | Self::Passing { port, .. } => port,
        }
    }
}
