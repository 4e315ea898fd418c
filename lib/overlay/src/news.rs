//! News as one datagram between the sites of a family.
//!
//! ```text
//! "FYN1" | family, 11 | n | n times: place 2, generation 4, kind 1, from 4, to 4 | seal, 32
//! ```
//!
//! Numbers are big-endian. The seal is BLAKE3 of all before it, keyed by what the sites of the
//! family have from their lenders. A datagram that is heard again says nothing new.

use crate::{PlaceGeneration, PlaceNews, Whereabout};
use forkyard_types::{FamilyId, Member};
use std::{fmt, net::Ipv4Addr};

const MAGIC: [u8; 4] = *b"FYN1";
const ID: usize = 11;
const HEAD: usize = MAGIC.len() + ID + 1;
const ENTRY: usize = 15;
const SEAL: usize = blake3::OUT_LEN;

/// Most sightings in one datagram, which then fits every way.
pub const MOST_SIGHTINGS: usize = 80;

/// Key that a family's news are sealed with. Its debug output hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// News of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The family.
    pub family: FamilyId,
    /// Sightings of its members, [`MOST_SIGHTINGS`] at most.
    pub said: Vec<PlaceNews>,
}

/// Datagram that is no news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsError {
    /// Not of this form.
    Malformed,
    /// The key is another one.
    Sealed,
}

impl fmt::Display for NewsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the datagram is not of the form of news",
            Self::Sealed => "the news are not sealed with the family's key",
        })
    }
}

impl std::error::Error for NewsError {}

impl News {
    /// Writes the datagrams, as many as it takes.
    pub fn seal(&self, key: &Key) -> Vec<Vec<u8>> {
        let chunks = self.said.chunks(MOST_SIGHTINGS);
        chunks.map(|said| self.datagram(said, key)).collect()
    }

    fn datagram(&self, said: &[PlaceNews], key: &Key) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + said.len() * ENTRY + SEAL);
        bytes.extend(MAGIC);
        bytes.extend(self.family.as_str().as_bytes());
        bytes.push(u8::try_from(said.len()).unwrap_or(u8::MAX));
        for it in said {
            let (kind, from, to) = match it.at {
                Whereabout::At(at) => (0, at, at),
                Whereabout::Moving { from, to } => (1, from, to),
            };
            bytes.extend(it.member.0.to_be_bytes());
            bytes.extend(it.generation.0.to_be_bytes());
            bytes.push(kind);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        let seal = blake3::keyed_hash(&key.0, &bytes);
        bytes.extend(seal.as_bytes());
        bytes
    }

    /// Reads the family that a datagram is about, which nothing proves yet.
    pub fn family_of(datagram: &[u8]) -> Result<FamilyId, NewsError> {
        let id = datagram
            .strip_prefix(&MAGIC)
            .and_then(|rest| rest.get(..ID));
        let id = id.and_then(|id| std::str::from_utf8(id).ok());
        id.and_then(|id| id.parse().ok())
            .ok_or(NewsError::Malformed)
    }

    /// Reads a datagram that is sealed with this key.
    pub fn open(datagram: &[u8], key: &Key) -> Result<Self, NewsError> {
        let family = Self::family_of(datagram)?;
        let Some((body, seal)) = datagram.split_last_chunk::<SEAL>() else {
            return Err(NewsError::Malformed);
        };
        // Compared in constant time.
        if blake3::keyed_hash(&key.0, body) != *seal {
            return Err(NewsError::Sealed);
        }
        let (Some(count), Some(entries)) = (body.get(HEAD - 1), body.get(HEAD..)) else {
            return Err(NewsError::Malformed);
        };
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        let count = usize::from(*count);
        if !rest.is_empty() || entries.len() != count || count > MOST_SIGHTINGS {
            return Err(NewsError::Malformed);
        }
        let said = entries.iter().map(sighting).collect::<Option<_>>();
        let said = said.ok_or(NewsError::Malformed)?;
        Ok(Self { family, said })
    }
}

fn sighting(bytes: &[u8; ENTRY]) -> Option<PlaceNews> {
    let [m1, m0, g3, g2, g1, g0, kind, a, b, c, d, e, f, g, h] = *bytes;
    let (from, to) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
    let is_station = |at: Ipv4Addr| {
        !at.is_unspecified() && !at.is_loopback() && !at.is_multicast() && !at.is_broadcast()
    };
    let at = match kind {
        0 if from == to => Whereabout::At(to),
        1 if from != to => Whereabout::Moving { from, to },
        _ => return None,
    };
    (is_station(from) && is_station(to)).then_some(PlaceNews {
        member: Member(u16::from_be_bytes([m1, m0])),
        generation: PlaceGeneration(u32::from_be_bytes([g3, g2, g1, g0])),
        at,
    })
}
