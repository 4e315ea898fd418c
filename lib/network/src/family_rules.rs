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
//!                                               published ports and own addresses
//! chain to_ID    to a published port or         on to the VM it leads to (`leads`)
//!                an address of a VM's own
//! chain ask_ID   from its bridge, to port 53    to the forwarder, if it may reach names
//! sets name_ID, port_ID                         what names that it may reach stood for when it asked
//! ```
//!
//! A connection bears its family's mark. The next family with the same
//! addresses has another: nothing it sends or is sent passes as belonging to a
//! connection of this one.
//!
//! ```text
//! mark: 18 bits of the family | 14 bits: 0 led here by a published port; else out, as this policy says
//! ```
//!
//! So a connection that was opened under another policy is known as such: it is
//! looked at anew, and bears the present mark if its destination may still be reached.
//! Both directions are: a guest that only listens is not cut off from what it may reach,
//! nor goes on hearing what it may not.

use crate::{
    Subnet,
    forwarder::Learned,
    named::{open, opened_set, opened_sets},
    names::{ANY_BRIDGE, Link},
    private::PRIVATE,
    rules,
};
use forkyard_types::{
    Allow, BitRate, Destination, FamilyId, NamedHost, NetworkPolicy, Publish, Route, WayOut,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, net::Ipv4Addr, time::Instant};
use xxhash_rust::xxh3::xxh3_64;

const DNS: u16 = 53;
/// Mark of questions about names that were led to a forwarder, in `routes.json` as well: no family's, and told
/// apart by it from what other programs have led to the host.
const ASKS: u32 = 53;
/// Bits of a mark that are the family's.
const OF_FAMILY: u32 = !OF_POLICY;
const OF_POLICY: u32 = (1 << 14) - 1;
/// Seconds for which a rate is kept in mind after a VM's last packet.
const RATE_KEPT: u32 = 60;
/// Least burst, in bytes: a burst is as much as the rate allows in a second; but no
/// less than this, for the largest packet that a guest hands over in one piece
/// would else never pass.
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
    /// Leads from outside to VMs which are there, by their addresses.
    pub published: BTreeMap<Ipv4Addr, Vec<Publish>>,
    /// Resolvers that its VMs may ask.
    pub resolvers: Vec<Ipv4Addr>,
    /// Port of the gateway's that answers them, if names are what they may reach.
    pub forwarder: Option<u16>,
    /// Addresses that the answers opened.
    pub learned: Learned,
}

impl Family {
    /// Facts that its VMs must know of the way out.
    pub fn route(&self) -> Option<Route> {
        let resolvers = match (self.policy.out, self.forwarder) {
            (WayOut::Nat, None) => self.resolvers.clone(),
            (WayOut::Nat, Some(_)) => vec![self.subnet.gateway()],
            (WayOut::None, _) => Vec::new(),
        };
        self.routed.then(|| Route {
            gateway: self.subnet.gateway(),
            resolvers,
        })
    }

    /// Names that its VMs may reach.
    pub fn names(&self) -> Vec<NamedHost> {
        let is_out = self.policy.out == WayOut::Nat;
        let allow = self.policy.allow.iter().filter(|_| is_out);
        let names = allow.filter_map(|it| match it {
            Destination::Host(host) => Some(host.clone()),
            Destination::Network(_) => None,
        });
        names.collect()
    }

    /// Commands that put its rules in force.
    pub fn install(&self) -> Vec<Value> {
        let mut commands = vec![add(self.siblings())];
        if !self.routed {
            return commands;
        }
        commands.push(add(self.routed_network()));
        commands.extend(self.ask());
        for (chain, rules) in [("out", self.rules_out()), ("in", self.rules_in())] {
            if self.policy.rate.is_some() {
                commands.push(add(self.rates(chain)));
            }
            commands.push(add(self.chain(chain)));
            commands.extend(rules.into_iter().map(|rule| self.rule(chain, rule)));
        }
        commands.extend(self.ways(Verdicts::Shown).map(add));
        commands.extend(self.lead());
        commands
    }

    /// Commands that take them back, all of them.
    pub fn remove(&self) -> Vec<Value> {
        let mut commands = vec![delete(self.siblings())];
        if !self.routed {
            return commands;
        }
        commands.extend(self.lead_no_more());
        commands.push(delete(self.routed_network()));
        commands.extend(self.ways(Verdicts::Omitted).map(delete));
        commands.extend(["out", "in"].map(|chain| delete(self.chain(chain))));
        if self.policy.rate.is_some() {
            commands.extend(["out", "in"].map(|chain| delete(self.rates(chain))));
        }
        if self.forwarder.is_some() {
            let set =
                |(name, kind): (&str, Value)| delete(opened_set(self.id.as_str(), name, &kind));
            commands.push(delete(Verdicts::Omitted.element(
                "asks",
                json!(self.bridge()),
                "",
            )));
            commands.push(delete(self.chain("ask")));
            commands.extend(opened_sets().map(set));
        }
        commands
    }

