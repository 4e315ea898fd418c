//! Tickets in the records: what the next daemon needs to go on with them.
//!
//! What a dead daemon had not finished is settled here, once the VMs it left
//! are known: clones that were not made never will be, those that ran are
//! waited for again, and those to be killed are.

use super::{Entry, Fate, Phase, Tickets};
use crate::{Host, HostError, events};
use forkyard_types::{TicketChanged, TicketId, TicketStage, VmId};
use forkyard_vm::{Vm, lock};

/// Work that an earlier daemon left to do for a ticket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Take the places of what was promised to this VM again.
    Promised(TicketId, VmId),
    /// End these VMs, then spend the ticket.
    Kill(TicketId, Vec<VmId>),
    /// Hear of the clones that this host has.
    Follow(TicketId, String),
}

impl Tickets {
    /// Those recorded. What cannot be read is left out.
    pub(crate) fn load(recorded: Vec<(TicketId, String)>) -> Self {
        let mut tickets = Self::default();
        for (id, entry) in recorded {
            match serde_json::from_str::<Entry>(&entry) {
                Ok(entry) => {
                    // What an earlier daemon told of is no news.
                    tickets.told.insert(id, (entry.owner, stage(&entry)));
                    tickets.entries.insert(id, entry);
                }
                Err(error) => {
                    tracing::error!(ticket = %id, %error, "forgotten");
                    tickets.changed.insert(id);
                }
            }
        }
        tickets
    }

    /// The entries that changed since this was last asked, as they are to be
    /// recorded; none for one that is spent.
    pub(crate) fn changes(&mut self) -> Vec<(TicketId, Option<String>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let text = |id| {
            let entry = self.entries.get(&id)?;
            // Numbers and names alone: there is nothing in it that could not be.
            serde_json::to_string(entry).ok()
        };
        changed.map(|id| (id, text(id))).collect()
    }

    /// Stages that tickets have come to since this was last asked.
    fn news(&mut self) -> Vec<(TicketId, VmId, TicketChanged)> {
        let mut news = Vec::new();
        for id in &self.changed {
            let told = self.told.get(id).copied();
            let now = match (self.entries.get(id), told) {
                (Some(entry), _) => (entry.owner, stage(entry)),
                (None, Some((owner, last))) => {
                    let stage = TicketStage::Spent;
                    (owner, TicketChanged { stage, ..last })
                }
                (None, None) => continue,
            };
            if told.is_none_or(|(_, last)| last.stage != now.1.stage) {
                news.push((*id, now.0, now.1));
            }
            match now.1.stage {
                TicketStage::Spent => drop(self.told.remove(id)),
                TicketStage::Granted | TicketStage::Cloned | TicketStage::Killed => {
                    self.told.insert(*id, now);
                }
            }
        }
        news
    }

    /// Settles what a dead daemon had under way; `exists` says which VMs there
    /// still are.
    pub(crate) fn settle(&mut self, exists: impl Fn(VmId) -> bool) -> Vec<Left> {
        let mut left = Vec::new();
        let orphans = self.entries.extract_if(.., |_, entry| {
            entry.foreign.is_none()
                && !exists(entry.owner)
                && !matches!(entry.phase, Phase::Killed(_))
                && entry.end_with_its_process().is_empty()
        });
        self.changed.extend(orphans.map(|(id, _)| id));
        for (id, entry) in &mut self.entries {
            match &mut entry.phase {
                Phase::Granted(_) => left.push(Left::Promised(*id, entry.owner)),
                Phase::Killed(vms) => left.push(Left::Kill(*id, vms.clone())),
                Phase::Cloned { seats, .. } => {
                    for seat in seats.values_mut() {
                        let here = seat.host.is_none();
                        seat.fate = match seat.fate {
                            Fate::Awaited => Fate::Unmade,
                            Fate::Alive(vm) if here && !exists(vm) => Fate::Unmade,
                            fate @ (Fate::Unmade | Fate::Alive(_) | Fate::Ended(_)) => fate,
                        };
                    }
                    let hosts = super::far::followed(seats);
                    left.extend(hosts.into_iter().map(|host| Left::Follow(*id, host)));
                }
            }
            self.changed.insert(*id);
        }
        left
    }

