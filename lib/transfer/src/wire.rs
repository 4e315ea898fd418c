//! Packets, byte by byte.
//!
//! All numbers are little-endian. A packet is one datagram:
//!
//! | byte | size | |
//! |---|---|---|
//! | 0 | 2 | `FP` |
//! | 2 | 1 | version: 3 |
//! | 3 | 1 | kind |
//! | 4 | 8 | channel: which image |
//! | 12 | 8 | endpoint: of a server its epoch, which is drawn for each of its runs; of a client its number, which is drawn, too |
//! | 20 | 8 | count: of the endpoint's packets |
//! | 28 | n | what is sealed |
//! | 28 + n | 16 | tag: AES-256-GCM of all before |
//!
//! The key is the endpoint's: BLAKE3 of `s` or `c`, for server or client, and the endpoint, keyed with
//! the image's. The nonce is the count, then four zeros; the first 28 bytes are proved and not hidden. Sealed are:
//!
//! | size | |
//! |---|---|
//! | 8 | epoch: which run of the server is meant; 0 in `Join`. Only what clients send has it |
//! | 8 | sequence: of the sender, on this way, rising |
//! | n | body |
//!
//! | kind | | body |
//! |---|---|---|
//! | 1 | `Join` | client 8, nonce 8, cookie 8 (0: none yet) |
//! | 2 | `Request` | member 4, flags 1 (1: hears the group), foreign packets on the group 4, round trip in µs 4, alone and group each: highest sequence 8, packets 8, bytes/s 8; then asks |
//! | 3 | `Leave` | member 4 |
//! | 16 | `Challenge` | client 8, nonce 8, cookie 8 |
//! | 17 | `Welcome` | client 8, nonce 8, member 4, pages 8, group 1 (255: none), port 2 |
//! | 18 | `Stale` | member 4, its sequence 8 |
//! | 19 | `Pulse` | member 4 |
//! | 20 | `Beacon` | – |
//! | 21 | `Data` | member 4 (0: the group); then items |
//!
//! | ask | first page 8, pages 4, what 1 (0: waited for, 1: in advance, 2: no more), times asked before 1, parts 1: a bit for each that is wanted, 255: the page; others only with one page |
//! |---|---|
//! | item 0: zero | first page 8, pages 4 |
//! | item 1: page | page 8, encoding 1, length 2, bytes |
//! | item 2: part of a page | page 8, encoding 1, length of all 2, part 1, parts 1, bytes: ⌈length ÷ parts⌉, the last what is left |
//! | item 3: gone | page 8 |
//!
//! Opening is total: any bytes are a packet or a [`WireError`], and nothing that is
//! sealed is looked at before its tag is right. A listener on the hosts' network
//! learns which host sends how much about which image, and nothing of what is in it.

mod asking;
mod data;
mod fields;

pub use asking::{MAX_ASKS, PageRequest, PartSet, Reception, Report, Request, Urgency};
pub(crate) use data::{DATA_HEAD, PART_HEAD, WHOLE_HEAD, ZERO_BYTES, part_bytes, put_item};
pub use data::{Item, Items, PagePart};

use crate::key::Channel;
use crate::pages::Run;
use crate::seal::{Endpoint, Opener, Sealer, TAG};
use fields::Fields;
use forkyard_types::{PageCount, PageNo};

/// The version spoken here.
pub const VERSION: u8 = 3;
/// Bytes before what is sealed.
pub const HEAD: usize = 28;
/// Bytes behind it.
pub const TAIL: usize = TAG;
/// Kinds from this one on are a server's.
const OF_SERVERS: u8 = 16;

const MAGIC: [u8; 2] = *b"FP";
/// Says that there is no group.
const NO_GROUP: u8 = u8::MAX;

/// One run of a server: drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerEpoch(pub u64);

/// Number of a packet among those that its sender sent the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seq(pub u64);

/// A client, drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A client that a server has admitted; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// Identity of a knocking client, and the number of its try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knock {
    /// The client.
    pub client: ClientId,
    /// Number of the try: an answer to another is not for it.
    pub nonce: u64,
}

/// A packet that is authentic.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet<'a> {
    /// Run of the server.
    pub epoch: ServerEpoch,
    /// Sequence number.
    pub seq: Seq,
    /// Content of the packet.
    pub body: Body<'a>,
}

/// Content of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    /// To the server.
    ToServer(ToServer),
    /// To a client, or to all.
    ToClient(ToClient<'a>),
}

/// Messages of clients.
#[derive(Clone, Debug, PartialEq)]
pub enum ToServer {
    /// Let me in.
    Join {
        /// Identity of the client.
        knock: Knock,
        /// Cookie of the challenge; 0 at first.
        cookie: u64,
    },
    /// Report of the client's reception, and its wishes.
    Request(Request),
    /// I need nothing more.
    Leave(MemberId),
}

