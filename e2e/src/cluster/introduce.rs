//! Hosts that know each other by a file.

use super::{API, Cluster, address};
use forkyard_types::TokenGrant;
use std::fs;

impl Cluster {
    /// Gives each a token of all the others.
    pub(super) fn introduce(&self) {
        let grants: Vec<TokenGrant> = self
            .hosts
            .iter()
            .map(|host| host.json(["token", "create", "peers"]))
            .collect();
        for host in &self.hosts {
            let entries = (0u8..).zip(&grants).map(|(number, grant)| {
                let remote = grant.remote.as_ref().expect("it listens");
                format!(
                    "[peer.h{number}]\nurl = \"https://{}:{API}\"\ntoken = \"{}\"\ntrust = \"{}\"\n",
                    address(number),
                    grant.token.0,
                    remote.fingerprint
                )
            });
            let text: String = entries.collect();
            fs::write(host.folder().join("peers.toml"), text).expect("written");
        }
    }
}
