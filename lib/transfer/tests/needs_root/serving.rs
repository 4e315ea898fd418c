//! An image that a host serves, and what others got of it.

use crate::hosts::Hosts;
use forkyard_transfer::driver::{Fetch, ImageOffer, PageClient, PageServer};
use forkyard_transfer::{
    FamilyKey, ImageKey, Page, PageContent, PageSink, PageSource, Push, Run, flow,
};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Port of the groups.
pub const GROUP: u16 = 4790;
/// Time a server may be silent: longer than a live one ever is on a busy
/// machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Every seventh page is zero, every third packs to nothing, the others not at all.
pub fn content(page: PageNo) -> Page {
    let mut bytes = [0; PAGE_SIZE];
    if page.0.is_multiple_of(7) {
        return bytes;
    }
    if page.0.is_multiple_of(3) {
        bytes.fill(u8::try_from(page.0 % 251 + 1).expect("small"));
        return bytes;
    }
    let mut state = page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}

struct Pages;

impl PageSource for Pages {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        if page.0.is_multiple_of(7) {
            return PageContent::Zero(PageCount(1));
        }
        *out = content(page);
        PageContent::Data
    }
}

/// Pages that came; each was found right.
#[derive(Clone, Default)]
pub struct Got(Arc<Mutex<BTreeSet<PageNo>>>);

impl Got {
    pub fn count(&self) -> u64 {
        self.0.lock().expect("unharmed").len() as u64
    }
}

impl PageSink for Got {
    fn page(&mut self, page: PageNo, bytes: &Page) {
        assert!(*bytes == content(page), "{page} is wrong");
        assert!(
            self.0.lock().expect("unharmed").insert(page),
            "{page} came twice"
        );
    }

    fn zeros(&mut self, run: Run) {
        for page in run.iter() {
            assert!(page.0.is_multiple_of(7), "{page} is not zero");
            self.0.lock().expect("unharmed").insert(page);
        }
    }
}

/// Way in which an image is served.
#[derive(Clone, Debug)]
pub struct Way {
    pub pages: u64,
    pub group: Option<u16>,
    pub push: Push,
    pub law: flow::FlowLaw,
    pub clients: usize,
    pub disjoint: Vec<Run>,
}

impl Way {
    pub fn unicast(pages: u64) -> Self {
        Self {
            pages,
            group: None,
            push: Push::Nothing,
            law: flow::FlowLaw::Delivery(flow::RateBounds::default()),
            clients: 1,
            disjoint: Vec::new(),
        }
    }

    pub fn multicast(pages: u64, clients: usize) -> Self {
        Self {
            group: Some(GROUP),
            clients,
            ..Self::unicast(pages)
        }
    }
}

/// Host 0 serves, the others fetch.
pub struct Serving {
    pub server: PageServer,
    pub key: ImageKey,
    pub pages: PageCount,
}

impl Serving {
    pub fn start(hosts: &Hosts, way: Way) -> Self {
        let at = SocketAddr::new(hosts.address(0), 4789);
        let server = hosts
            .on(0, move || PageServer::start(at))
            .expect("a server");
        let key = FamilyKey::new([5; 32]).image(ImageId::random());
        let pages = PageCount(way.pages);
        let offer = ImageOffer {
            key: key.clone(),
            pages,
            data: PageCount(way.pages - way.pages.div_ceil(7)),
            group: way.group,
            datagram: 1400,
            law: way.law,
            push: way.push,
            working_set: Vec::new(),
            gather: (way.clients, Duration::from_secs(1)),
            disjoint: way.disjoint,
        };
        server.offer(offer, Box::new(Pages)).expect("offered");
        Self { server, key, pages }
    }

    /// A client on host `n`.
    pub fn client(&self, hosts: &Hosts, n: u8) -> (PageClient, Got) {
        let got = Got::default();
        let fetch = Fetch {
            server: self.server.address(),
            local: hosts.address(n),
            key: self.key.clone(),
            pages: self.pages,
            patience: PATIENCE,
            ahead: 256,
        };
        let sink = Box::new(got.clone());
        let client = hosts.on(n, move || PageClient::start(fetch, sink));
        (client.expect("a client"), got)
    }
}

/// Waits until `holds`; that it does so at last is all that is asked of a
/// machine that may be slow.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}
