//! Images that go to other hosts, and those that come from them.
//!
//! ```text
//! offer: Image --> Server ==network==> Client --> Arrivals --all there--> Layer
//!                                        ^            |
//!                                        '-- asks <-- reads of the kernel
//! ```
//!
//! An image on its way can be read at once: a read that needs pages which are not
//! here asks for them, and is answered by the thread that puts the last of them
//! where it belongs; all clones on this host share what has come. When everything has come it is an image like any other.
//! If the other host is lost before, reads of what is missing fail, reads of
//! what is here do not, and no read waits.

mod arrivals;
mod links;
mod noise;
mod offered;
mod over;
mod working_set;

use arrivals::{Arrivals, ReadOutcome, Reader, Verdict};
pub use links::{Got, LinkUse};

use crate::PagerRefusal;
use crate::catalog::{Node, Ready};
use crate::protocol::{Fetching, Offering, PeerKey};
use crate::service::{PendingRead, Service, Span};
use crate::touched::Run;
use forkyard_image::Image;
use forkyard_transfer::driver::{Fetch, ImageOffer, PageClient, PageServer};
use forkyard_transfer::{Complete, FamilyKey, Push, Urgency, flow};
use forkyard_types::{ImageId, PageCount, PageNo};
use fuser::Errno;
use links::Coming;
use offered::{Offered, Wishes};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use std::{io, iter};

/// Longest packet: fits into Ethernet's 1500 bytes, and into a tunnel there.
const DATAGRAM: usize = 1400;
/// Time another host may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pages asked for in advance at a time: 2 MiB.
const AHEAD: usize = 512;
/// Time that messages which others wait for are left lying, once some have been dealt with:
/// they come in quick succession, and a sender of pages is not to wake a thread for each.
const NAP: Duration = Duration::from_millis(5);
/// Time the first host waits for the others before it is pushed to.
const GATHER: Duration = Duration::from_millis(500);

/// A read of the kernel, and where it is in the image.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub span: Span,
    pub read: PendingRead,
}

/// Images served to other hosts, and images fetched from them.
#[derive(Debug)]
pub(crate) struct Peers {
    server: OnceLock<PageServer>,
    coming: Mutex<Coming>,
    /// At most two words an image that comes, and so many of those that go.
    heard: Sender<PeerEvent>,
    /// Pages wanted elsewhere that are still to be noted.
    wanted: Arc<AtomicUsize>,
}

/// Messages that the threads which send and take pages have no time to deal
/// with.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// Everything of an image is here.
    Whole(Node),
    /// A clone on another host waits for a page of an image that is offered.
    Wanted(Node, PageNo),
}

/// An image on its way.
#[derive(Debug)]
pub(crate) struct Arriving {
    image: ImageId,
    from: SocketAddr,
    arrivals: Arc<Arrivals<Waiting>>,
    /// Set once it is started.
    client: OnceLock<PageClient>,
}

/// Progress of an image on its way.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Arrival {
    /// Pages of the image.
    pub pages: PageCount,
    /// Of them, those that are still away.
    pub away: PageCount,
    /// Of those, the ones that come before the rest, where everything is fetched.
    #[serde(default)]
    pub first: PageCount,
    /// Pages of the image that do.
    #[serde(default)]
    pub first_of: PageCount,
    /// True if those can still come.
    pub alive: bool,
    /// True if it is an image like any other now, independent of other hosts.
    pub settled: bool,
    /// Source of those; none if none is away, or the pager that knew has ended.
    pub from: Option<SocketAddr>,
    /// The first of those that will not come any more: page and number.
    pub lost: Vec<(PageNo, PageCount)>,
}

impl Peers {
    /// With what the [thread](start) is to hear that deals with it.
    pub fn new() -> (Self, Receiver<PeerEvent>) {
        let (heard, hears) = channel();
        let peers = Self {
            server: OnceLock::new(),
            coming: Mutex::default(),
            heard,
            wanted: Arc::default(),
        };
        (peers, hears)
    }

    fn get(&self, node: Node) -> Option<Arc<Arriving>> {
        self.coming().now.get(&node).cloned()
    }
}