    /// Has questions about names be led to the forwarder, and keeps what its answers open.
    fn ask(&self) -> Vec<Value> {
        let Some(port) = self.forwarder else {
            return Vec::new();
        };
        let set = |(name, kind): (&str, Value)| add(opened_set(self.id.as_str(), name, &kind));
        let mut commands: Vec<_> = opened_sets().map(set).into();
        commands.push(add(self.chain("ask")));
        let (gateway, network) = (self.subnet.gateway(), self.subnet.network());
        let elsewhere = json!({"match": {
            "op": "!=", "left": ip("daddr"), "right": prefix(network, Subnet::PREFIX)}});
        // Siblings answer for themselves.
        for to in [is(ip("daddr"), json!(gateway)), elsewhere] {
            let mut rule = vec![to];
            rule.extend(OUT.port(DNS));
            rule.push(json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": ASKS}}));
            rule.push(json!({"dnat": {"addr": gateway, "port": port}}));
            commands.push(self.rule("ask", rule));
        }
        let ask = self.named("ask");
        commands.push(add(Verdicts::Shown.element(
            "asks",
            json!(self.bridge()),
            &ask,
        )));
        commands.extend(open(self.id.as_str(), &self.learned.left(Instant::now())));
        commands
    }

    /// Commands that put this in the place of what is in force of it, at one stroke.
    pub fn replace(&self, former: &Self) -> Vec<Value> {
        let mut commands = former.remove();
        commands.extend(self.install());
        commands
    }

    fn rules_out(&self) -> Vec<Vec<Value>> {
        let mut rules = self.rate("out", "saddr");
        rules.push(self.known());
        rules.extend(self.reached(&OUT));
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
            rules.push(marked([led_here, members], self.led_mark()));
        }
        rules.extend(self.reached(&IN));
        rules.push(vec![json!({ "drop": null })]);
        rules
    }

