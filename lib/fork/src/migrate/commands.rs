//! Commands, copies and connections to ports that are under way in a VM while it moves: the host that
//! it leaves goes on serving their clients, over the host where it is
//! ([`Guest::follow`](forkyard_agent_link::Guest::follow)).

use crate::{Host, HostError};
use forkyard_agent_link::Visitors;
use forkyard_types::{ForkId, PeerLand};
use forkyard_vm::{RunningVm, lock};
use std::{collections::BTreeMap, io, sync::Mutex, time::Duration};
use tokio::time::sleep;

/// Time for which the host that was left may keep the commands of its clients waiting.
const CLAIMED_WITHIN: Duration = Duration::from_secs(120);

/// Commands of VMs that have come here, until their former hosts follow them.
#[derive(Debug, Default)]
pub(crate) struct Commands(Mutex<BTreeMap<ForkId, Visitors>>);

impl Host {
    /// Keeps the commands of a VM that has landed for the host that it came from.
    pub(super) fn keep_commands(&self, land: &PeerLand, commands: Visitors) {
        if land.commands.is_empty() {
            return;
        }
        let migration = land.migration;
        lock(&self.incoming.commands.0).insert(migration, commands);
        let host = self.handle();
        tokio::spawn(async move {
            sleep(CLAIMED_WITHIN).await;
            if let Some(host) = host.upgrade()
                && host.commands(migration).is_ok()
            {
                tracing::warn!(%migration, "commands hung up on: the host that the VM came from does not follow them");
            }
        });
    }

    /// Commands of a VM that has come here, for the host that it came from. Dropped, they are hung up
    /// on.
    pub fn commands(&self, migration: ForkId) -> Result<Visitors, HostError> {
        let kept = lock(&self.incoming.commands.0).remove(&migration);
        kept.ok_or_else(|| {
            HostError::Conflict(format!("no commands wait here for migration {migration}"))
        })
    }

    /// Goes on serving clients of commands in a VM that has moved.
    pub(super) fn follow_commands(&self, body: &RunningVm, (migration, name): (ForkId, &str)) {
        if body.guest.sessions().is_empty() {
            return;
        }
        let peer = self.peer(name);
        body.guest.follow(name, async move {
            let peer = peer.map_err(io::Error::other)?;
            let stream = peer.commands(migration).await;
            stream.map_err(|error| io::Error::other(error.message))
        });
    }
}
