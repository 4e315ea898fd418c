//! Packets that may come out of tunnels: one nftables table of the IPv4 family, which sees
//! the host a frame comes from, as the bridge does not.
//!
//! A host is believed about the places it gives, and checks which of its VMs speaks
//! as which of these. While a VM moves, the host that it leaves is believed about whatever
//! it passes on for that VM, which it had all of (`relays`). Whatever else says that it belongs to a network of ours is
//! dropped; tunnels of others, by the same port, are not looked at.

use crate::{NetworkError, nft::Nft};
use forkyard_overlay::{Holding, Subnet};
use forkyard_types::{Mac, Member};
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// In its own words, for JSON has none for such a set. Replaces what an earlier daemon left, at one stroke. Nothing
/// comes in until families are stretched again.
const RULES: &str = include_str!("tunnels.nft");
pub(crate) const TABLE: &str = "forkyard_tunnels";
const PLACES: &str = "places";
const RELAYS: &str = "relays";
/// Port at which tunnels end, on every host: what IANA gave VXLAN.
pub(crate) const PORT: u16 = 4789;
/// First number of families' networks, on every host alike. The
/// highest twelve bits are in the rules.
const FIRST: u32 = 0x0046_5000;

/// The number of a family's network.
pub(crate) fn number(subnet: Subnet) -> u32 {
    FIRST + u32::from(subnet.number())
}

/// Puts the table in force, with no family.
pub(crate) async fn enforce(nft: &Nft) -> Result<(), NetworkError> {
    nft.run_words(RULES).await
}

/// Removes it.
pub(crate) async fn lift(nft: &Nft) -> Result<(), NetworkError> {
    let table = json!({"table": {"family": "ip", "name": TABLE}});
    // Added first, so that removing what is not there is no error.
    nft.run(vec![json!({ "add": table }), json!({ "delete": table })])
        .await
}

/// Host that passes on what is for a place.
type Relay = (Ipv4Addr, Member);

/// Hosts of one family that the kernel was told to hear.
#[derive(Debug, Default)]
pub(crate) struct Told {
    heard: Vec<Holding>,
    relayed: BTreeSet<Relay>,
}

/// Change of what was told, at one stroke.
#[must_use]
#[derive(Debug)]
pub(crate) struct Telling<'a> {
    told: &'a mut Told,
    heard: Vec<Holding>,
    relayed: BTreeSet<Relay>,
    commands: Vec<Value>,
}

impl Told {
    /// Hears hosts speak as the second and no longer as the first, and likewise what they
    /// pass on.
    pub(crate) fn change(
        &mut self,
        subnet: Subnet,
        (gone, new): (&[Holding], &[Holding]),
        (unrelayed, relayed): (&[Relay], &[Relay]),
    ) -> Telling<'_> {
        let of_places = |all: &[Holding]| all.iter().filter_map(|it| place(subnet, it)).collect();
        let of_relays = |all: &[Relay]| all.iter().filter_map(|it| relay(subnet, *it)).collect();
        let changes: [(&str, &str, Vec<Value>); 4] = [
            ("delete", PLACES, of_places(gone)),
            ("add", PLACES, of_places(new)),
            ("delete", RELAYS, of_relays(unrelayed)),
            ("add", RELAYS, of_relays(relayed)),
        ];
        let changes = changes.into_iter().filter(|(.., of)| !of.is_empty());
        let commands = changes.map(|(verb, set, elements)| {
            json!({verb: {"element": {
                "family": "ip", "table": TABLE, "name": set, "elem": elements}}})
        });
        let mut heard = self.heard.clone();
        heard.retain(|it| !gone.contains(it));
        heard.extend_from_slice(new);
        let mut relays = self.relayed.clone();
        relays.retain(|it| !unrelayed.contains(it));
        relays.extend(relayed);
        Telling {
            commands: commands.collect(),
            told: self,
            heard,
            relayed: relays,
        }
    }

    /// Hears no host any more.
    pub(crate) async fn hear_none(
        &mut self,
        nft: &Nft,
        subnet: Subnet,
    ) -> Result<(), NetworkError> {
        let heard = self.heard.clone();
        let relayed: Vec<_> = self.relayed.iter().copied().collect();
        let change = self.change(subnet, (&heard, &[]), (&relayed, &[]));
        change.carry_out(nft).await
    }

    /// All that was told.
    pub(crate) fn all(&self) -> (&[Holding], Vec<Relay>) {
        (&self.heard, self.relayed.iter().copied().collect())
    }
}

impl Telling<'_> {
    /// Tells the kernel. After an error it knows what it knew before.
    pub(crate) async fn carry_out(self, nft: &Nft) -> Result<(), NetworkError> {
        if !self.commands.is_empty() {
            nft.run(self.commands).await?;
        }
        self.told.heard = self.heard;
        self.told.relayed = self.relayed;
        Ok(())
    }
}

fn relay(subnet: Subnet, (host, member): (Ipv4Addr, Member)) -> Option<Value> {
    let mac = subnet.address(member)?.mac;
    Some(json!({"concat": [host, number(subnet), integer(mac)]}))
}

fn place(subnet: Subnet, holding: &Holding) -> Option<Value> {
    let first = subnet.address(Member(holding.places.start))?;
    let last = subnet.address(Member(holding.places.end.checked_sub(1)?))?;
    let range = |first: u64, last: u64| match first == last {
        true => json!(first),
        false => json!({"range": [first, last]}),
    };
    Some(json!({"concat": [
        holding.tunnel,
        number(subnet),
        range(integer(first.mac), integer(last.mac)),
        range(u32::from(first.ip).into(), u32::from(last.ip).into()),
    ]}))
}

/// Packets are looked at as the numbers that their bytes make.
fn integer(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
