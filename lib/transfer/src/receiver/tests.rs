use super::*;
use crate::codec::{Encoding, Page};
use crate::key::FamilyKey;
use crate::pages::Run;
use crate::wire::tests::{Hostile, sealed};
use crate::wire::{Item, MemberId, PagePart, ToClient, Welcome};
use forkyard_types::{ImageId, PAGE_SIZE};
use proptest::prelude::*;

const PAGES: PageCount = PageCount(40);
const PATIENCE: Duration = Duration::from_secs(2);
const HOSTILE: Hostile = Hostile {
    epoch: ServerEpoch(7),
    knock: Knock {
        client: ClientId(1),
        nonce: 1,
    },
    pages: PAGES,
};
/// So many packets are never due at once.
const MOST: usize = 50;

fn key() -> ImageKey {
    FamilyKey::new([4; 32]).image(ImageId(Default::default()))
}

/// Takes anything, of pages that there are.
struct Anything;

impl PageSink for Anything {
    fn page(&mut self, page: PageNo, _: &Page) {
        assert!(page.0 < PAGES.0);
    }

    fn zeros(&mut self, run: Run) {
        assert!(run.first.0 + run.pages.0 <= PAGES.0 && run.pages.0 > 0);
    }
}

/// A member that wants everything, and waits for some of it.
fn member(now: Instant) -> Receiver {
    let receiving = Receiving {
        key: key(),
        client: HOSTILE.knock.client,
        nonce: HOSTILE.knock.nonce,
        pages: PAGES,
        patience: PATIENCE,
        ahead: 16,
    };
    let mut receiver = Receiver::new(receiving, now).expect("memory");
    receiver.complete(Complete::Yes);
    (0..5).for_each(|page| receiver.want(PageNo(page * 8), Urgency::Waited));
    let welcome = Welcome {
        knock: HOSTILE.knock,
        member: MemberId(1),
        pages: PAGES,
        group: None,
    };
    let welcome = Packet {
        epoch: HOSTILE.epoch,
        seq: Seq(0),
        body: Body::ToClient(ToClient::Welcome(welcome)),
    };
    let bytes = sealed(&key(), &welcome);
    receiver.receive(&bytes, Via::Alone, &mut Anything, now);
    assert!(matches!(receiver.state, State::Member(_)));
    receiver
}

/// Sends what is due, and takes note; when it is to be asked again.
fn turn(receiver: &mut Receiver, now: Instant, ended: &mut bool) -> Option<Instant> {
    let mut out = Vec::new();
    for _ in 0..MOST {
        let turn = receiver.poll(now, &mut out);
        while let Some(event) = receiver.event() {
            *ended |= matches!(event, ReceiverEvent::Complete | ReceiverEvent::Lost { .. });
        }
        if let ClientTurn::Wait(until) = turn {
            return until;
        }
    }
    panic!("it goes on and on");
}

proptest! {
    /// Tests that the messages of a broken server, which can be wrong, are taken and
    /// kept in bounds; and that its client ends when it falls silent.
    #[test]
    fn nothing_that_a_server_can_say_breaks_a_client(
        packets in prop::collection::vec((HOSTILE.says(), 0..30u64), 0..200),
    ) {
        let mut now = Instant::now();
        let (mut receiver, mut ended) = (member(now), false);
        for ((said, passed), seq) in packets.into_iter().zip(1..) {
            now += Duration::from_millis(passed);
            let via = [Via::Alone, Via::Group][usize::from(passed % 2 == 0)];
            receiver.receive(&said.signed(&key(), Seq(seq)), via, &mut Anything, now);
            turn(&mut receiver, now, &mut ended);
            prop_assert!(receiver.asks.waited().len() + receiver.asks.ahead() <= 40);
            prop_assert!(receiver.assembly.pages() <= 40);
            prop_assert!(receiver.pages() <= PAGES);
        }
        for _ in 0..10_000 {
            let Some(until) = turn(&mut receiver, now, &mut ended) else { break };
            now = now.max(until);
        }
        prop_assert!(ended, "{receiver:?}");
    }
}

/// Number of pages that came, and of those before the last flush.
#[derive(Default)]
struct Kept {
    came: usize,
    put: usize,
}

impl PageSink for Kept {
    fn page(&mut self, _: PageNo, _: &Page) {
        self.came += 1;
    }

    fn zeros(&mut self, run: Run) {
        self.came += run.iter().count();
    }

    fn flush(&mut self) {
        self.put = self.came;
    }
}

#[test]
fn page_that_somebody_waits_for_is_put_in_its_place_at_once() {
    let now = Instant::now();
    let (mut receiver, mut kept, mut ended) = (member(now), Kept::default(), false);
    let mut sealer = Sealer::new(&key(), Endpoint::Server(HOSTILE.epoch));
    turn(&mut receiver, now, &mut ended);
    let mut seq = 0;
    let mut come = |item: Item<'_>, kept: &mut Kept| {
        seq += 1;
        let mut packet = Vec::new();
        wire::begin_data(&sealer, Seq(seq), Some(MemberId(1)), &mut packet);
        wire::put_item(&item, &mut packet);
        wire::finish(&mut sealer, &mut packet);
        receiver.receive(&packet, Via::Alone, kept, now);
        (kept.came, kept.put)
    };
    let page = |page| Item::Page(PageNo(page), Encoding::Plain, &[3; PAGE_SIZE]);
    let half = |index| {
        Item::Part(PagePart {
            page: PageNo(24),
            encoding: Encoding::Plain,
            total: 4096,
            index,
            parts: 2,
            bytes: &[3; PAGE_SIZE / 2],
        })
    };
    // Every eighth page is waited for.
    assert_eq!(come(page(1), &mut kept), (1, 0));
    assert_eq!(come(page(8), &mut kept), (2, 2));
    assert_eq!(come(page(9), &mut kept), (3, 2));
    assert_eq!(come(Item::Zero(Run::one(PageNo(10))), &mut kept), (4, 2));
    assert_eq!(come(Item::Zero(Run::one(PageNo(16))), &mut kept), (5, 5));
    assert_eq!(come(half(1), &mut kept), (5, 5));
    assert_eq!(come(page(11), &mut kept), (6, 5));
    assert_eq!(come(half(0), &mut kept), (7, 7));
}

#[test]
fn only_what_comes_by_the_group_shows_that_others_use_it() {
    let now = Instant::now();
    let mut receiver = member(now);
    let mut forged = Vec::new();
    let sealer = Sealer::new(&key(), Endpoint::Server(HOSTILE.epoch));
    wire::begin_data(&sealer, Seq(9), None, &mut forged);
    forged.extend([0; 16]);
    let foreign = |receiver: &Receiver| match &receiver.state {
        State::Member(member) => member.foreign,
        State::Knocking { .. } | State::Lost(_) => panic!("it is a member"),
    };
    receiver.receive(&forged, Via::Alone, &mut Anything, now);
    assert_eq!((receiver.stats().refused, foreign(&receiver)), (1, 0));
    receiver.receive(&forged, Via::Group, &mut Anything, now);
    assert_eq!((receiver.stats().refused, foreign(&receiver)), (2, 1));
}
