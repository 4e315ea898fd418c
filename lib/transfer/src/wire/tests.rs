use super::*;
use crate::codec::Encoding;
use crate::key::{FamilyKey, ImageKey};
use forkyard_types::ImageId;
use proptest::prelude::*;

fn key() -> ImageKey {
    FamilyKey::new([3; 32]).image(ImageId(Default::default()))
}

/// The packet that `bytes` are.
fn opened<'a>(bytes: &[u8], plain: &'a mut Vec<u8>) -> Result<Packet<'a>, WireError> {
    open(&mut Opener::new(key()), bytes, plain)
}

/// Origin of such a message.
fn sealer(key: &ImageKey, epoch: ServerEpoch, body: &Body<'_>) -> Sealer {
    let endpoint = match body {
        Body::ToClient(_) => Endpoint::Server(epoch),
        Body::ToServer(_) => Endpoint::Client(ClientId(1)),
    };
    Sealer::new(key, endpoint)
}

/// A number that was not counted before.
pub(crate) fn sealed(key: &ImageKey, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sealer = sealer(key, packet.epoch, &packet.body);
    seal(&mut sealer, packet, &mut bytes);
    bytes
}

/// Anything, of any kind.
fn nonsense(key: &ImageKey, kind: u8, (epoch, seq): (ServerEpoch, Seq), body: &[u8]) -> Vec<u8> {
    let endpoint = match kind {
        OF_SERVERS.. => Endpoint::Server(epoch),
        _ => Endpoint::Client(ClientId(1)),
    };
    let (mut sealer, mut out) = (Sealer::new(key, endpoint), Vec::new());
    begin(&sealer, kind, epoch, seq, &mut out);
    out.extend(body);
    finish(&mut sealer, &mut out);
    out
}

fn knock() -> impl Strategy<Value = Knock> {
    (any::<u64>(), any::<u64>()).prop_map(|(client, nonce)| Knock {
        client: ClientId(client),
        nonce,
    })
}

fn member() -> impl Strategy<Value = MemberId> {
    (1..=u32::MAX).prop_map(MemberId)
}

fn run() -> impl Strategy<Value = Run> {
    (0..1u64 << 40, 1..1000u64).prop_map(|(first, pages)| Run {
        first: PageNo(first),
        pages: PageCount(pages),
    })
}

fn reception() -> impl Strategy<Value = Reception> {
    any::<(u64, u64, u64)>().prop_map(|(highest, packets, rate)| Reception {
        highest: Seq(highest),
        packets,
        rate,
    })
}

fn report() -> impl Strategy<Value = Report> {
    (
        any::<bool>(),
        any::<u32>(),
        any::<u32>(),
        reception(),
        reception(),
    )
        .prop_map(|(hears, foreign, round_trip, alone, group)| Report {
            hears,
            foreign,
            round_trip,
            alone,
            group,
        })
}

fn ask() -> impl Strategy<Value = PageRequest> {
    let urgency = prop_oneof![
        Just(Urgency::Waited),
        Just(Urgency::Ahead),
        Just(Urgency::Withdrawn)
    ];
    (run(), urgency, any::<u8>(), 1..=u8::MAX).prop_map(|(run, urgency, before, parts)| {
        PageRequest {
            run,
            urgency,
            before,
            parts: match run.pages {
                PageCount(1) => PartSet::of(parts).expect("some"),
                _ => PartSet::ALL,
            },
        }
    })
}

fn request() -> impl Strategy<Value = Body<'static>> {
    let asks = prop::collection::vec(ask(), 0..MAX_ASKS);
    (member(), report(), asks).prop_map(|(member, report, asks)| {
        Body::ToServer(ToServer::Request(Request {
            member,
            report,
            asks,
        }))
    })
}

fn body() -> impl Strategy<Value = Body<'static>> {
    let group = prop::option::of(
        (0..255u8, any::<u16>()).prop_map(|(attempt, port)| MulticastGroup { attempt, port }),
    );
    prop_oneof![
        (knock(), any::<u64>())
            .prop_map(|(knock, cookie)| Body::ToServer(ToServer::Join { knock, cookie })),
        request(),
        member().prop_map(|member| Body::ToServer(ToServer::Leave(member))),
        (knock(), any::<u64>())
            .prop_map(|(knock, cookie)| Body::ToClient(ToClient::Challenge { knock, cookie })),
        (knock(), member(), any::<u64>(), group).prop_map(|(knock, member, pages, group)| {
            Body::ToClient(ToClient::Welcome(Welcome {
                knock,
                member,
                pages: PageCount(pages),
                group,
            }))
        }),
        (member(), any::<u64>())
            .prop_map(|(member, seq)| Body::ToClient(ToClient::Stale(member, Seq(seq)))),
        member().prop_map(|member| Body::ToClient(ToClient::Pulse(member))),
        Just(Body::ToClient(ToClient::Beacon)),
    ]
}

/// A peer that has the key, and says anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hostile {
    /// Epoch of most of its messages, as those of others would be ignored
    /// sooner.
    pub epoch: ServerEpoch,
    pub knock: Knock,
    pub pages: PageCount,
}

