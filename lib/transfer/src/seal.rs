//! Packets that only a holder of the image's key can read, or make: AES-256-GCM
//! (NIST SP 800-38D).
//!
//! Each endpoint has a key of its own, which follows from the image's and the number
//! that it drew when it began, and counts its packets: so no count is ever used twice
//! with one key, on which all depends here.

use crate::key::{Channel, ImageKey};
use crate::wire::{ClientId, ServerEpoch};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use std::collections::HashMap;
use std::fmt;

/// Bytes behind what is sealed that prove it.
pub(crate) const TAG: usize = 16;
/// Most keys kept; those of endpoints that are still heard are soon known again.
const MOST_KNOWN: usize = 1024;

/// End that sealed a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    /// A run of the server.
    Server(ServerEpoch),
    /// A client.
    Client(ClientId),
}

/// Seals what one endpoint says.
pub(crate) struct Sealer {
    channel: Channel,
    endpoint: Endpoint,
    key: Option<LessSafeKey>,
    /// Packets sealed so far.
    count: u64,
}

/// Opens packets about one image, from either end.
pub(crate) struct Opener {
    image: ImageKey,
    known: HashMap<Endpoint, LessSafeKey>,
}

impl Endpoint {
    /// As it is written in a packet, beside the packet's kind.
    pub fn number(self) -> u64 {
        match self {
            Self::Server(ServerEpoch(number)) | Self::Client(ClientId(number)) => number,
        }
    }
}

impl Sealer {
    /// For an endpoint that has sealed nothing yet, and of which there is no other.
    pub fn new(image: &ImageKey, endpoint: Endpoint) -> Self {
        Self {
            channel: image.channel(),
            endpoint,
            key: key(image, endpoint).ok(),
            count: 0,
        }
    }

    /// Returns the channel of its packets.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The count of the packet that is sealed next.
    pub fn next(&self) -> u64 {
        self.count + 1
    }

    /// Seals what follows the first `head` bytes, which are proved and not hidden.
    pub fn seal(&mut self, head: usize, packet: &mut Vec<u8>) {
        self.count += 1;
        let count = self.count;
        let (head, body) = packet.split_at_mut(head);
        let sealed =
            self.key.as_ref().ok_or(Unspecified).and_then(|key| {
                key.seal_in_place_separate_tag(nonce(count), Aad::from(&*head), body)
            });
        match sealed {
            Ok(tag) => packet.extend(tag.as_ref()),
            // Sent to none rather than to all: as if it had been lost.
            Err(Unspecified) => packet.clear(),
        }
    }
}

impl Opener {
    pub fn new(image: ImageKey) -> Self {
        Self {
            image,
            known: HashMap::new(),
        }
    }

    pub fn image(&self) -> &ImageKey {
        &self.image
    }

    /// Opens a packet in `body` in place; `None` if it is forged.
    pub fn open<'a>(
        &mut self,
        from: Endpoint,
        count: u64,
        head: &[u8],
        body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let (nonce, head) = (nonce(count), Aad::from(head));
        if let Some(key) = self.known.get(&from) {
            return key
                .open_in_place(nonce, head, body)
                .ok()
                .map(|plain| &*plain);
        }
        let key = key(&self.image, from).ok()?;
        let plain = key.open_in_place(nonce, head, body).ok()?;
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        // A sender without the key cannot have others' forgotten.
        self.known.insert(from, key);
        Some(plain)
    }
}

fn key(image: &ImageKey, endpoint: Endpoint) -> Result<LessSafeKey, Unspecified> {
    let side = match endpoint {
        Endpoint::Server(_) => b's',
        Endpoint::Client(_) => b'c',
    };
    let secret = image.derive(side, endpoint.number());
    UnboundKey::new(&AES_256_GCM, &secret).map(LessSafeKey::new)
}

fn nonce(count: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&count.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("endpoint", &self.endpoint)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("image", &self.image)
            .field("known", &self.known.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::FamilyKey;
    use forkyard_types::ImageId;

    const HEAD: &[u8] = b"head";
    const SAID: &[u8] = b"what is said";

    fn image() -> ImageKey {
        FamilyKey::new([1; 32]).image(ImageId(Default::default()))
    }

    fn sealed(sealer: &mut Sealer) -> (u64, Vec<u8>) {
        let (count, mut packet) = (sealer.next(), [HEAD, SAID].concat());
        sealer.seal(HEAD.len(), &mut packet);
        (count, packet.split_off(HEAD.len()))
    }

    #[test]
    fn what_is_said_is_hidden_differs_each_time_and_opens_only_as_whose_it_is() {
        let me = Endpoint::Client(ClientId(7));
        let others = [
            Endpoint::Server(ServerEpoch(7)),
            Endpoint::Client(ClientId(8)),
        ];
        let mut sealer = Sealer::new(&image(), me);
        let mut opener = Opener::new(image());
        let (first, one) = sealed(&mut sealer);
        let (second, two) = sealed(&mut sealer);
        assert!(one != two && first != second);
        assert_eq!(one.len(), SAID.len() + TAG);
        assert!(
            !one.windows(4)
                .any(|part| SAID.windows(4).any(|said| said == part))
        );
        let mut open = |from, count, head: &[u8]| {
            opener
                .open(from, count, head, &mut one.clone())
                .map(<[u8]>::to_vec)
        };
        for from in others {
            assert_eq!(open(from, first, HEAD), None);
        }
        assert_eq!(open(me, first, HEAD), Some(SAID.to_vec()));
        assert_eq!(open(me, second, HEAD), None);
        assert_eq!(open(me, first, b"heap"), None);
        for from in others {
            assert_eq!(open(from, first, HEAD), None, "also when a key is known");
        }
    }

    #[test]
    fn no_more_keys_are_kept_than_there_is_room_for() {
        let mut opener = Opener::new(image());
        for id in 0..2 * MOST_KNOWN as u64 {
            let from = Endpoint::Client(ClientId(id));
            let (count, mut body) = sealed(&mut Sealer::new(&image(), from));
            assert_eq!(opener.open(from, count, HEAD, &mut body), Some(SAID));
            assert!(opener.known.len() <= MOST_KNOWN);
        }
    }
}
