//! Sets of what names stand for that a family may reach, as nftables has them: `name_ID` has addresses, `port_ID`
//! addresses with one port. Elements go by themselves.

use crate::{
    answers::Opened,
    family_rules::{add, delete},
    forwarder::OPEN,
    rules,
};
use serde_json::{Value, json};

/// Sets of what names stood for: all of an address, or one port.
pub(crate) fn opened_sets() -> [(&'static str, Value); 2] {
    let port = json!(["ipv4_addr", "inet_proto", "inet_service"]);
    [("name", json!("ipv4_addr")), ("port", port)]
}

pub(crate) fn opened_set(family: &str, name: &str, kind: &Value) -> Value {
    json!({"set": {
        "family": "ip", "table": rules::TABLE, "name": format!("{name}_{family}"), "type": kind,
        "size": 4 * OPEN, "flags": ["timeout"]}})
}

/// Commands that open addresses of a family for a time, also those that are open, for a shorter one.
pub(crate) fn open(family: &str, opened: &[Opened]) -> Vec<Value> {
    let mut commands = Vec::new();
    let mut element = |set: &str, key: &Value, time: u32| {
        let of = |value: Value| {
            json!({"element": {
                "family": "ip", "table": rules::TABLE, "name": format!("{set}_{family}"), "elem": [value]}})
        };
        let timed = of(json!({"elem": {"val": key, "timeout": time}}));
        // Added first: what is not there cannot be deleted, and what is there keeps its time.
        commands.extend([add(timed.clone()), delete(of(key.clone())), add(timed)]);
    };
    for it in opened {
        match it.host.port() {
            None => element("name", &json!(it.address), it.time),
            Some(port) => {
                for transport in ["tcp", "udp"] {
                    let key = json!({"concat": [it.address, transport, port]});
                    element("port", &key, it.time);
                }
            }
        }
    }
    commands
}