/// Starts the thread that completes images of which everything has come, and notes what
/// clones elsewhere have wanted. It ends with the service. It is none that
/// takes pages, for it ends those, and none that sends them, for it waits for the catalog.
pub(crate) fn start(service: Weak<Service>, hears: Receiver<PeerEvent>) -> io::Result<()> {
    let run = move || {
        while let Ok(first) = hears.recv() {
            let Some(service) = service.upgrade() else {
                return;
            };
            let mut naps = false;
            for heard in iter::once(first).chain(hears.try_iter()) {
                match heard {
                    PeerEvent::Whole(node) => service.complete(node),
                    PeerEvent::Wanted(node, page) => {
                        naps = true;
                        service.peers().wanted.fetch_sub(1, Ordering::Relaxed);
                        service.catalog().wanted_elsewhere(node, page);
                    }
                }
            }
            drop(service);
            if naps {
                thread::sleep(NAP);
            }
        }
    };
    thread::Builder::new().name("arrivals".into()).spawn(run)?;
    Ok(())
}

impl Service {
    /// Listens to other hosts at `at`; at one address in the life of a pager, and
    /// asking for that again is no error.
    pub fn listen(&self, at: SocketAddr) -> Result<SocketAddr, PagerRefusal> {
        if let Some(server) = self.peers().server.get() {
            return listens_at(server, at);
        }
        let server = PageServer::start(at).map_err(|error| host(&error))?;
        // Another may have been faster.
        match self.peers().server.set(server) {
            Ok(()) | Err(_) => match self.peers().server.get() {
                Some(server) => listens_at(server, at),
                None => Err(PagerRefusal::ListensNot),
            },
        }
    }

    /// Serves an image to those other hosts that have its family's key. It is
    /// kept until that is [withdrawn](Self::withdraw), retired or not.
    pub fn offer(&self, id: ImageId, offering: Offering) -> Result<(), PagerRefusal> {
        let server = self.peers().server.get().ok_or(PagerRefusal::ListensNot)?;
        let (node, image, working_set) = self.catalog().offered(id)?;
        let (expected, push) = match offering.changed {
            Some(changed) => (changed, Push::WorkingSet),
            None => (working_set.into_iter().map(run).collect(), offering.push),
        };
        let all = offering.last.as_deref();
        let all = all.map(|last| noise::rest(image.pages(), last));
        let offer = ImageOffer {
            key: FamilyKey::new(offering.key.0).image(id),
            pages: image.pages(),
            data: image.data_pages(),
            group: offering.group,
            datagram: DATAGRAM,
            law: flow::FlowLaw::Delivery(flow::RateBounds::default()),
            push,
            working_set: expected
                .into_iter()
                .chain(all.into_iter().flatten())
                .collect(),
            gather: (offering.hosts, GATHER),
            disjoint: offering.disjoint,
        };
        let offered = Offered {
            node,
            image,
            wanted: Wishes {
                heard: self.peers().heard.clone(),
                waiting: self.peers().wanted.clone(),
            },
        };
        let offered = server.offer(offer, Box::new(offered));
        offered.map_err(|error| host(&error))
    }

    /// Serves an image to other hosts no more.
    pub fn withdraw(&self, image: ImageId, key: PeerKey) {
        if let Some(server) = self.peers().server.get() {
            server.withdraw(FamilyKey::new(key.0).image(image).channel());
        }
    }

