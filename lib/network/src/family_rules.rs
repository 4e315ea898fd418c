//! Rules for a family's traffic beyond its own network: a pure function of its
//! owner's decisions. Clones come under it by being on the family's bridge;
//! nothing is added for them.
//!
//! ```text
//! chain out_ID   from its bridge to elsewhere   the rate of each VM; whatever
//!                                               belongs to a connection of
//!                                               this family; new connections,
//!                                               as the policy says
//! chain in_ID    from elsewhere to its bridge   the same; new connections to
//!                                               published ports
//! chain to_ID    to a published port            on to the VM it leads to
//! ```
//!
//! A connection bears its family's mark. The next family with the same
//! addresses has another: nothing it sends or is sent passes as belonging to a
//! connection of this one.

use crate::{Subnet, names::Link, rules};
use forkyard_types::{Allow, BitRate, FamilyId, NetworkPolicy, Publish, Route, WayOut};
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::Ipv4Addr};
use xxhash_rust::xxh3::xxh3_64;

/// Networks that are private on the internet: the host's own networks, those of
/// its neighbours, the cloud's metadata, groups.
const PRIVATE: [(Ipv4Addr, u8); 9] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];
const DNS: u16 = 53;
/// Seconds for which a rate is kept in mind after a VM's last packet.
const RATE_KEPT: u32 = 60;
/// Least burst, in bytes: the burst is as much as the rate allows in a second,
/// but no less than this, as the largest packet that a guest hands over in one
/// piece would else never pass.
const AT_ONCE: u64 = 128 << 10;

/// A family, as far as rules are concerned.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub id: FamilyId,
    pub subnet: Subnet,
    /// As its owner decided last; its ports are not looked at.
    pub policy: NetworkPolicy,
    /// Packets go beyond its network, or did once: the host has an address there.
    pub routed: bool,
    /// Ports of the host that lead to VMs which are there, by their addresses.
    pub published: BTreeMap<Ipv4Addr, Vec<Publish>>,
    /// Resolvers that its VMs may ask.
    pub resolvers: Vec<Ipv4Addr>,
}

impl Family {
    /// Returns the route that its VMs must know to the outside.
    pub fn route(&self) -> Option<Route> {
        let resolvers = match self.policy.out {
            WayOut::Nat => self.resolvers.clone(),
            WayOut::None => Vec::new(),
        };
        self.routed.then(|| Route {
            gateway: self.subnet.gateway(),
            resolvers,
        })
    }

    /// Commands that put its rules in force.
    pub fn install(&self) -> Vec<Value> {
        let mut commands = vec![add(self.siblings())];
        if !self.routed {
            return commands;
        }
        commands.push(add(self.routed_network()));
        for (chain, rules) in [("out", self.rules_out()), ("in", self.rules_in())] {
            if self.policy.rate.is_some() {
                commands.push(add(self.rates(chain)));
            }
            commands.push(add(self.chain(chain)));
            commands.extend(rules.into_iter().map(|rule| self.rule(chain, rule)));
        }
        commands.extend(self.ways(Verdicts::Shown).map(add));
        if !self.published.is_empty() {
            commands.push(add(self.chain("to")));
            let rules = self.led().map(|(to, port)| self.lead(to, port));
            commands.extend(rules.map(|rule| self.rule("to", rule)));
            commands.extend(self.ports(Verdicts::Shown).map(add));
        }
        commands
    }

    /// Commands that take them back, all of them.
    pub fn remove(&self) -> Vec<Value> {
        let mut commands = vec![delete(self.siblings())];
        if !self.routed {
            return commands;
        }
        if !self.published.is_empty() {
            commands.extend(self.ports(Verdicts::Omitted).map(delete));
            commands.push(delete(self.chain("to")));
        }
        commands.push(delete(self.routed_network()));
        commands.extend(self.ways(Verdicts::Omitted).map(delete));
        commands.extend(["out", "in"].map(|chain| delete(self.chain(chain))));
        if self.policy.rate.is_some() {
            commands.extend(["out", "in"].map(|chain| delete(self.rates(chain))));
        }
        commands
    }