/// Messages of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum ToClient<'a> {
    /// Show that you hear me.
    Challenge {
        /// Knock that is answered.
        knock: Knock,
        /// Cookie to present next time.
        cookie: u64,
    },
    /// You are in.
    Welcome(Welcome),
    /// I do not know you: your packet of that number came to nothing.
    Stale(MemberId, Seq),
    /// I live, and have heard you.
    Pulse(MemberId),
    /// Beacon to the group: a client that hears it hears the group.
    Beacon,
    /// Pages, for one member, or for all.
    Data(Option<MemberId>, Items<'a>),
}

/// Data that a client needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Knock that is answered.
    pub knock: Knock,
    /// Name of the member from now on.
    pub member: MemberId,
    /// Size of the image.
    pub pages: PageCount,
    /// Group that is sent what is for all.
    pub group: Option<MulticastGroup>,
}

/// A group: its address follows from the image's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Number of the group among the image's; at most 254.
    pub attempt: u8,
    /// Port of the group.
    pub port: u16,
}

/// Reason why bytes are no packet for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not a packet of this protocol.
    #[error("not a packet of this protocol")]
    Alien,
    /// Another version.
    #[error("protocol version {0} is not supported")]
    Version(u8),
    /// About another image.
    #[error("packet is about another image")]
    Channel,
    /// The tag is wrong.
    #[error("packet is not authentic")]
    Forged,
    /// Authentic, and makes no sense.
    #[error("packet is malformed")]
    Malformed,
}

/// Reads the image that a packet claims to be about: it tells which key to open it with.
pub fn channel(bytes: &[u8]) -> Result<Channel, WireError> {
    let mut fields = Fields(bytes);
    let [a, b, version, _] = fields.array().ok_or(WireError::Alien)?;
    if [a, b] != MAGIC || bytes.len() < HEAD + TAIL {
        return Err(WireError::Alien);
    }
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    fields.u64().map(Channel).ok_or(WireError::Alien)
}

/// The packet that `bytes` are. What is sealed in it comes to lie in `plain`.
pub(crate) fn open<'a>(
    opener: &mut Opener,
    bytes: &[u8],
    plain: &'a mut Vec<u8>,
) -> Result<Packet<'a>, WireError> {
    if channel(bytes)? != opener.image().channel() {
        return Err(WireError::Channel);
    }
    let (head, sealed) = bytes.split_at(HEAD);
    let mut fields = Fields(head);
    let [_, _, _, kind] = fields.array().ok_or(WireError::Alien)?;
    let mut number = || fields.u64().ok_or(WireError::Alien);
    let (_channel, endpoint, count) = (number()?, number()?, number()?);
    let from = match kind {
        OF_SERVERS.. => Endpoint::Server(ServerEpoch(endpoint)),
        _ => Endpoint::Client(ClientId(endpoint)),
    };
    plain.clear();
    plain.extend_from_slice(sealed);
    let opened = opener.open(from, count, head, plain);
    parse(kind, from, opened.ok_or(WireError::Forged)?).ok_or(WireError::Malformed)
}

fn parse(kind: u8, from: Endpoint, opened: &[u8]) -> Option<Packet<'_>> {
    let mut fields = Fields(opened);
    let epoch = match from {
        Endpoint::Server(epoch) => epoch,
        Endpoint::Client(_) => ServerEpoch(fields.u64()?),
    };
    let seq = Seq(fields.u64()?);
    let body = match kind {
        1 => Body::ToServer(ToServer::Join {
            knock: fields.knock()?,
            cookie: fields.u64()?,
        }),
        2 => Body::ToServer(ToServer::Request(asking::request(&mut fields)?)),
        3 => Body::ToServer(ToServer::Leave(fields.member()?)),
        16 => Body::ToClient(ToClient::Challenge {
            knock: fields.knock()?,
            cookie: fields.u64()?,
        }),
        17 => Body::ToClient(ToClient::Welcome(welcome(&mut fields)?)),
        18 => Body::ToClient(ToClient::Stale(fields.member()?, Seq(fields.u64()?))),
        19 => Body::ToClient(ToClient::Pulse(fields.member()?)),
        20 => Body::ToClient(ToClient::Beacon),
        21 => {
            let member = Some(fields.u32()?)
                .filter(|member| *member != 0)
                .map(MemberId);
            let items = Items::check(std::mem::take(&mut fields.0))?;
            Body::ToClient(ToClient::Data(member, items))
        }
        _ => return None,
    };
    fields.0.is_empty().then_some(Packet { epoch, seq, body })
}