    /// An image of so many pages comes from another host: its file exists from
    /// now on, and can be read. One that was promised comes in this way.
    pub fn fetch(&self, image: ImageId, fetching: &Fetching) -> Result<(), PagerRefusal> {
        let pages = fetching.pages;
        let arrivals = Arrivals::new(image, pages).map_err(|error| host(&error))?;
        let arrivals = arrivals.with_order(&fetching.first, &fetching.last);
        let arrivals = match &fetching.over {
            Some(over) => arrivals.over(self.below(pages, over)?),
            None => arrivals,
        };
        let arriving = Arc::new(Arriving {
            image,
            from: fetching.server,
            arrivals: Arc::new(arrivals),
            client: OnceLock::new(),
        });
        let (node, waiting) = {
            let mut catalog = self.catalog();
            let (node, waiting) = catalog.arrive(image, pages)?;
            // Before any process can read it.
            let coming = Arc::clone(&arriving);
            self.peers().coming().now.insert(node, coming);
            self.note(&catalog, node, None);
            (node, waiting)
        };
        // Kept there until there is a client.
        let again = waiting.into_iter();
        again.for_each(|read| self.read_arriving(node, read));
        let fetch = Fetch {
            server: fetching.server,
            local: fetching.local,
            key: FamilyKey::new(fetching.key.0).image(image),
            pages,
            patience: PATIENCE,
            ahead: AHEAD,
        };
        let sink = Reader::new(Arc::clone(&arriving.arrivals), {
            let (arrivals, heard) = (Arc::clone(&arriving.arrivals), self.peers().heard.clone());
            move |told| match told {
                ReadOutcome::Answer(reads, fresh) => {
                    for read in reads {
                        match read.span.only().and_then(|page| fresh.page(page)) {
                            Some(bytes) => read.read.reply.data(read.span.wanted(bytes)),
                            None => answer(&arrivals, read),
                        }
                    }
                }
                ReadOutcome::Refuse(reads, why) => {
                    reads.into_iter().for_each(|read| refuse(read, &why))
                }
                // Fails only if the thread is gone, and the pager with it.
                ReadOutcome::Whole => drop(heard.send(PeerEvent::Whole(node))),
            }
        });
        match PageClient::start(fetch, Box::new(sink)) {
            Ok(client) => {
                if let Some(below) = arriving.arrivals.below() {
                    client.have_all_but(below.changes());
                }
                client.put_first(&fetching.first);
                client.put_last(&fetching.last);
                if fetching.settle {
                    client.complete(Complete::Yes);
                }
                // Reads that were there before it.
                client.want(&arriving.arrivals.wanted(), Urgency::Waited);
                let _ = arriving.client.set(client);
                // And those that came meanwhile.
                arriving.want(&arriving.arrivals.wanted(), Urgency::Waited);
                if arriving.arrivals.is_whole() {
                    // Nothing of it comes that could say so.
                    drop(self.peers().heard.send(PeerEvent::Whole(node)));
                }
                Ok(())
            }
            Err(error) => {
                let _ = self.fail(image, "cannot fetch from another host");
                Err(host(&error))
            }
        }
    }

    /// Chooses whether to fetch all of an image in the background.
    pub fn settle(&self, image: ImageId, complete: Complete) -> Result<(), PagerRefusal> {
        let node = self.catalog().find(image).map(|(node, _)| node);
        let node = node.ok_or(PagerRefusal::UnknownImage { image })?;
        if let Some(arriving) = self.peers().get(node)
            && let Some(client) = arriving.client.get()
        {
            client.complete(complete);
        }
        Ok(())
    }

    /// Returns the progress of an image on its way; one that is not on its way
    /// is all here.
    pub fn arrival(&self, image: ImageId) -> Result<Arrival, PagerRefusal> {
        let (node, pages, settled) = {
            let catalog = self.catalog();
            let found = catalog.find(image);
            let (node, pages) = found.ok_or(PagerRefusal::UnknownImage { image })?;
            (node, pages, catalog.is_ready(node))
        };
        let arriving = (!settled).then(|| self.peers().get(node)).flatten();
        Ok(match arriving {
            Some(arriving) => {
                let progress = arriving.arrivals.progress();
                Arrival {
                    pages,
                    away: PageCount(pages.0.saturating_sub(progress.have.0)),
                    first: progress.first,
                    first_of: arriving.arrivals.first_of(),
                    alive: progress.alive,
                    settled,
                    from: Some(arriving.from),
                    lost: progress.lost,
                }
            }
            // The host that had part of it has ended, and it is all lost.
            None => Arrival {
                pages,
                away: PageCount(if settled { 0 } else { pages.0 }),
                first: PageCount(if settled { 0 } else { pages.0 }),
                first_of: pages,
                alive: settled,
                settled,
                from: None,
                lost: (!settled)
                    .then_some((PageNo(0), pages))
                    .into_iter()
                    .collect(),
            },
        })
    }

