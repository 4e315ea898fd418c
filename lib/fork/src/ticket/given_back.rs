//! Tickets that nothing uses: given back after their time, or by the operator.

use super::{Denied, Phase, Tickets};
use crate::{Host, HostError};
use forkyard_types::{TicketId, TicketView, VmId};
use std::time::Duration;

/// Time a ticket that no process holds is kept for a clone, in seconds.
const DETACHED: u64 = 60 * 60;

impl Tickets {
    /// Has a ticket given back at this time, in seconds since 1970, unless it is
    /// cloned with before.
    pub(super) fn limit(&mut self, id: TicketId, until: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.until.get_or_insert(until);
            self.changed.insert(id);
        }
    }

    /// The time at which a ticket is to be given back, if it is.
    pub(super) fn until(&self, id: TicketId) -> Option<u64> {
        let entry = self.entries.get(&id)?;
        entry
            .until
            .filter(|_| matches!(entry.phase, Phase::Granted(_)))
    }

    /// A ticket that was granted here, as operators see it, and its owner.
    pub(super) fn granted_here(&self, id: TicketId) -> Result<(TicketView, VmId), Denied> {
        let entry = self.entries.get(&id).ok_or(Denied::Unknown(id))?;
        match entry.foreign {
            None => Ok((super::view::view(id, entry), entry.owner)),
            Some(_) => Err(Denied::Foreign(id)),
        }
    }
}

impl Host {
    /// Ends a ticket's clones, gives back what it promised, and uses it up. The
    /// ticket as it was. Not cancel-safe: run it on a task of its own.
    pub async fn remove_ticket(&self, id: TicketId) -> Result<TicketView, HostError> {
        let (view, owner) = self.tickets(|tickets| tickets.granted_here(id))?;
        self.kill(owner, id).await?;
        Ok(view)
    }

    /// Gives a ticket that no process holds its time.
    pub(crate) fn detach_ticket(&self, id: TicketId) {
        self.tickets(|tickets| tickets.limit(id, crate::now() + DETACHED));
        self.give_back_in_time(id);
    }

    /// Gives a ticket back at its time, if it has one.
    pub(super) fn give_back_in_time(&self, id: TicketId) {
        let Some(until) = self.tickets(|tickets| tickets.until(id)) else {
            return;
        };
        let (host, left) = (self.handle(), until.saturating_sub(crate::now()));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(left)).await;
            let Some(host) = host.upgrade() else { return };
            // It may have been cloned with meanwhile, or be used up.
            if host.tickets(|tickets| tickets.until(id)).is_some()
                && let Err(error) = host.remove_ticket(id).await
            {
                tracing::warn!(ticket = %id, error = &error as &dyn std::error::Error, "not given back");
            }
        });
    }
}
