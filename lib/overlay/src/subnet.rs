//! Addresses of members: pure arithmetic over the family's number and the
//! member's place in it.
//!
//! 10.128.0.0/9 is cut into one /21 a family. The first address of each is
//! kept for the host, the second is the founder's, the next ones are the
//! clones' in order of their places.

use forkyard_types::{Address, Mac, Member};
use std::net::Ipv4Addr;

const FIRST: u32 = 0x0a80_0000;
const PREFIX: u8 = 21;
const SIZE: u32 = 1 << (32 - PREFIX);
/// Network and host address before the founder's, broadcast after the last.
const BEFORE: u16 = 2;
const AFTER: u16 = 1;

/// The network of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subnet(u16);

impl Subnet {
    /// Families that can exist at once.
    pub const FAMILIES: u16 = 1 << (PREFIX - 9);
    /// Length of a family's prefix, in bits.
    pub const PREFIX: u8 = PREFIX;
    /// Places in one family, the founder's among them.
    pub const MEMBERS: u16 = (1 << (32 - PREFIX)) - BEFORE - AFTER;

    /// The network of the family with this number, if there are that many.
    pub fn of(family: u16) -> Option<Self> {
        (family < Self::FAMILIES).then_some(Self(family))
    }

    /// Gives the member's address, if the family is that large.
    pub fn address(self, member: Member) -> Option<Address> {
        (member.0 < Self::MEMBERS).then(|| self.place(member.0))
    }

    /// Gives the address of the founder: member 0, which every family has.
    pub fn founder(self) -> Address {
        self.place(0)
    }

    /// The host's own address on it.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first() + 1)
    }

    /// The MAC that goes with it: the same on every host, so that a clone finds the
    /// gateway that its parent knew.
    pub fn gateway_mac(self) -> Mac {
        self.mac(u16::MAX)
    }

    /// True for an address of the range in which all families' networks are.
    pub fn is_guests(ip: Ipv4Addr) -> bool {
        u32::from(ip) & (u32::MAX << 23) == FIRST
    }

    /// The family's number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The address that stands for all of it.
    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first())
    }

    fn first(self) -> u32 {
        FIRST + u32::from(self.0) * SIZE
    }

    /// Returns the holder of this MAC on it: `address`, turned round.
    pub fn holder(self, mac: Mac) -> Option<Address> {
        let [.., m1, m0] = mac.0;
        let address = self.address(Member(u16::from_be_bytes([m1, m0])))?;
        (address.mac == mac).then_some(address)
    }

    fn place(self, member: u16) -> Address {
        let ip = self.first() + u32::from(member + BEFORE);
        Address {
            ip: Ipv4Addr::from(ip),
            prefix: PREFIX,
            mac: self.mac(member),
        }
    }

    fn mac(self, last: u16) -> Mac {
        let ([f1, f0], [m1, m0]) = (self.0.to_be_bytes(), last.to_be_bytes());
        // Bit 1 of the first byte set: administered locally, given by no vendor.
        Mac([0x46, 0x59, f1, f0, m1, m0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_place_lies_inside_its_network_and_is_no_special_address(
            family in 0..Subnet::FAMILIES,
            member in 0..Subnet::MEMBERS,
        ) {
            let address = Subnet::of(family).and_then(|s| s.address(Member(member))).expect("in range");
            let ip = u32::from(address.ip);
            let network = FIRST + u32::from(family) * SIZE;
            prop_assert!(ip > network + 1 && ip < network + SIZE - 1);
            prop_assert!(address.ip.is_private());
            prop_assert_eq!(address.mac.0[0] & 0b11, 0b10, "local, and of one station");
            for other in [family, family ^ 1] {
                let holder = Subnet::of(other).and_then(|subnet| subnet.holder(address.mac));
                prop_assert_eq!(holder, (other == family).then_some(address));
            }
        }

        #[test]
        fn no_two_places_share_an_address_or_a_mac(
            places in prop::collection::btree_set((0..Subnet::FAMILIES, 0..Subnet::MEMBERS), 2..50)
        ) {
            let count = places.len();
            let addresses: Vec<_> =
                places.into_iter().filter_map(|(f, m)| Subnet::of(f)?.address(Member(m))).collect();
            prop_assert_eq!(addresses.iter().map(|a| a.ip).collect::<BTreeSet<_>>().len(), count);
            prop_assert_eq!(addresses.iter().map(|a| a.mac).collect::<BTreeSet<_>>().len(), count);
        }
    }

    #[test]
    fn there_is_nothing_beyond_the_last_family_and_member() {
        assert_eq!(Subnet::of(Subnet::FAMILIES), None);
        assert_eq!(
            Subnet::of(0).and_then(|s| s.address(Member(Subnet::MEMBERS))),
            None
        );
    }
}
