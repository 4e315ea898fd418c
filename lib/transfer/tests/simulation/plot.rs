//! Plan of a run, and the image it is about.

use forkyard_transfer::{
    Complete, Loss, Page, PageContent, PageSink, PageSource, Push, Received, Run, Sent, Window,
    flow,
};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::collections::BTreeSet;
use std::time::Duration;

/// Pages of the largest image that is drawn.
pub const LARGEST: u64 = 96;

/// Random numbers (splitmix64).
#[derive(Clone, Copy, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn chance(&mut self, percent: f64) -> bool {
        (self.next() >> 11) as f64 / ((1u64 << 53) as f64) * 100.0 < percent
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }
}

/// Faults of the network that packets suffer. Chances are in percent.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Bytes a second that leave the server, to all together.
    pub rate: u64,
    /// Bytes that may wait for that; more are lost.
    pub queue: u64,
    pub delay: Duration,
    pub loss: f64,
    pub twice: f64,
    /// Chance of being late by up to as much.
    pub late: f64,
    pub late_by: Duration,
    /// Chance that a packet is recorded, and sent to any peer later.
    pub replayed: f64,
    /// Chance that a packet is followed by one that is not authentic, or from
    /// elsewhere: it has to be refused, wherever it comes to.
    pub forged: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            queue: 256 << 10,
            delay: Duration::from_micros(100),
            loss: 0.0,
            twice: 0.0,
            late: 0.0,
            late_by: Duration::ZERO,
            replayed: 0.0,
            forged: 0.0,
        }
    }
}

/// From when until when, since the start of the run.
pub type Span = std::ops::Range<Duration>;

/// Time in which packets do not pass a host.
#[derive(Clone, Debug)]
pub struct Cut {
    pub when: Span,
    pub which: Which,
}

/// Packets that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    In,
    Out,
    Both,
}

impl Cut {
    fn stops(&self, way: Which, at: Duration) -> bool {
        self.when.contains(&at) && [way, Which::Both].contains(&self.which)
    }

    /// Tells whether any of them stops a packet that goes that way.
    pub fn any(cuts: &[Self], way: Which, at: Duration) -> bool {
        cuts.iter().any(|cut| cut.stops(way, at))
    }
}

/// A link that carries less to a host than it may be sent.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may wait for that.
    pub queue: u64,
}

/// Fate of a server.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    pub cuts: Vec<Cut>,
    /// Times at which it dies, and at which another is started in its place.
    pub dies: Vec<(Duration, Option<Duration>)>,
}

/// Task of one client.
#[derive(Clone, Debug)]
pub struct Job {
    /// Image that it wants, of those in the plot.
    pub image: usize,
    /// Time at which it starts.
    pub starts: Duration,
    /// Pages it waits for, in order.
    pub wants: Vec<PageNo>,
    /// So many at a time.
    pub at_once: usize,
    /// From one page to the next.
    pub thinks: Duration,
    pub complete: Complete,
    /// True if the group's packets ever reach it.
    pub multicast: bool,
    /// Times in which they do not.
    pub deaf: Vec<Span>,
    pub cuts: Vec<Cut>,
    /// Time in which its link is slow, and how.
    pub slow: Option<(Span, Slow)>,
    /// Time at which it is no more.
    pub dies: Option<Duration>,
}

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct Plot {
    pub seed: u64,
    pub pages: PageCount,
    pub network: Network,
    pub jobs: Vec<Job>,
    pub push: Push,
    pub working_set: Vec<Run>,
    pub disjoint: Vec<Run>,
    pub gone: BTreeSet<PageNo>,
    pub multicast: bool,
    /// Times in which no group's packets reach any member.
    pub deaf: Vec<Span>,
    pub law: flow::FlowLaw,
    /// One for each image, which has a server of its own; two draw the same group.
    pub servers: Vec<Fate>,
    pub datagram: usize,
    pub window: Window,
    /// Most pages that a client asks for in advance at a time.
    pub ahead: usize,
}

