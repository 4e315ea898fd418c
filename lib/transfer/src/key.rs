//! Authentication of packets: a key for each family, and from it one for each
//! image.
//!
//! Every fork is an image of its own, so what was captured from one fork is
//! of no use in another: the key is a different one.

use forkyard_types::ImageId;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

/// Says what a key is derived for; a change of it changes every key.
const CONTEXT: &str = "forkyard transfer 2026-11 image key";
/// Groups are drawn from 239.192.0.0/14, the organisation's own scope.
const GROUPS: u32 = 0xEFC0_0000;
/// Bits of a group's address that are drawn.
const GROUP_BITS: u32 = 18;

/// The secret of a family: a program that has it may give its hosts pages.
#[derive(Clone)]
pub struct FamilyKey([u8; 32]);

/// Names an image on the wire, to any listener; says nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u64);

/// The secret of one image of a family.
#[derive(Clone)]
pub struct ImageKey {
    secret: [u8; 32],
    channel: Channel,
}

impl FamilyKey {
    /// A key of these bytes, which have to be drawn at random.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The key of one of the family's images.
    pub fn image(&self, image: ImageId) -> ImageKey {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&self.0).update(image.0.as_bytes());
        let mut reader = hasher.finalize_xof();
        let (mut secret, mut channel) = ([0; 32], [0; 8]);
        reader.fill(&mut secret);
        reader.fill(&mut channel);
        let channel = Channel(u64::from_le_bytes(channel));
        ImageKey { secret, channel }
    }
}

impl ImageKey {
    /// The image's name on the wire.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The group its pages go to. Two images may draw the same: then both hear
    /// the other's packets and throw them away, and the server that is told
    /// goes on to its next `attempt`.
    pub fn group(&self, attempt: u8) -> Ipv4Addr {
        let hash = blake3::keyed_hash(&self.secret, &[b'g', attempt]);
        let [a, b, c, d, ..] = *hash.as_bytes();
        let drawn = u32::from_le_bytes([a, b, c, d]) % (1 << GROUP_BITS);
        Ipv4Addr::from_bits(GROUPS | drawn)
    }

    /// The secret of one endpoint of this side.
    pub(crate) fn derive(&self, side: u8, endpoint: u64) -> [u8; 32] {
        let mut name = [side; 9];
        name[1..].copy_from_slice(&endpoint.to_le_bytes());
        // A group's has another length.
        *blake3::keyed_hash(&self.secret, &name).as_bytes()
    }
}

/// Secret for the cookies that a server hands to a knocking client, so that
/// pages are only sent to an address at which the client can hear. Never leaves
/// the server but as a hash.
#[derive(Clone)]
pub struct CookieSecret([u8; 32]);

impl CookieSecret {
    /// A secret of these bytes, drawn at random for each server.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    pub(crate) fn cookie(&self, at: SocketAddr, client: u64, nonce: u64) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        match at.ip() {
            std::net::IpAddr::V4(ip) => hasher.update(&ip.octets()),
            std::net::IpAddr::V6(ip) => hasher.update(&ip.octets()),
        };
        hasher.update(&at.port().to_le_bytes());
        hasher.update(&client.to_le_bytes());
        hasher.update(&nonce.to_le_bytes());
        let mut cookie = [0; 8];
        hasher.finalize_xof().fill(&mut cookie);
        // Zero says that there is none yet.
        u64::from_le_bytes(cookie).max(1)
    }
}

impl fmt::Debug for FamilyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FamilyKey(…)")
    }
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImageKey").field(&self.channel).finish()
    }
}

impl fmt::Debug for CookieSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_one_family_and_one_image_of_two_families_share_nothing() {
        let (a, b) = (FamilyKey::new([1; 32]), FamilyKey::new([2; 32]));
        let (x, y) = (ImageId::random(), ImageId::random());
        let keys = [a.image(x), a.image(y), b.image(x)];
        for (i, one) in keys.iter().enumerate() {
            for other in &keys[i + 1..] {
                assert_ne!(one.channel(), other.channel());
                assert_ne!(other.derive(b's', 1), one.derive(b's', 1));
            }
        }
    }

    #[test]
    fn groups_stay_in_their_scope_and_each_attempt_draws_another() {
        let key = FamilyKey::new([7; 32]).image(ImageId::random());
        let drawn: std::collections::BTreeSet<_> = (0..=255).map(|n| key.group(n)).collect();
        assert!(drawn.len() > 250, "255 draws of 2^18 hardly ever meet");
        assert!(drawn.iter().all(|group| group.is_multicast()));
        assert!(
            drawn
                .iter()
                .all(|g| g.octets()[0] == 239 && (192..196).contains(&g.octets()[1]))
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        let family = FamilyKey::new([0xAB; 32]);
        let image = family.image(ImageId::random());
        // The channel is on the wire.
        let told = format!("FamilyKey(…) ImageKey({:?})", image.channel());
        assert_eq!(format!("{family:?} {image:?}"), told);
        assert_eq!(
            format!("{:?}", CookieSecret::new([0xAB; 32])),
            "CookieSecret(…)"
        );
    }
}