fn welcome(fields: &mut Fields<'_>) -> Option<Welcome> {
    Some(Welcome {
        knock: fields.knock()?,
        member: fields.member()?,
        pages: PageCount(fields.u64()?),
        group: {
            let (attempt, port) = (fields.u8()?, fields.u16()?);
            match attempt {
                NO_GROUP if port != 0 => return None,
                NO_GROUP => None,
                attempt => Some(MulticastGroup { attempt, port }),
            }
        },
    })
}

/// Writes a packet into `out`, in place of what was there. A server's is of its own
/// epoch, whatever it says.
pub(crate) fn seal(sealer: &mut Sealer, packet: &Packet<'_>, out: &mut Vec<u8>) {
    let Packet { epoch, seq, body } = packet;
    let kind = match body {
        Body::ToServer(ToServer::Join { .. }) => 1,
        Body::ToServer(ToServer::Request(_)) => 2,
        Body::ToServer(ToServer::Leave(_)) => 3,
        Body::ToClient(ToClient::Challenge { .. }) => 16,
        Body::ToClient(ToClient::Welcome(_)) => 17,
        Body::ToClient(ToClient::Stale(..)) => 18,
        Body::ToClient(ToClient::Pulse(_)) => 19,
        Body::ToClient(ToClient::Beacon) => 20,
        Body::ToClient(ToClient::Data(..)) => 21,
    };
    begin(sealer, kind, *epoch, *seq, out);
    match body {
        Body::ToServer(ToServer::Join { knock, cookie })
        | Body::ToClient(ToClient::Challenge { knock, cookie }) => {
            put_knock(*knock, out);
            out.extend(cookie.to_le_bytes());
        }
        Body::ToServer(ToServer::Request(request)) => asking::put(request, out),
        Body::ToServer(ToServer::Leave(member)) | Body::ToClient(ToClient::Pulse(member)) => {
            out.extend(member.0.to_le_bytes());
        }
        Body::ToClient(ToClient::Welcome(welcome)) => {
            put_knock(welcome.knock, out);
            out.extend(welcome.member.0.to_le_bytes());
            out.extend(welcome.pages.0.to_le_bytes());
            let group = welcome.group;
            out.push(group.map_or(NO_GROUP, |group| group.attempt));
            out.extend(group.map_or(0, |group| group.port).to_le_bytes());
        }
        Body::ToClient(ToClient::Stale(member, seq)) => {
            out.extend(member.0.to_le_bytes());
            out.extend(seq.0.to_le_bytes());
        }
        Body::ToClient(ToClient::Beacon) => {}
        Body::ToClient(ToClient::Data(member, items)) => {
            out.extend(member.map_or(0, |member| member.0).to_le_bytes());
            out.extend_from_slice(items.bytes());
        }
    }
    sealer.seal(HEAD, out);
}

/// Starts a packet of pages; items follow, and then [`finish`].
pub(crate) fn begin_data(sealer: &Sealer, seq: Seq, member: Option<MemberId>, out: &mut Vec<u8>) {
    // A server's epoch is in its packets' heads.
    begin(sealer, 21, ServerEpoch(0), seq, out);
    out.extend(member.map_or(0, |member| member.0).to_le_bytes());
}

fn begin(sealer: &Sealer, kind: u8, epoch: ServerEpoch, seq: Seq, out: &mut Vec<u8>) {
    let endpoint = sealer.endpoint();
    out.clear();
    out.extend(MAGIC);
    out.extend([VERSION, kind]);
    out.extend(sealer.channel().0.to_le_bytes());
    out.extend(endpoint.number().to_le_bytes());
    out.extend(sealer.next().to_le_bytes());
    match endpoint {
        Endpoint::Server(_) => {}
        Endpoint::Client(_) => out.extend(epoch.0.to_le_bytes()),
    }
    out.extend(seq.0.to_le_bytes());
}

/// Ends a packet.
pub(crate) fn finish(sealer: &mut Sealer, out: &mut Vec<u8>) {
    sealer.seal(HEAD, out);
}

fn put_knock(knock: Knock, out: &mut Vec<u8>) {
    out.extend(knock.client.0.to_le_bytes());
    out.extend(knock.nonce.to_le_bytes());
}

/// A run longer than a packet can say is cut.
pub(crate) fn put_run(run: Run, out: &mut Vec<u8>) {
    out.extend(run.first.0.to_le_bytes());
    let pages = u32::try_from(run.pages.0).unwrap_or(u32::MAX);
    out.extend(pages.to_le_bytes());
}

/// The number of a page, as it is written.
pub(crate) fn put_page(page: PageNo, out: &mut Vec<u8>) {
    out.extend(page.0.to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests;