    /// A read of an image that is on its way.
    pub fn read_arriving(&self, node: Node, read: PendingRead) {
        // If it has just come, then it is in the catalog, as everything else.
        let Some(arriving) = self.peers().get(node) else {
            return self.read_again(node, read);
        };
        let size = arriving.arrivals.pages();
        let Some(span) = Span::of(read.offset, read.bytes, size) else {
            return read.reply.data(&[]);
        };
        let waiting = Waiting { span, read };
        let verdict = arriving.arrivals.read(span.run(), waiting);
        // Before all else: a guest is stopped meanwhile.
        if let Verdict::Kept(missing) = &verdict {
            arriving.want(missing, Urgency::Waited);
        }
        // Recorded as of any image, for hosts that get it from us. Now, and not when it
        // is answered: the thread that does that holds a lock that comes after the catalog's.
        let expected = self.catalog().served(node, span.run(), Instant::now());
        match verdict {
            Verdict::Here(waiting) => answer(&arriving.arrivals, waiting),
            Verdict::Kept(_) => {}
            Verdict::Never(waiting) => waiting.read.reply.error(Errno::EIO),
        }
        if let Some(next) = expected.next.filter(|_| self.reads_ahead()) {
            arriving.want(&arriving.arrivals.away(next), Urgency::Ahead);
        }
    }

    /// Everything is here: from now on it is an image like any other.
    fn complete(&self, node: Node) {
        let Some(arriving) = self.peers().get(node) else {
            return;
        };
        let image = arriving.image;
        let layer = match arriving.arrivals.layer() {
            Ok(layer) => layer,
            Err(error) => {
                // It goes on being served from what came.
                let error: &dyn std::error::Error = &error;
                return tracing::error!(%image, error, "an image that has come makes no layer");
            }
        };
        let below = arriving.arrivals.below();
        let whole = match Image::new(Arc::new(layer), below.map(arrivals::Below::image)) {
            Ok(whole) => whole,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                return tracing::error!(%image, error, "image has come and is no image");
            }
        };
        let ready = Ready::new(whole, below.map(arrivals::Below::id), Instant::now());
        let mut catalog = self.catalog();
        catalog.arrived(node, ready);
        self.note(&catalog, node, None);
        drop(catalog);
        tracing::info!(%image, "image has come from another host");
        self.peers().forget(node);
    }
}

impl Arriving {
    fn want(&self, pages: &[PageNo], urgency: Urgency) {
        if let Some(client) = self.client.get()
            && !pages.is_empty()
        {
            client.want(pages, urgency);
        }
    }
}

/// Answers a read of pages that are here.
fn answer(arrivals: &Arrivals<Waiting>, Waiting { span, read }: Waiting) {
    let mut buffer = vec![0; span.length()];
    match arrivals.copy(span.first, &mut buffer) {
        Ok(()) => read.reply.data(span.wanted(&buffer)),
        Err(error) => {
            let first = span.first;
            tracing::error!(%first, %error, "cannot read what has come");
            read.reply.error(Errno::EIO);
        }
    }
}

/// Answers a read of pages that will not come.
fn refuse(Waiting { span, read }: Waiting, why: &str) {
    let (first, pages) = (span.first, span.run().pages);
    tracing::error!(%first, %pages, %why, "pages of another host do not come");
    read.reply.error(Errno::EIO);
}

/// Returns the address at which it listens, if that is the one that is wanted.
fn listens_at(server: &PageServer, wanted: SocketAddr) -> Result<SocketAddr, PagerRefusal> {
    let at = server.address();
    match at.ip() == wanted.ip() && [0, at.port()].contains(&wanted.port()) {
        true => Ok(at),
        false => Err(PagerRefusal::ListensAlready),
    }
}

fn run(run: Run) -> forkyard_transfer::Run {
    forkyard_transfer::Run {
        first: run.first,
        pages: run.pages,
    }
}

fn host(error: &io::Error) -> PagerRefusal {
    PagerRefusal::Host {
        why: error.to_string(),
    }
}