    /// The promises of a ticket that has not been cloned with.
    fn promised(&mut self, id: TicketId) -> Option<&mut super::Grant> {
        match &mut self.entries.get_mut(&id)?.phase {
            Phase::Granted(grant) => Some(grant),
            Phase::Cloned { .. } | Phase::Killed(_) => None,
        }
    }
}

/// Stage of a ticket that is not spent.
fn stage(entry: &Entry) -> TicketChanged {
    let (stage, clones) = match &entry.phase {
        Phase::Granted(grant) => (TicketStage::Granted, grant.promises.len()),
        Phase::Cloned { seats, .. } => (TicketStage::Cloned, seats.len()),
        Phase::Killed(alive) => (TicketStage::Killed, alive.len()),
    };
    TicketChanged {
        stage,
        ticket: entry.kind,
        clones: u16::try_from(clones).unwrap_or(u16::MAX),
    }
}

impl Host {
    /// Does something to the tickets. What changed is recorded before any caller
    /// acts on it; if that fails, the ticket would not outlive this daemon.
    pub(crate) fn tickets<T>(&self, act: impl FnOnce(&mut Tickets) -> T) -> T {
        let mut tickets = lock(&self.families.tickets);
        let done = act(&mut tickets);
        let news = tickets.news();
        for (id, entry) in tickets.changes() {
            let recorded = match entry {
                Some(entry) => self.parts.store.put_ticket(id, &entry),
                None => self.parts.store.remove_ticket(id),
            };
            if let Err(error) = recorded {
                tracing::error!(ticket = %id, error = &error as &dyn std::error::Error, "not recorded");
            }
        }
        for (id, owner, change) in news {
            // One of another host has a VM there.
            let owner = self.parts.registry().get(owner).map(|vm| vm.record());
            events::ticket(&self.parts.events, id, owner.as_ref(), change);
        }
        done
    }

    /// Reads the tickets an earlier daemon left.
    pub(crate) fn load_tickets(&self) -> Result<(), HostError> {
        *lock(&self.families.tickets) = Tickets::load(self.parts.store.tickets()?);
        Ok(())
    }

    /// Goes on with those tickets, now that the VMs are known.
    pub(crate) async fn settle_tickets(&self) -> Result<(), HostError> {
        let left =
            self.tickets(|tickets| tickets.settle(|vm| self.parts.registry().get(vm).is_some()));
        for left in left {
            match left {
                Left::Promised(id, owner) => {
                    let owner = self.vm(owner.as_str())?;
                    let members = |grant: &mut super::Grant| {
                        grant
                            .promises
                            .iter()
                            .map(|promise| promise.member)
                            .collect::<Vec<_>>()
                    };
                    let members = self.tickets(|tickets| tickets.promised(id).map(members));
                    let places = self.places_of(owner.record().family, members.unwrap_or_default());
                    self.tickets(|tickets| {
                        if let Some(grant) = tickets.promised(id) {
                            grant.places = Some(places);
                        }
                    });
                    self.give_back_in_time(id);
                }
                // Those on other hosts may take long to be ended.
                Left::Kill(id, vms) => {
                    let is_here = |vm: &VmId| self.parts.registry().get(*vm).is_some();
                    let (here, far): (Vec<_>, Vec<_>) = vms.into_iter().partition(is_here);
                    self.end_all(here).await;
                    let host = self.handle();
                    let rest = async move {
                        if let Some(host) = host.upgrade() {
                            host.end_all(far).await;
                            host.tickets(|tickets| tickets.spend(id));
                        }
                    };
                    tokio::spawn(rest);
                }
                Left::Follow(id, peer) => self.follow(id, peer),
            }
        }
        // A ticket's clone is no more once it has stopped.
        let stopped = |vm: &std::sync::Arc<Vm>| vm.ephemeral && !vm.is_running();
        let all = self.parts.registry().all();
        self.end_all(
            all.iter()
                .filter(|vm| stopped(vm))
                .map(|vm| vm.id)
                .collect(),
        )
        .await;
        Ok(())
    }
}
