//! Packets that have to be refused, and pages in them that are wrong wherever they
//! are installed.

use crate::plot::{LARGEST, Pages, content, is_zero};
use forkyard_transfer::{
    ClientId, ClientTurn, Complete, CookieSecret, EndGame, FamilyKey, ImageKey, Page, PageContent,
    PageSink, PageSource, Push, Receiver, Receiving, Run, Sender, SenderStep, ServerEpoch, Serving,
    To, Window, flow,
};
use forkyard_types::{ImageId, PageCount, PageNo};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes of a packet that name its kind, its channel, that and its run, and its number.
const KIND: usize = 3;
const CHANNEL: Range<usize> = 4..12;
const NAMES: Range<usize> = 4..20;
const SEQ: Range<usize> = 20..28;
/// The kinds that name a run of the server which a client compares with its own.
const OF_AN_EPOCH: RangeInclusive<u8> = 19..=21;

/// Packets that can be sent to servers and clients of one image.
pub struct Forgeries {
    pub to_clients: Vec<Vec<u8>>,
    pub to_servers: Vec<Vec<u8>>,
}

/// The keys of the images of every run: both draw the same group at first, and
/// never the same again.
pub fn keys() -> &'static [ImageKey; 2] {
    static KEYS: OnceLock<[ImageKey; 2]> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut drawn = HashMap::new();
        let mut families = (0u32..).map(|n| {
            let mut secret = [0; 32];
            secret[..4].copy_from_slice(&n.to_le_bytes());
            FamilyKey::new(secret).image(ImageId(Default::default()))
        });
        families
            .find_map(|key| {
                let same: Option<ImageKey> = drawn.insert(key.group(0), key.clone());
                same.map(|same| [same, key])
            })
            .expect("there are more keys than groups")
    })
}

/// Returns packets forged to harm holders of one of the [`keys`].
pub fn of(image: usize) -> &'static Forgeries {
    static ALL: OnceLock<[Forgeries; 2]> = OnceLock::new();
    &ALL.get_or_init(|| keys().each_ref().map(forge))[image]
}

fn forge(key: &ImageKey) -> Forgeries {
    let elsewhere = FamilyKey::new([0xEE; 32]).image(ImageId(Default::default()));
    let mut forged = Forgeries {
        to_clients: Vec::new(),
        to_servers: Vec::new(),
    };
    for group in [Some(4790), None] {
        // Of another image, as it is, and as if it were of this one.
        let mut other = capture(&elsewhere, group);
        let relabel = |packet: &Vec<u8>| {
            let mut packet = packet.clone();
            packet[CHANNEL].copy_from_slice(&key.channel().0.to_le_bytes());
            packet
        };
        forged
            .to_clients
            .extend(other.to_clients.iter().map(relabel));
        forged
            .to_servers
            .extend(other.to_servers.iter().map(relabel));
        forged.to_clients.append(&mut other.to_clients);
        forged.to_servers.append(&mut other.to_servers);
        // Of this one, and authentic, but of another run of its server.
        let old = capture(key, group).to_clients.into_iter();
        forged
            .to_clients
            .extend(old.filter(|packet| OF_AN_EPOCH.contains(&packet[KIND])));
    }
    forged
}

/// Makes it look as if it came after the packet `seen`, by so much.
pub fn pose(packet: &mut [u8], seen: &[u8], ahead: u64) {
    let number = seen[SEQ].try_into().map(u64::from_le_bytes);
    let next = number.expect("eight").saturating_add(1 + ahead);
    packet[NAMES].copy_from_slice(&seen[NAMES]);
    packet[SEQ].copy_from_slice(&next.to_le_bytes());
}

/// All packets of a server that has everything wrong, and of its clients.
fn capture(key: &ImageKey, group: Option<u16>) -> Forgeries {
    let mut now = Instant::now();
    let pages = PageCount(LARGEST);
    let serving = Serving {
        key: key.clone(),
        // Those of the runs are drawn at random.
        epoch: ServerEpoch(0x0BAD),
        secret: CookieSecret::new([9; 32]),
        pages,
        data: pages,
        datagram: 1400,
        group,
        law: flow::FlowLaw::Delivery(flow::RateBounds::default()),
        push: Push::Nothing,
        working_set: Vec::new(),
        gather: (0, Duration::ZERO),
        disjoint: Vec::new(),
        window: Window::default(),
        end_game: EndGame::default(),
        patience: Duration::from_secs(20),
    };
    let mut sender = Sender::new(serving, now);
    let mut clients: Vec<_> = (1..=4)
        .map(|n: u8| {
            let receiving = Receiving {
                key: key.clone(),
                client: ClientId(n.into()),
                nonce: 1,
                pages,
                patience: Duration::from_secs(5),
                ahead: 64,
            };
            let mut receiver = Receiver::new(receiving, now).expect("memory");
            receiver.complete(Complete::Yes);
            (SocketAddr::from(([10, 0, 0, n], 4000)), receiver)
        })
        .collect();
    let mut captured = Forgeries {
        to_clients: Vec::new(),
        to_servers: Vec::new(),
    };
    let mut out = Vec::new();
    while clients.iter().any(|(_, client)| client.pages() < pages) {
        now += Duration::from_millis(1);
        for (from, client) in &mut clients {
            while client.poll(now, &mut out) == ClientTurn::Send {
                sender.receive(*from, &out, now);
                captured.to_servers.push(out.clone());
            }
        }
        while let SenderStep::Send(to) = sender.poll(&mut Wrong, now, &mut out) {
            for (at, client) in &mut clients {
                if matches!(to, To::Group(_)) || to == To::One(*at) {
                    client.receive(&out, to.via(), &mut Nowhere, now);
                }
            }
            captured.to_clients.push(out.clone());
        }
    }
    captured
}

/// Pages of which none is as any run has it.
struct Wrong;

impl PageSource for Wrong {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        // What is zero is data, and every fourth page of data is zero.
        if !is_zero(page) && page.0.is_multiple_of(4) {
            return PageContent::Zero(PageCount(1));
        }
        *out = content(u64::MAX, page);
        out[1] ^= 0xFF;
        PageContent::Data
    }
}

struct Nowhere;

impl PageSink for Nowhere {
    fn page(&mut self, _: PageNo, _: &Page) {}
    fn zeros(&mut self, _: Run) {}
}

#[test]
fn forged_pages_are_wrong_and_there_are_some_of_every_kind() {
    let mut wrong = Wrong;
    for page in (0..LARGEST).map(PageNo) {
        let (mut forged, mut right) = ([0; _], [0; _]);
        let is = wrong.read(page, &mut forged);
        let mut source = Pages {
            seed: 1,
            size: PageCount(LARGEST),
            gone: Default::default(),
        };
        let was = source.read(page, &mut right);
        assert!(forged != right || is != was, "{page}");
    }
    for image in [0, 1] {
        for kind in 16..=21u8 {
            let of_kind = of(image)
                .to_clients
                .iter()
                .filter(|packet| packet[KIND] == kind);
            // No client was unknown to that server, and none asked for nothing.
            assert!([18, 19].contains(&kind) || of_kind.count() > 2, "{kind}");
        }
        assert!(of(image).to_servers.len() > 20);
    }
    let [a, b] = keys();
    assert!(a.group(0) == b.group(0) && a.group(1) != b.group(1));
}
