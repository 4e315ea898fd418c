//! Leads from outside to a family's VMs: ports of the host, and addresses of the VMs' own. Its part of the
//! rules, a pure function of what its owner decided.
//!
//! ```text
//! chain to_ID            on to the VM
//! maps published, published_at    ports that lead there
//! map addresses          own addresses that lead there, whatever the protocol
//! map speaks_as          own address as which a VM opens connections: the first that it was given
//! set own                own addresses: the host itself answers nothing there
//! set leads_to           own addresses and what they lead to now: what another family's connection may
//!                        still reach
//! ```

use crate::family_rules::{Family, Verdicts, add, delete, ip, is};
use forkyard_types::{Publish, PublishedPort};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

impl Family {
    /// Commands that put its leads in force.
    pub(crate) fn lead(&self) -> Vec<Value> {
        if self.published.is_empty() {
            return Vec::new();
        }
        let mut commands = vec![add(self.chain("to"))];
        // Addresses first: a port of all of the host's is none of theirs.
        let (addresses, ports): (Vec<_>, Vec<_>) = self
            .leads()
            .partition(|(_, publish)| publish.own_address().is_some());
        let rules = addresses.into_iter().chain(ports);
        commands.extend(rules.map(|(to, publish)| self.rule("to", on_to(to, publish))));
        commands.extend(self.elements(Verdicts::Shown).map(add));
        commands
    }

    /// Commands that take them back.
    pub(crate) fn lead_no_more(&self) -> Vec<Value> {
        if self.published.is_empty() {
            return Vec::new();
        }
        let mut commands: Vec<_> = self.elements(Verdicts::Omitted).map(delete).collect();
        commands.push(delete(self.chain("to")));
        commands
    }

    /// Each lead, and the VM that it leads to.
    fn leads(&self) -> impl Iterator<Item = (Ipv4Addr, Publish)> {
        let published = self.published.iter();
        published.flat_map(|(to, leads)| leads.iter().map(|lead| (*to, *lead)))
    }

    fn elements(&self, verdicts: Verdicts) -> impl Iterator<Item = Value> {
        let to = self.named("to");
        let leads = self.leads().flat_map(move |(vm, publish)| match publish {
            Publish::Port(port) => {
                let (map, key) = match port.address {
                    Some(address) => (
                        "published_at",
                        json!({"concat": [address, port.transport, port.port]}),
                    ),
                    None => ("published", json!({"concat": [port.transport, port.port]})),
                };
                vec![verdicts.element(map, key, &to)]
            }
            Publish::Address(own) => vec![
                verdicts.element("addresses", json!(own.ip()), &to),
                element("own", json!(own.ip())),
                element("leads_to", json!({"concat": [own.ip(), vm]})),
            ],
        });
        let speaks = self.published.iter().filter_map(move |(to, leads)| {
            let own = leads.iter().find_map(|lead| lead.own_address())?;
            let key = json!({"concat": [self.bridge(), to]});
            Some(element(
                "speaks_as",
                match verdicts {
                    Verdicts::Shown => json!([key, own.ip()]),
                    Verdicts::Omitted => key,
                },
            ))
        });
        leads.chain(speaks)
    }
}

/// Has a packet go on to the VM.
fn on_to(to: Ipv4Addr, publish: Publish) -> Vec<Value> {
    match publish {
        Publish::Port(port) => to_port(to, port),
        Publish::Address(own) => vec![
            is(ip("daddr"), json!(own.ip())),
            json!({"dnat": {"addr": to}}),
        ],
    }
}

fn to_port(to: Ipv4Addr, publish: PublishedPort) -> Vec<Value> {
    let mut rule = Vec::new();
    if let Some(address) = publish.address {
        rule.push(is(ip("daddr"), json!(address)));
    }
    rule.push(is(
        json!({"meta": {"key": "l4proto"}}),
        json!(publish.transport),
    ));
    let port = json!({"payload": {"protocol": "th", "field": "dport"}});
    rule.push(is(port, json!(publish.port)));
    rule.push(json!({"dnat": {"addr": to, "port": publish.guest_port}}));
    rule
}

fn element(of: &str, element: Value) -> Value {
    json!({"element": {
        "family": "ip", "table": crate::rules::TABLE, "name": of, "elem": [element]}})
}