    /// Commands that put this in the place of what is in force of it, at one stroke.
    pub fn replace(&self, former: &Self) -> Vec<Value> {
        let mut commands = former.remove();
        commands.extend(self.install());
        commands
    }

    /// Each port of the host, and the VM it leads to.
    fn led(&self) -> impl Iterator<Item = (Ipv4Addr, Publish)> {
        let ports = self.published.iter();
        ports.flat_map(|(to, ports)| ports.iter().map(|port| (*to, *port)))
    }

    fn rules_out(&self) -> Vec<Vec<Value>> {
        let mut rules = self.rate("out", "saddr");
        rules.push(self.known());
        if self.policy.out == WayOut::Nat {
            if !self.resolvers.is_empty() {
                let resolvers = json!({ "set": self.resolvers });
                rules.push(self.open([is(ip("daddr"), resolvers)].into_iter().chain(port(DNS))));
            }
            if self.policy.allow.is_empty() {
                let private = PRIVATE.map(|(network, length)| prefix(network, length));
                let private = is(ip("daddr"), json!({ "set": private }));
                rules.push(vec![private, refuse()]);
                rules.push(self.open([]));
            }
            let allowed = self.policy.allow.iter();
            rules.extend(allowed.map(|allow| self.open(destination(*allow))));
        }
        rules.push(vec![refuse()]);
        rules
    }

