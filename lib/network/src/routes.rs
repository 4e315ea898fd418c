//! Traffic beyond the families' networks: one nftables table of family ip.
//!
//! ```text
//! forward    between bridges: never, but to an address of a VM's own, by which any host
//!            would reach it. From a bridge or to one: the family's chain decides
//!            (`ways_out`, `ways_in`), of two that of the one that opened the
//!            connection; a family without is shut in, and so is what belongs to no
//!            connection: where it goes is asked of that.
//!            Never to the port of tunnels or what is `closed`: what leaves is
//!            taken for the host's. Looked up by the protocol as the header has it: of `meta l4proto`
//!            in a set of ranges nft 1.0 makes what some kernels refuse (6.12.117)
//! to_host    from a bridge: answers to connections of the host's own that
//!            were led to a founder, DHCP, and questions about names that were led to
//!            the family's forwarder; nothing else
//! from_host  to a bridge: the like
//! lead       to a published port of the host or an address of a VM's own, from outside or the
//!            host itself; from a bridge, to such an address, and questions about names to the forwarder, if the family
//!            has one
//! led        addresses that a connection to one of these has brought a packet to lately
//! disguise   whatever leaves: as the address of the VM's own, if it has one, and else as the
//!            host; as the gateway, what a program on the host sends from its loopback or
//!            from an address of a VM's own
//! ```
//!
//! Kernels that show bridged frames to this table as well (br_netfilter) show
//! it those between siblings: the set `siblings` lets them pass.
//!
//! Packets of others are not looked at. A table of others that drops what it
//! does not know drops ours, too: no table can undo another's drop.

use crate::{Closed, NetworkError, addresses, closed, fetchers, nft::Nft, rules, wall};
use nftables::helper::{DEFAULT_NFT, get_current_ruleset_raw};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

/// Seconds for which `led` keeps an address, as `routes.json` says.
const LED: u64 = 60;

/// As `nft -j` reads it. Replaces what an earlier daemon left, at one stroke;
/// connections under way wait until their family's rules are back.
pub(crate) const ROUTES: &str = include_str!("routes.json");

/// Puts the table in force, with no family. There is no moment in which these are not closed.
pub(crate) async fn enforce(nft: &Nft, closed: &BTreeSet<Closed>) -> Result<(), NetworkError> {
    let mut commands = wall::read(ROUTES)?;
    commands.extend(closed::elements(closed));
    // Those that an earlier daemon had it take: until the rules lead them on again, the host answers nothing.
    let own = addresses::on_bridges()?;
    commands.extend((!own.is_empty()).then(|| {
        json!({"add": {"element": {
            "family": "ip", "table": rules::TABLE, "name": "own", "elem": own}}})
    }));
    commands.extend(fetchers::enforce());
    nft.run(commands).await
}

/// Times since each address was last sent something by a connection to a published port, for a minute after that.
pub(crate) async fn led() -> Result<BTreeMap<Ipv4Addr, Duration>, NetworkError> {
    let words = ["list", "set", "ip", rules::TABLE, "led"];
    let look = move || get_current_ruleset_raw(DEFAULT_NFT, ["-j"].into_iter().chain(words));
    let told = match tokio::task::spawn_blocking(look).await {
        Ok(told) => told?,
        Err(broke) => std::panic::resume_unwind(broke.into_panic()),
    };
    let told: Value =
        serde_json::from_str(&told).map_err(|source| NetworkError::Rules { source })?;
    Ok(ages(&told))
}

/// Ages of a set's elements, as nft tells them: with the seconds that they have left.
fn ages(told: &Value) -> BTreeMap<Ipv4Addr, Duration> {
    let sets = told["nftables"].as_array().into_iter().flatten();
    let elements = sets.filter_map(|it| it["set"]["elem"].as_array()).flatten();
    let age = |element: &Value| {
        let address = element["elem"]["val"].as_str()?.parse().ok()?;
        let left = element["elem"]["expires"].as_u64()?;
        Some((address, Duration::from_secs(LED.saturating_sub(left))))
    };
    elements.filter_map(age).collect()
}

/// Removes it, and all families' rules with it.
pub(crate) async fn lift(nft: &Nft) -> Result<(), NetworkError> {
    let table = json!({"table": {"family": "ip", "name": rules::TABLE}});
    // Added first, so that removing what is not there is no error.
    let mut commands = vec![json!({ "add": table }), json!({ "delete": table })];
    commands.extend(fetchers::lift());
    nft.run(commands).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_were_led_to_have_the_age_that_their_time_left_says() {
        let told = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            {"set": {"family": "ip", "name": "led", "table": "forkyard", "type": "ipv4_addr", "timeout": LED,
                "elem": [{"elem": {"val": "10.1.0.2", "expires": 58}}, {"elem": {"val": "10.1.0.6", "expires": 1}}]}}]});
        let led = ages(&told);
        assert_eq!(led.len(), 2);
        assert_eq!(led[&Ipv4Addr::new(10, 1, 0, 2)], Duration::from_secs(2));
        assert_eq!(led[&Ipv4Addr::new(10, 1, 0, 6)], Duration::from_secs(59));
        assert_eq!(
            ages(&json!({"nftables": [{"set": {"name": "led"}}]})),
            BTreeMap::new()
        );
    }

    #[test]
    fn the_table_keeps_addresses_for_as_long_as_their_age_is_reckoned_from() {
        let table: Value = serde_json::from_str(ROUTES).expect("JSON");
        let commands = table["nftables"].as_array().expect("commands");
        let sets = commands.iter().map(|it| &it["add"]["set"]);
        let kept: Vec<_> = sets.filter(|set| set["name"] == "led").collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0]["timeout"], LED);
    }
}
