//! Traffic beyond the families' networks: one nftables table of family ip.
//!
//! ```text
//! forward    between bridges: never. From a bridge or to one: the family's
//!            chain decides (`ways_out`, `ways_in`); a family without is shut in.
//!            Never to the port of tunnels or what is `closed`: what leaves is
//!            taken for the host's
//! to_host    from a bridge: answers to connections of the host's own that
//!            were led to a founder, DHCP, and questions about names that were led to
//!            the family's forwarder; nothing else
//! from_host  to a bridge: the like
//! lead       to a published port of the host, from outside or the host itself; from a
//!            bridge, questions about names to the forwarder, if the family has one
//! disguise   as the host, whatever leaves; as the gateway, what a program on
//!            the host sends from its loopback
//! ```
//!
//! Kernels that show bridged frames to this table as well (br_netfilter) show
//! it those between siblings: the set `siblings` lets them pass.
//!
//! Packets of others are not looked at. A table of others that drops what it
//! does not know drops ours, too: no table can undo another's drop.

use crate::{Closed, NetworkError, closed, fetchers, nft::Nft, rules, wall};
use serde_json::json;
use std::collections::BTreeSet;

/// As `nft -j` reads it. Replaces what an earlier daemon left, at one stroke;
/// connections under way wait until their family's rules are back.
pub(crate) const ROUTES: &str = include_str!("routes.json");

/// Puts the table in force, with no family. There is no moment in which these are not closed.
pub(crate) async fn enforce(nft: &Nft, closed: &BTreeSet<Closed>) -> Result<(), NetworkError> {
    let mut commands = wall::read(ROUTES)?;
    commands.extend(closed::elements(closed));
    commands.extend(fetchers::enforce());
    nft.run(commands).await
}

/// Removes it, and all families' rules with it.
pub(crate) async fn lift(nft: &Nft) -> Result<(), NetworkError> {
    let table = json!({"table": {"family": "ip", "name": rules::TABLE}});
    // Added first, so that removing what is not there is no error.
    let mut commands = vec![json!({ "add": table }), json!({ "delete": table })];
    commands.extend(fetchers::lift());
    nft.run(commands).await
}