/// Message that it sends.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    epoch: ServerEpoch,
    /// `None`: one after the other.
    seq: Option<Seq>,
    what: Result<Body<'static>, (u8, Vec<u8>)>,
}

impl Said {
    /// The packet, of that number if it has none of its own.
    pub fn signed(&self, key: &ImageKey, seq: Seq) -> Vec<u8> {
        let (epoch, seq) = (self.epoch, self.seq.unwrap_or(seq));
        match &self.what {
            Ok(body) => {
                let body = body.clone();
                sealed(key, &Packet { epoch, seq, body })
            }
            Err((kind, bytes)) => nonsense(key, *kind, (epoch, seq), bytes),
        }
    }
}

impl Hostile {
    /// Packets that are authentic once they are signed, with anything in them.
    pub fn says(self) -> impl Strategy<Value = Said> {
        let epoch = prop_oneof![9 => Just(self.epoch.0), 1 => any::<u64>()].prop_map(ServerEpoch);
        let seq = prop_oneof![
            40 => Just(None),
            4 => (1..300u64).prop_map(Some),
            1 => (0..3u64).prop_map(|back| Some(u64::MAX - back)),
        ];
        let what = prop_oneof![
            3 => self.body().prop_map(Ok),
            5 => self.data().prop_map(Err),
            1 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(Err),
        ];
        (epoch, seq, what).prop_map(|(epoch, seq, what)| Said {
            epoch,
            seq: seq.map(Seq),
            what,
        })
    }

    fn member() -> impl Strategy<Value = u32> {
        prop_oneof![9 => 0..3u32, 1 => any::<u32>()]
    }

    fn body(self) -> impl Strategy<Value = Body<'static>> {
        let mine = move |body| match body {
            Body::ToServer(ToServer::Join { cookie, .. }) => {
                let knock = self.knock;
                Body::ToServer(ToServer::Join { knock, cookie })
            }
            Body::ToClient(ToClient::Welcome(welcome)) => {
                Body::ToClient(ToClient::Welcome(Welcome {
                    knock: self.knock,
                    pages: self.pages,
                    ..welcome
                }))
            }
            other @ (Body::ToServer(_) | Body::ToClient(_)) => other,
        };
        let any_body = prop_oneof![body(), request()];
        (any_body, Self::member(), 0..self.pages.0, any::<u8>()).prop_map(
            move |(body, member, page, which)| {
                let id = MemberId(member.max(1));
                match mine(body) {
                    Body::ToServer(ToServer::Request(mut request)) => {
                        request.member = id;
                        request.report.foreign %= 100;
                        for ask in request.asks.iter_mut().filter(|_| which % 4 > 0) {
                            ask.run.first.0 = (ask.run.first.0 + page) % self.pages.0;
                        }
                        Body::ToServer(ToServer::Request(request))
                    }
                    Body::ToClient(ToClient::Pulse(_)) => Body::ToClient(ToClient::Pulse(id)),
                    Body::ToClient(ToClient::Stale(_, seq)) => {
                        let seq = Seq(seq.0 % 50);
                        Body::ToClient(ToClient::Stale(id, seq))
                    }
                    other @ (Body::ToServer(_) | Body::ToClient(_)) => other,
                }
            },
        )
    }

    /// Kind and body of a packet of pages; most are in the image, most are whole.
    fn data(self) -> impl Strategy<Value = (u8, Vec<u8>)> {
        let page = prop_oneof![8 => 0..self.pages.0, 1 => any::<u64>()].prop_map(PageNo);
        let bytes = prop::collection::vec(any::<u8>(), 1..40);
        let item = (page, 0..5u8, 1..9u8, any::<u8>(), 1..=4096u16, bytes);
        let items = prop::collection::vec(item, 0..12);
        (Self::member(), items).prop_map(|(member, items)| {
            let mut out = member.to_le_bytes().to_vec();
            for (page, what, parts, index, total, bytes) in items {
                let encoding = if index % 2 == 0 {
                    Encoding::Plain
                } else {
                    Encoding::Zstd
                };
                let (parts, whole) = (parts.max(2), vec![index; usize::from(total)]);
                let full = [index; forkyard_types::PAGE_SIZE];
                let index = index % parts;
                put_item(
                    &match what {
                        0 => Item::Zero(Run {
                            first: page,
                            pages: PageCount(u64::from(total)),
                        }),
                        1 => Item::Page(page, encoding, &bytes),
                        2 => Item::Page(page, Encoding::Plain, &full),
                        3 => Item::Part(PagePart {
                            page,
                            encoding,
                            total,
                            index,
                            parts,
                            bytes: &whole[part_bytes(total, index, parts)],
                        }),
                        _ => Item::Gone(page),
                    },
                    &mut out,
                );
            }
            (21, out)
        })
    }
}

