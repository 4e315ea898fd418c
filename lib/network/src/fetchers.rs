//! Programs of the host that fetch what others name: kept from the host itself.
//!
//! A name may lead to an address of this host, and a server may send a client on to one. So it is
//! packets that are looked at, by the user that such a program runs as: none of its own may go to
//! this host, to addresses that mean the link (clouds tell their machines' secrets at one), or to
//! what is closed to guests. Names are asked for all the same.

use crate::rules::TABLE;
use forkyard_types::OUTSIDE_FETCHER_UID;
use serde_json::{Value, json};

/// Commands that put the rules in force, after those of the routes.
pub(crate) fn enforce() -> Vec<Value> {
    let mut commands = lift().to_vec();
    let inet = json!({"family": "inet", "name": TABLE});
    commands.push(json!({"add": {"table": inet}}));
    commands.push(chain("inet"));
    commands.push(chain("ip"));
    let asks = |protocol: &str| json!({"match": {"op": "==", "left": {"payload": {"protocol": protocol, "field": "dport"}}, "right": 53}});
    for protocol in ["udp", "tcp"] {
        commands.push(rule("inet", &[asks(protocol), json!({"accept": null})]));
    }
    let here = json!({"match": {"op": "==", "left": {"fib": {"result": "type", "flags": ["daddr"]}}, "right": "local"}});
    commands.push(rule("inet", &[here, reject("icmpx")]));
    for (protocol, network, length) in [("ip", "169.254.0.0", 16), ("ip6", "fe80::", 10)] {
        let link = json!({"match": {"op": "==",
            "left": {"payload": {"protocol": protocol, "field": "daddr"}},
            "right": {"prefix": {"addr": network, "len": length}}}});
        commands.push(rule("inet", &[link, reject("icmpx")]));
    }
    // As the header has the protocol: of `meta l4proto` in a set of ranges Debian 12's nft makes
    // what Linux 6.12.117 refuses (a byte in another order).
    let closed = json!({"match": {"op": "==", "left": {"concat": [
        {"payload": {"protocol": "ip", "field": "daddr"}},
        {"payload": {"protocol": "ip", "field": "protocol"}},
        {"payload": {"protocol": "th", "field": "dport"}},
    ]}, "right": "@closed"}});
    commands.push(rule("ip", &[closed, reject("icmp")]));
    commands
}

/// Commands that remove them; what is not there is no error.
pub(crate) fn lift() -> [Value; 2] {
    let table = json!({"table": {"family": "inet", "name": TABLE}});
    [json!({"add": table}), json!({"delete": table})]
}

fn chain(family: &str) -> Value {
    json!({"add": {"chain": {"family": family, "table": TABLE, "name": "from_fetchers",
        "type": "filter", "hook": "output", "prio": 0, "policy": "accept"}}})
}

/// A rule for packets of those programs.
fn rule(family: &str, of: &[Value]) -> Value {
    let theirs = json!({"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": OUTSIDE_FETCHER_UID}});
    let all: Vec<_> = std::iter::once(theirs).chain(of.iter().cloned()).collect();
    json!({"add": {"rule": {"family": family, "table": TABLE, "chain": "from_fetchers", "expr": all}}})
}

fn reject(kind: &str) -> Value {
    json!({"reject": {"type": kind, "expr": "admin-prohibited"}})
}