    /// Rules for what may be reached: opened on the way out; on the way in, answers of connections that were opened
    /// under another policy.
    fn reached(&self, way: &Way) -> Vec<Vec<Value>> {
        let mut rules = Vec::new();
        if self.policy.out == WayOut::None {
            return rules;
        }
        let before = match way.opens {
            true => Vec::new(),
            false => vec![under_way(), self.of_family()],
        };
        let open =
            |matches: Vec<Value>| marked(before.iter().cloned().chain(matches), self.out_mark());
        let shut = |matches: Vec<Value>| -> Vec<Value> {
            let verdict = if way.opens {
                refuse()
            } else {
                json!({ "drop": null })
            };
            matches.into_iter().chain([verdict]).collect()
        };
        rules.extend(self.policy.deny.iter().map(|deny| shut(way.end(*deny))));
        let networks = self.policy.allow.iter().filter_map(|it| match it {
            Destination::Network(network) => Some(*network),
            Destination::Host(_) => None,
        });
        let networks: Vec<_> = networks.collect();
        if way.opens {
            // Led elsewhere by another program of the host's: where to is what counts.
            let at = |to: &Allow| {
                let network = is(ip("daddr"), prefix(to.network(), to.prefix()));
                let port = to.port().into_iter().flat_map(|port| way.port(port));
                let matches = led_beyond().into_iter().chain([network]).chain(port);
                matches.collect::<Vec<_>>()
            };
            rules.extend(self.policy.deny.iter().map(|deny| shut(at(deny))));
            if self.policy.allow.is_empty() {
                let private = PRIVATE.map(|(network, length)| prefix(network, length));
                let private = is(ip("daddr"), json!({ "set": private }));
                rules.push(shut(led_beyond().into_iter().chain([private]).collect()));
            } else {
                rules.extend(networks.iter().map(|network| open(at(network))));
                rules.push(shut(led_beyond()));
            }
        }
        if self.forwarder.is_some() {
            let transport = json!({"meta": {"key": "l4proto"}});
            let port = json!({"payload": {"protocol": "th", "field": way.port}});
            let whole = json!({"concat": [asked_for(), transport, port]});
            let set = |name: &str| json!(format!("@{name}_{}", self.id));
            rules.push(open(vec![is(asked_for(), set("name"))]));
            rules.push(open(vec![is(whole, set("port"))]));
        } else if !self.resolvers.is_empty() {
            let resolvers = is(asked_for(), json!({ "set": self.resolvers }));
            rules.push(open([resolvers].into_iter().chain(way.port(DNS)).collect()));
        }
        if self.policy.allow.is_empty() {
            let private = PRIVATE.map(|(network, length)| prefix(network, length));
            rules.push(shut(vec![is(asked_for(), json!({ "set": private }))]));
            rules.push(open(Vec::new()));
        }
        rules.extend(networks.into_iter().map(|network| open(way.end(network))));
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

    /// Lets pass what belongs to a connection of this family under this policy.
    fn known(&self) -> Vec<Value> {
        let marks = json!({"set": [self.led_mark(), self.out_mark()]});
        let ours = is(json!({"ct": {"key": "mark"}}), marks);
        vec![under_way(), ours, accept()]
    }

    /// A connection of this family, under whichever policy.
    fn of_family(&self) -> Value {
        let family = json!({"&": [{"ct": {"key": "mark"}}, OF_FAMILY]});
        is(family, json!(self.led_mark()))
    }

    /// Mark of connections that were led here. Never 0, which is the mark of everything else.
    fn led_mark(&self) -> u32 {
        let hash = xxh3_64(self.id.as_str().as_bytes()) >> 32;
        let hash = u32::try_from(hash).unwrap_or(u32::MAX) & OF_FAMILY;
        hash.max(OF_POLICY + 1)
    }

    /// Mark of connections that were opened from here under this policy: the same in each daemon.
    fn out_mark(&self) -> u32 {
        let NetworkPolicy {
            out, allow, deny, ..
        } = &self.policy;
        let said = format!("{out:?} {allow:?} {deny:?}");
        let hash = xxh3_64(said.as_bytes()) % u64::from(OF_POLICY);
        self.led_mark() | (u32::try_from(hash).unwrap_or(0) + 1)
    }

    pub(crate) fn bridge(&self) -> String {
        Link::Bridge(self.id).name()
    }

    pub(crate) fn named(&self, what: &str) -> String {
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

    pub(crate) fn chain(&self, what: &str) -> Value {
        json!({"chain": {"family": "ip", "table": rules::TABLE, "name": self.named(what)}})
    }

    pub(crate) fn rule(&self, chain: &str, rule: Vec<Value>) -> Value {
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
}

/// An element of a map is added with what it says, and deleted without.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdicts {
    Shown,
    Omitted,
}

impl Verdicts {
    pub(crate) fn element(self, map: &str, key: Value, chain: &str) -> Value {
        let element = match self {
            Self::Shown => json!([key, {"goto": {"target": chain}}]),
            Self::Omitted => key,
        };
        json!({"element": {
            "family": "ip", "table": rules::TABLE, "name": map, "elem": [element]}})
    }
}

pub(crate) fn add(what: Value) -> Value {
    json!({ "add": what })
}

pub(crate) fn delete(what: Value) -> Value {
    json!({ "delete": what })
}

pub(crate) fn is(left: Value, right: Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

pub(crate) fn ip(field: &str) -> Value {
    json!({"payload": {"protocol": "ip", "field": field}})
}

fn prefix(network: Ipv4Addr, length: u8) -> Value {
    json!({"prefix": {"addr": network, "len": length}})
}

/// Address that a connection was opened to, in packets of both directions. An address of a VM's own counts as
/// that, whatever it leads to.
fn asked_for() -> Value {
    json!({"ct": {"key": "ip daddr", "dir": "original"}})
}

/// Matches packets of a connection that was given another destination, which is no VM of this host.
fn led_beyond() -> Vec<Value> {
    vec![
        json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}}),
        json!({"match": {
            "op": "!=", "left": {"meta": {"key": "oifname"}}, "right": ANY_BRIDGE}}),
    ]
}

/// Field of a packet that holds the other end's port of a connection that is opened from here.
struct Way {
    opens: bool,
    port: &'static str,
}

const OUT: Way = Way {
    opens: true,
    port: "dport",
};
const IN: Way = Way {
    opens: false,
    port: "sport",
};

impl Way {
    fn port(&self, number: u16) -> [Value; 2] {
        let transports = is(
            json!({"meta": {"key": "l4proto"}}),
            json!({"set": ["tcp", "udp"]}),
        );
        let port = json!({"payload": {"protocol": "th", "field": self.port}});
        [transports, is(port, json!(number))]
    }

    fn end(&self, allow: Allow) -> Vec<Value> {
        let network = prefix(allow.network(), allow.prefix());
        let mut matches = vec![is(asked_for(), network)];
        matches.extend(allow.port().into_iter().flat_map(|port| self.port(port)));
        matches
    }
}

/// Belongs to a connection.
fn under_way() -> Value {
    json!({"match": {
        "op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}})
}

/// Lets connections pass, and marks them.
fn marked(matches: impl IntoIterator<Item = Value>, mark: u32) -> Vec<Value> {
    let mark = json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": mark}});
    matches.into_iter().chain([mark, accept()]).collect()
}

fn accept() -> Value {
    json!({ "accept": null })
}

/// Said aloud, so that a program in the guest need not wait to learn it.
fn refuse() -> Value {
    json!({"reject": {"type": "icmp", "expr": "admin-prohibited"}})
}