/// A packet of pages with an item of each kind.
fn data() -> Vec<u8> {
    let mut out = Vec::new();
    let mut sealer = Sealer::new(&key(), Endpoint::Server(ServerEpoch(5)));
    begin_data(&sealer, Seq(6), Some(MemberId(7)), &mut out);
    let items = items();
    items.iter().for_each(|item| put_item(item, &mut out));
    finish(&mut sealer, &mut out);
    out
}

/// Returns the sealed content, without its sequence.
fn data_body() -> Vec<u8> {
    let mut body = 7u32.to_le_bytes().to_vec();
    items().iter().for_each(|item| put_item(item, &mut body));
    body
}

fn items() -> [Item<'static>; 4] {
    [
        Item::Zero(Run {
            first: PageNo(9),
            pages: PageCount(300),
        }),
        Item::Page(PageNo(1), Encoding::Zstd, b"packed"),
        Item::Part(PagePart {
            page: PageNo(2),
            encoding: Encoding::Plain,
            total: 7,
            index: 1,
            parts: 2,
            bytes: b"def",
        }),
        Item::Gone(PageNo(4)),
    ]
}

proptest! {
    #[test]
    fn packet_comes_back_as_it_was(epoch in any::<u64>(), seq in any::<u64>(), body in body()) {
        let packet = Packet { epoch: ServerEpoch(epoch), seq: Seq(seq), body };
        let mut plain = Vec::new();
        prop_assert_eq!(opened(&sealed(&key(), &packet), &mut plain), Ok(packet));
    }

    #[test]
    fn packet_with_any_bit_turned_is_refused(body in body(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let packet = Packet { epoch: ServerEpoch(1), seq: Seq(2), body };
        let mut bytes = sealed(&key(), &packet);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(opened(&bytes, &mut Vec::new()).is_err());
    }

    /// Authentic nonsense, which only a broken peer can send, does no harm.
    #[test]
    fn authentic_bytes_of_any_kind_are_parsed_or_refused(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = nonsense(&key(), kind, (ServerEpoch(1), Seq(2)), &body);
        let mut plain = Vec::new();
        if let Ok(packet) = opened(&bytes, &mut plain) {
            prop_assert_eq!(sealed(&key(), &packet), bytes);
        }
    }

    #[test]
    fn items_changed_anywhere_and_signed_anew_are_parsed_or_refused(at in any::<prop::sample::Index>(), to in any::<u8>(), cut in 0..20usize) {
        let mut body = data_body();
        let at = at.index(body.len());
        body[at] = to;
        body.truncate(body.len().saturating_sub(cut));
        let bytes = nonsense(&key(), 21, (ServerEpoch(5), Seq(6)), &body);
        let mut plain = Vec::new();
        if let Ok(Packet { body: Body::ToClient(ToClient::Data(_, items)), .. }) = opened(&bytes, &mut plain) {
            for item in items.iter() {
                if let Item::Part(part) = item {
                    prop_assert!(part.index < part.parts && usize::from(part.total) <= forkyard_types::PAGE_SIZE);
                }
            }
        }
    }

    #[test]
    fn bytes_of_anything_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(opened(&bytes, &mut Vec::new()).is_err());
    }
}

#[test]
fn items_come_back_as_they_were() {
    let bytes = data();
    let mut plain = Vec::new();
    let packet = opened(&bytes, &mut plain).expect("authentic");
    let Body::ToClient(ToClient::Data(Some(MemberId(7)), found)) = packet.body else {
        panic!("{packet:?}");
    };
    assert_eq!(found.iter().collect::<Vec<_>>(), items());
}

#[test]
fn bytes_of_a_packet_are_as_documented() {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    let body = Body::ToServer(ToServer::Leave(MemberId(0x0403_0201)));
    let (epoch, seq) = (ServerEpoch(0x11), Seq(0x22));
    let bytes = sealed(&key(), &Packet { epoch, seq, body });
    let mut head = b"FP\x03\x03".to_vec();
    head.extend(key().channel().0.to_le_bytes());
    head.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let body = [
        0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
    ];
    let secret = UnboundKey::new(&AES_256_GCM, &key().derive(b'c', 1)).expect("32 bytes");
    let nonce = Nonce::assume_unique_for_key([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut sealed = body.to_vec();
    LessSafeKey::new(secret)
        .seal_in_place_append_tag(nonce, Aad::from(&head), &mut sealed)
        .expect("sealed");
    assert_eq!(bytes, [head, sealed].concat());
}

#[test]
fn packet_of_another_fork_or_version_is_refused_before_it_is_read() {
    let other = FamilyKey::new([3; 32]).image(ImageId::random());
    let (mut bytes, mut plain) = (data(), Vec::new());
    let mut opener = Opener::new(other.clone());
    assert_eq!(
        open(&mut opener, &bytes, &mut plain),
        Err(WireError::Channel)
    );
    // A sender that gives it our channel still has not our key.
    bytes[4..12].copy_from_slice(&other.channel().0.to_le_bytes());
    assert_eq!(
        open(&mut opener, &bytes, &mut plain),
        Err(WireError::Forged)
    );
    bytes[2] = 2;
    assert_eq!(opened(&bytes, &mut plain), Err(WireError::Version(2)));
}
