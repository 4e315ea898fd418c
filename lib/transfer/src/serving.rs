//! Parameters of a server.

use crate::flow::FlowLaw;
use crate::key::{CookieSecret, ImageKey};
use crate::lockstep::Window;
use crate::pages::Run;
use crate::push::Push;
use crate::wire::ServerEpoch;
use forkyard_types::PageCount;
use std::time::Duration;

/// Least length of a packet: a page has at most eight parts.
pub const LEAST_DATAGRAM: usize = 640;

/// Parameters of a server.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The image's key.
    pub key: ImageKey,
    /// This run of the server: drawn at random.
    pub epoch: ServerEpoch,
    /// Drawn at random.
    pub secret: CookieSecret,
    /// Size of the image.
    pub pages: PageCount,
    /// Pages of it that are not known to be zero.
    pub data: PageCount,
    /// Longest packet, without IP and UDP; at least [`LEAST_DATAGRAM`].
    pub datagram: usize,
    /// Multicast group, if there is one.
    pub group: Option<u16>,
    /// Law of the rate.
    pub law: FlowLaw,
    /// Pages to send unasked.
    pub push: Push,
    /// Pages clones of this image are expected to want first, in that order.
    pub working_set: Vec<Run>,
    /// Nothing is pushed before so many are here, or so much time has passed
    /// since the first: a member that comes later would have to ask for it again.
    pub gather: (usize, Duration),
    /// Pages that each client reads for itself.
    pub disjoint: Vec<Run>,
    /// Window within which repeats are ignored.
    pub window: Window,
    /// Condition under which the group is left alone.
    pub end_game: EndGame,
    /// A member silent for so long is forgotten.
    pub patience: Duration,
}

/// Condition under which answers go to the member that asked only, because the others have the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndGame {
    /// So many of a hundred pages of data have gone to the group.
    pub percent: u8,
    /// Time without an ask.
    pub idle: Duration,
}

impl Default for EndGame {
    fn default() -> Self {
        Self {
            percent: 95,
            idle: Duration::from_secs(30),
        }
    }
}