    fn rules_in(&self) -> Vec<Vec<Value>> {
        let mut rules = self.rate("in", "daddr");
        rules.push(self.known());
        let led_here = json!({"match": {
            "op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}});
        if !self.published.is_empty() {
            let members: Vec<_> = self.published.keys().collect();
            let members = is(ip("daddr"), json!({ "set": members }));
            rules.push(self.open([led_here, members]));
        }
        rules.push(vec![json!({ "drop": null })]);
        rules
    }

    /// Drops what a VM sends or is sent beyond its rate.
    fn rate(&self, chain: &str, field: &str) -> Vec<Vec<Value>> {
        let rule = |rate: BitRate| {
            let limit = json!({"limit": {
                "rate": rate.bytes(), "rate_unit": "bytes", "per": "second", "inv": true,
                "burst": AT_ONCE.saturating_sub(rate.bytes()), "burst_unit": "bytes"}});
            let update = json!({"set": {
                "op": "update", "elem": ip(field), "set": format!("@{}", self.named(chain)),
                "stmt": [limit]}});
            vec![update, json!({ "drop": null })]
        };
        self.policy.rate.map(rule).into_iter().collect()
    }

    /// Lets pass what belongs to a connection of this family.
    fn known(&self) -> Vec<Value> {
        let state = json!({"match": {
            "op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
        let ours = is(json!({"ct": {"key": "mark"}}), json!(self.mark()));
        vec![state, ours, accept()]
    }

    /// Lets new connections pass, and marks them.
    fn open(&self, matches: impl IntoIterator<Item = Value>) -> Vec<Value> {
        let mark = json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": self.mark()}});
        matches.into_iter().chain([mark, accept()]).collect()
    }

    /// On to the VM.
    fn lead(&self, to: Ipv4Addr, publish: Publish) -> Vec<Value> {
        let mut rule = Vec::new();
        if let Some(address) = publish.address {
            rule.push(is(ip("daddr"), json!(address)));
        }
        rule.push(is(
            json!({"meta": {"key": "l4proto"}}),
            json!(publish.transport),
        ));
        rule.push(is(dport(), json!(publish.port)));
        rule.push(json!({"dnat": {"addr": to, "port": publish.guest_port}}));
        rule
    }

    /// Never 0, which is the mark of everything else.
    fn mark(&self) -> u32 {
        let hash = xxh3_64(self.id.as_str().as_bytes()) >> 32;
        u32::try_from(hash).unwrap_or(u32::MAX).max(1)
    }

    fn bridge(&self) -> String {
        Link::Bridge(self.id).name()
    }

    fn named(&self, what: &str) -> String {
        format!("{what}_{}", self.id)
    }

    fn siblings(&self) -> Value {
        let pair = json!({ "concat": [self.bridge(), self.bridge()] });
        json!({"element": {
            "family": "ip", "table": rules::TABLE, "name": "siblings", "elem": [pair]}})
    }

    fn routed_network(&self) -> Value {
        let network = prefix(self.subnet.network(), Subnet::PREFIX);
        json!({"element": {
            "family": "bridge", "table": rules::TABLE, "name": "routed", "elem": [network]}})
    }

    fn chain(&self, what: &str) -> Value {
        json!({"chain": {"family": "ip", "table": rules::TABLE, "name": self.named(what)}})
    }

    fn rule(&self, chain: &str, rule: Vec<Value>) -> Value {
        add(json!({"rule": {
            "family": "ip", "table": rules::TABLE, "chain": self.named(chain), "expr": rule}}))
    }

    fn rates(&self, chain: &str) -> Value {
        json!({"set": {
            "family": "ip", "table": rules::TABLE, "name": self.named(chain), "type": "ipv4_addr",
            "size": Subnet::MEMBERS, "flags": ["timeout"], "timeout": RATE_KEPT}})
    }

    fn ways(&self, verdicts: Verdicts) -> impl Iterator<Item = Value> {
        [("ways_out", "out"), ("ways_in", "in")]
            .into_iter()
            .map(move |(map, chain)| {
                verdicts.element(map, json!(self.bridge()), &self.named(chain))
            })
    }

    fn ports(&self, verdicts: Verdicts) -> impl Iterator<Item = Value> {
        self.led().map(move |(_, publish)| {
            let (map, key) = match publish.address {
                Some(address) => (
                    "published_at",
                    json!({"concat": [address, publish.transport, publish.port]}),
                ),
                None => (
                    "published",
                    json!({"concat": [publish.transport, publish.port]}),
                ),
            };
            verdicts.element(map, key, &self.named("to"))
        })
    }
}

/// An element of a map is added with what it says, and deleted without.
#[derive(Clone, Copy, Debug)]
enum Verdicts {
    Shown,
    Omitted,
}

impl Verdicts {
    fn element(self, map: &str, key: Value, chain: &str) -> Value {
        let element = match self {
            Self::Shown => json!([key, {"goto": {"target": chain}}]),
            Self::Omitted => key,
        };
        json!({"element": {
            "family": "ip", "table": rules::TABLE, "name": map, "elem": [element]}})
    }
}

fn add(what: Value) -> Value {
    json!({ "add": what })
}

fn delete(what: Value) -> Value {
    json!({ "delete": what })
}

fn is(left: Value, right: Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn ip(field: &str) -> Value {
    json!({"payload": {"protocol": "ip", "field": field}})
}

fn dport() -> Value {
    json!({"payload": {"protocol": "th", "field": "dport"}})
}

fn prefix(network: Ipv4Addr, length: u8) -> Value {
    json!({"prefix": {"addr": network, "len": length}})
}

fn port(number: u16) -> [Value; 2] {
    let transports = is(
        json!({"meta": {"key": "l4proto"}}),
        json!({"set": ["tcp", "udp"]}),
    );
    [transports, is(dport(), json!(number))]
}

fn destination(allow: Allow) -> Vec<Value> {
    let mut matches = vec![is(ip("daddr"), prefix(allow.network(), allow.prefix()))];
    matches.extend(allow.port().into_iter().flat_map(port));
    matches
}

fn accept() -> Value {
    json!({ "accept": null })
}

/// Said aloud, so that a program in the guest need not wait to learn it.
fn refuse() -> Value {
    json!({"reject": {"type": "icmp", "expr": "admin-prohibited"}})
}
