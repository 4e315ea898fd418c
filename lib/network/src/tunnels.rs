//! Packets that may come out of tunnels: one nftables table of the IPv4 family, which sees
//! the host a frame comes from, as the bridge does not.
//!
//! A host is believed about the places it gives, and checks which of its VMs speaks
//! as which of these. Whatever else says that it belongs to a network of ours is
//! dropped; tunnels of others, by the same port, are not looked at.

use crate::{NetworkError, Subnet, nft::Nft, span::Holding};
use forkyard_types::{Mac, Member};
use serde_json::{Value, json};

/// In its own words, for JSON has none for such a set. Replaces what an earlier daemon left, at one stroke. Nothing
/// comes in until families are stretched again.
const RULES: &str = include_str!("tunnels.nft");
pub(crate) const TABLE: &str = "forkyard_tunnels";
const PLACES: &str = "places";
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

/// Hears hosts speak as these and no longer as those, at one stroke.
pub(crate) async fn change(
    nft: &Nft,
    subnet: Subnet,
    gone: &[Holding],
    new: &[Holding],
) -> Result<(), NetworkError> {
    let mut commands = Vec::new();
    for (verb, of, but) in [("delete", gone, new), ("add", new, gone)] {
        let changed = of.iter().filter(|it| !but.contains(it));
        let elements: Vec<_> = changed.filter_map(|it| element(subnet, it)).collect();
        if !elements.is_empty() {
            commands.push(json!({verb: {"element": {
                "family": "ip", "table": TABLE, "name": PLACES, "elem": elements}}}));
        }
    }
    match commands.is_empty() {
        true => Ok(()),
        false => nft.run(commands).await,
    }
}

fn element(subnet: Subnet, holding: &Holding) -> Option<Value> {
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