impl Plot {
    pub fn new(seed: u64, pages: u64) -> Self {
        Self {
            seed,
            pages: PageCount(pages),
            network: Network::default(),
            jobs: Vec::new(),
            push: Push::Nothing,
            working_set: Vec::new(),
            disjoint: Vec::new(),
            gone: BTreeSet::new(),
            multicast: true,
            deaf: Vec::new(),
            law: flow::FlowLaw::Delivery(flow::RateBounds::default()),
            servers: vec![Fate::default()],
            datagram: 1400,
            window: Window::default(),
            ahead: 64,
        }
    }
}

/// End of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client got the pages it wanted.
    Served,
    /// The client was told that it would not.
    Lost(Loss, Vec<PageNo>),
    /// The client died.
    Died,
}

/// End of a run.
#[derive(Debug)]
pub struct Outcome {
    pub endings: Vec<Ending>,
    /// By all servers together.
    pub sent: Sent,
    pub received: Vec<Received>,
    /// Time at which the last client had what it wanted.
    pub took: Duration,
    /// Times at which each client had.
    pub ended: Vec<Option<Duration>>,
    /// Time that each page was waited for.
    pub waits: Vec<Duration>,
    /// Pages each client had not got when it ended.
    pub wanting: Vec<BTreeSet<PageNo>>,
    /// Forged packets that came to a client, and to a server.
    pub forged: (u64, u64),
    /// Number of times each client was told to listen to a group, or to none.
    pub listened: Vec<u64>,
    /// Number of times a client was told of another group than before.
    pub regrouped: u64,
}

/// Returns the seed of the contents of one of the run's images.
pub fn contents(seed: u64, image: usize) -> u64 {
    seed.wrapping_add((image as u64) << 32)
}

/// Tells whether a page of the image of any run is zero: a fifth is, four in a
/// row.
pub fn is_zero(page: PageNo) -> bool {
    (page.0 / 4).is_multiple_of(5)
}

/// The page `page` of the image of a run: a fifth is zero, the rest packs well
/// or not at all.
pub fn content(seed: u64, page: PageNo) -> Page {
    let mut bytes = [0; PAGE_SIZE];
    let mut rng = Rng(seed ^ page.0.wrapping_mul(0xABCD_EF12_3456_789B));
    match page.0 / 4 % 5 {
        0 => {}
        1 => {
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&rng.next().to_le_bytes());
            }
        }
        _ => {
            for chunk in bytes.chunks_mut(64) {
                chunk.fill(rng.next().to_le_bytes()[0]);
            }
        }
    }
    bytes[0] |= u8::from(!is_zero(page));
    bytes
}

#[derive(Debug)]
pub struct Pages {
    pub seed: u64,
    pub size: PageCount,
    pub gone: BTreeSet<PageNo>,
}

impl PageSource for Pages {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        assert!(page.0 < self.size.0, "asked for what is not in the image");
        if self.gone.contains(&page) {
            return PageContent::Gone;
        }
        if is_zero(page) {
            return PageContent::Zero(PageCount((4 - page.0 % 4).min(self.size.0 - page.0)));
        }
        *out = content(self.seed, page);
        PageContent::Data
    }
}

/// Checks what is installed.
pub struct Check<'a> {
    pub seed: u64,
    pub gone: &'a BTreeSet<PageNo>,
    pub have: &'a mut BTreeSet<PageNo>,
}

impl PageSink for Check<'_> {
    fn page(&mut self, page: PageNo, bytes: &Page) {
        assert!(*bytes == content(self.seed, page), "{page} is wrong");
        assert!(!self.gone.contains(&page), "{page} cannot have come");
        assert!(self.have.insert(page), "{page} came twice");
    }

    fn zeros(&mut self, run: Run) {
        for page in run.iter() {
            assert!(
                content(self.seed, page) == [0; PAGE_SIZE],
                "{page} is not zero"
            );
            self.have.insert(page);
        }
    }
}
