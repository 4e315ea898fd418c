//! The host's switch for passing packets on, `net.ipv4.ip_forward`: on for as
//! long as a family needs it, and then as it was.
//!
//! That we turned it on is noted in the kernel, next to it: an empty table that
//! goes with the network namespace and survives the daemon.

use crate::{NetworkError, nft::Nft};
use forkyard_types::FamilyId;
use nftables::{
    helper::get_current_ruleset_with_args,
    schema::{NfListObject, NfObject},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use tokio::sync::Mutex;

const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
const NOTE: &str = "forkyard_turned_ip_forward_on";

/// The switch, and the families that need it.
#[derive(Debug)]
pub(crate) struct Forwarding {
    nft: Nft,
    /// Locked while the switch is turned.
    needed: Mutex<Needed>,
}

#[derive(Debug, Default)]
struct Needed {
    by: BTreeSet<FamilyId>,
    /// We, or an earlier daemon, turned it on, as far as that was looked at.
    ours: bool,
}

impl Forwarding {
    pub fn new(nft: Nft) -> Self {
        Self {
            nft,
            needed: Mutex::default(),
        }
    }

    /// Sees to it that packets are passed on. Not cancel-safe: it may be noted as turned on by us and not be
    /// on.
    pub async fn need(&self, family: FamilyId) -> Result<(), NetworkError> {
        let mut needed = self.needed.lock().await;
        if !is_on()? {
            // Noted first: to turn off what was off already does no harm.
            self.nft.run(vec![json!({ "add": note() })]).await?;
            turn("1")?;
            needed.ours = true;
            tracing::info!("{SWITCH} was 0 and is 1 while a family needs it");
        } else if needed.by.is_empty() {
            needed.ours = self.is_ours().await?;
        }
        needed.by.insert(family);
        Ok(())
    }

    /// A family needs it no more. Not cancel-safe: packets may be passed on still, for no family.
    pub async fn release(&self, family: FamilyId) -> Result<(), NetworkError> {
        let mut needed = self.needed.lock().await;
        match needed.by.remove(&family) && needed.by.is_empty() {
            true => self.restore().await,
            false => Ok(()),
        }
    }

    /// Releases it for all, whatever an earlier daemon turned it on for. Not cancel-safe: packets may be
    /// passed on still. A second call sees to it.
    pub async fn release_all(&self) -> Result<(), NetworkError> {
        let mut needed = self.needed.lock().await;
        needed.by.clear();
        self.restore().await
    }

    /// Notes again that we turned it on, where the note was removed. If cancelled, it happens or not.
    pub async fn note_again(&self) -> Result<(), NetworkError> {
        let needed = self.needed.lock().await;
        match needed.ours {
            true => self.nft.run(vec![json!({ "add": note() })]).await,
            false => Ok(()),
        }
    }

    /// Tells whether it is on because this program turned it on. Cancel-safe.
    pub async fn is_ours(&self) -> Result<bool, NetworkError> {
        let _turn = self.nft.turn().await;
        let look = || get_current_ruleset_with_args(None::<&str>, ["list", "tables"]);
        let tables = match tokio::task::spawn_blocking(look).await {
            Ok(tables) => tables?,
            Err(broke) => std::panic::resume_unwind(broke.into_panic()),
        };
        let is_note = |object: &NfObject| matches!(object, NfObject::ListObject(NfListObject::Table(table)) if table.name == NOTE);
        Ok(tables.objects.iter().any(is_note))
    }

    async fn restore(&self) -> Result<(), NetworkError> {
        if self.is_ours().await? {
            turn("0")?;
            self.nft.run(vec![json!({ "delete": note() })]).await?;
        }
        Ok(())
    }
}

fn note() -> Value {
    json!({"table": {"family": "ip", "name": NOTE}})
}

fn is_on() -> Result<bool, NetworkError> {
    match fs::read_to_string(SWITCH) {
        Ok(text) => Ok(text.trim() != "0"),
        Err(source) => Err(failed(source)),
    }
}

fn turn(to: &str) -> Result<(), NetworkError> {
    fs::write(SWITCH, to).map_err(failed)
}

fn failed(source: std::io::Error) -> NetworkError {
    NetworkError::Setting {
        path: SWITCH.to_owned(),
        source,
    }
}
