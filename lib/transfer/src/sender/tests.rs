use super::*;
use crate::codec::Page;
use crate::flow;
use crate::key::{CookieSecret, FamilyKey, ImageKey};
use crate::lockstep::Window;
use crate::pages::Run;
use crate::receiver::{ClientTurn, Complete, Receiver, Receiving};
use crate::source::{PageContent, PageSink};
use crate::wire::tests::{Hostile, sealed};
use crate::wire::{ClientId, Knock, PageRequest, Request, ServerEpoch, Urgency};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use proptest::prelude::*;

const PAGES: PageCount = PageCount(60);
const HOSTILE: Hostile = Hostile {
    epoch: ServerEpoch(7),
    knock: Knock {
        client: ClientId(99),
        nonce: 1,
    },
    pages: PAGES,
};
/// Limit of a server's state, written out: some kilobytes for each member, and no more
/// however long it is served nonsense.
const MOST_KEPT: usize = 1 << 20;

fn key() -> ImageKey {
    FamilyKey::new([4; 32]).image(ImageId(Default::default()))
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 4000))
}

fn content(page: PageNo) -> Page {
    [u8::try_from(page.0).expect("few") + 1; PAGE_SIZE]
}

struct Pages;

impl PageSource for Pages {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        assert!(page.0 < PAGES.0, "asked for what is not in the image");
        *out = content(page);
        PageContent::Data
    }
}

impl PageSink for Pages {
    fn page(&mut self, page: PageNo, bytes: &Page) {
        assert!(*bytes == content(page), "{page} is wrong");
    }

    fn zeros(&mut self, run: Run) {
        panic!("{run:?} are not zero");
    }
}

fn sender(law: flow::FlowLaw, push: Push, now: Instant) -> Sender {
    let serving = Serving {
        key: key(),
        epoch: HOSTILE.epoch,
        secret: CookieSecret::new([1; 32]),
        pages: PAGES,
        data: PAGES,
        datagram: 1400,
        group: Some(4790),
        law,
        push,
        working_set: Vec::new(),
        gather: (1, Duration::ZERO),
        disjoint: Vec::new(),
        window: Window::default(),
        end_game: EndGame::default(),
        patience: Duration::from_secs(20),
    };
    Sender::new(serving, now)
}

fn client(n: u8, now: Instant) -> Receiver {
    let receiving = Receiving {
        key: key(),
        client: ClientId(n.into()),
        nonce: 1,
        pages: PAGES,
        patience: Duration::from_secs(20),
        ahead: 64,
    };
    let mut receiver = Receiver::new(receiving, now).expect("memory");
    receiver.complete(Complete::Yes);
    receiver
}

/// Exchanges the messages that both sides have for each other at once.
fn talk(sender: &mut Sender, clients: &mut [(SocketAddr, Receiver)], now: Instant) {
    let mut out = Vec::new();
    for (from, client) in &mut *clients {
        while client.poll(now, &mut out) == ClientTurn::Send {
            sender.receive(*from, &out, now);
        }
    }
    for turn in 0.. {
        assert!(turn < 5000, "it goes on and on");
        let SenderStep::Send(to) = sender.poll(&mut Pages, now, &mut out) else {
            return;
        };
        for (at, client) in &mut *clients {
            if matches!(to, To::Group(_)) || to == To::One(*at) {
                client.receive(&out, to.via(), &mut Pages, now);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Members that say anything are answered, ignored and kept in bounds; those that
    /// are in order get everything all the same.
    #[test]
    fn nothing_that_clients_can_say_keeps_others_from_being_served(
        packets in prop::collection::vec((HOSTILE.says(), 0..8u8, 0..4u64), 1..200),
        delivery in any::<bool>(),
        push in any::<bool>(),
    ) {
        let mut now = Instant::now();
        let law = match delivery {
            true => flow::FlowLaw::Delivery(flow::RateBounds::default()),
            false => flow::FlowLaw::Paper(flow::RateBounds::default()),
        };
        let push = if push { Push::Everything } else { Push::Nothing };
        let mut sender = sender(law, push, now);
        // Hosts 1 and 2 are in order; 3 and 4 are members, and then say anything.
        let mut clients: Vec<_> = (1..=4).map(|n| (address(n), client(n, now))).collect();
        for _ in 0..3 {
            talk(&mut sender, &mut clients[2..], now);
        }
        clients.truncate(2);
        prop_assert!(sender.members() == 2);
        let mut packets = (100..).zip(packets.iter().cycle()).map(|(seq, (said, from, passed))| {
            (said.signed(&key(), Seq(seq)), from, passed)
        });
        for _ in 0..20_000 {
            let (packet, from, passed) = packets.next().expect("endless");
            now += Duration::from_millis(*passed);
            // Not from where those in order are: a peer that can do that, and has the key, can
            // do everything.
            sender.receive(address(3 + from % 3), &packet, now);
            talk(&mut sender, &mut clients, now);
            prop_assert!(sender.control.len() <= MOST_CONTROL);
            if clients.iter().all(|(_, client)| client.pages() == PAGES) {
                break;
            }
        }
        for (at, client) in &clients {
            prop_assert_eq!(client.pages(), PAGES, "{}: {:?}", at, client.lost());
        }
        for (packet, from, passed) in packets.take(400) {
            now += Duration::from_millis(*passed);
            sender.receive(address(3 + from % 3), &packet, now);
            talk(&mut sender, &mut clients, now);
        }
        let kept = format!("{sender:?}").len();
        prop_assert!(kept < MOST_KEPT, "{} members, {kept}", sender.members());
    }
}

#[test]
fn asking_and_withdrawing_for_ever_takes_no_memory() {
    let mut now = Instant::now();
    let mut sender = sender(
        flow::FlowLaw::Delivery(flow::RateBounds::default()),
        Push::Nothing,
        now,
    );
    let mut clients = vec![(address(1), client(1, now))];
    while sender.members() == 0 {
        talk(&mut sender, &mut clients, now);
        now += Duration::from_millis(1);
    }
    let kept = |sender: &Sender| format!("{sender:?}").len();
    let mut most = 0;
    for seq in 100..3000 {
        let run = Run {
            first: PageNo(0),
            pages: PAGES,
        };
        let asks = [Urgency::Ahead, Urgency::Withdrawn].map(|urgency| PageRequest {
            run,
            urgency,
            before: 0,
            parts: crate::wire::PartSet::ALL,
        });
        let request = Request {
            member: MemberId(1),
            report: Default::default(),
            asks: asks.to_vec(),
        };
        let packet = Packet {
            epoch: HOSTILE.epoch,
            seq: Seq(seq),
            body: Body::ToServer(ToServer::Request(request)),
        };
        let bytes = sealed(&key(), &packet);
        sender.receive(address(1), &bytes, now);
        talk(&mut sender, &mut [], now);
        if seq == 200 {
            most = kept(&sender);
        }
    }
    assert!(kept(&sender) < 2 * most, "{} after {most}", kept(&sender));
}
