//! The ends of a ticket's clones on other hosts: asked for where they are, and told of
//! where they are waited for.

use crate::{Host, HostError};
use forkyard_types::{PeerTicketRequest, PeerTicketResponse, TicketId, VmId};
use forkyard_vm::{VmError, lock};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Time another host is to wait for an end before it answers.
const WAIT: Duration = Duration::from_secs(5);
/// Time its answer may take after that.
const ANSWERS: Duration = Duration::from_secs(5);
/// After this it is asked again if it could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// A host that has been lost for so long does not come back in time: a daemon that is
/// replaced does.
const GRACE: Duration = Duration::from_secs(20);
/// Longest time that a request may have this host wait.
const MOST: Duration = Duration::from_secs(10);

impl Host {
    /// Hears of a ticket's clones on another host until all of them have ended, or
    /// they are not awaited.
    pub(crate) fn follow(&self, ticket: TicketId, name: String) {
        let host = self.handle();
        tokio::spawn(async move {
            let mut lost_since = None;
            loop {
                let Some(host) = host.upgrade() else { return };
                let (known, alive) = host.tickets(|tickets| tickets.at(ticket, &name));
                let over = alive == 0;
                let asked = PeerTicketRequest {
                    ticket,
                    known,
                    wait_ms: if over {
                        0
                    } else {
                        WAIT.as_millis().try_into().unwrap_or(0)
                    },
                    over,
                };
                match host.ask_of_ticket(&name, asked).await {
                    Ok(_) if over => return,
                    Ok(answer) => {
                        lost_since = None;
                        let ends = answer.known.then_some(&answer.ended[..]);
                        host.tickets(|tickets| tickets.reported(ticket, &name, ends));
                        host.lives.ended.notify_waiters();
                    }
                    // It forgets by itself.
                    Err(_) if over => return,
                    Err(_)
                        if host.is_lost(&name)
                            && lost_since.get_or_insert_with(Instant::now).elapsed() > GRACE =>
                    {
                        tracing::warn!(%ticket, peer = name, "its clones are lost with their host");
                        // It may have been cut off, and have them still.
                        let lost = host.tickets(|tickets| tickets.reported(ticket, &name, None));
                        host.schedule_removal(&name, &lost);
                        host.lives.ended.notify_waiters();
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(%ticket, peer = name, error = &error as &dyn std::error::Error, "not heard of");
                        drop(host);
                        sleep(AGAIN).await;
                    }
                }
            }
        });
    }

    async fn ask_of_ticket(
        &self,
        name: &str,
        request: PeerTicketRequest,
    ) -> Result<PeerTicketResponse, HostError> {
        let failed = |source| HostError::Peer {
            peer: name.to_owned(),
            source,
        };
        let peer = self.peer(name)?;
        match timeout(WAIT + ANSWERS, peer.ticket(request)).await {
            Ok(answer) => answer.map_err(failed),
            Err(_) => Err(failed(super::remote_clones::late(WAIT + ANSWERS))),
        }
    }

    /// Says how clones of another host's ticket ended that were made here. Waits until
    /// there is something new, as long as it is asked to. Cancel-safe.
    pub async fn tell_of_ticket(&self, request: PeerTicketRequest) -> PeerTicketResponse {
        let wait = Duration::from_millis(request.wait_ms.into()).min(MOST);
        let until = Instant::now() + wait;
        let known: BTreeSet<u16> = request.known.iter().copied().collect();
        loop {
            // Registered before looking, so that no end is missed between.
            let next = self.lives.ended.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            let account = self.tickets(|tickets| tickets.account(request.ticket));
            if request.over {
                self.tickets(|tickets| tickets.close(request.ticket));
            }
            let (is_known, ended) = match account {
                Some(ended) => (true, ended),
                None => (false, Vec::new()),
            };
            let news = ended.iter().any(|end| !known.contains(&end.number));
            if !is_known || news || request.over || timeout_at(until, next).await.is_err() {
                return PeerTicketResponse {
                    known: is_known,
                    ended,
                };
            }
        }
    }

    /// Ends a clone on another host, however often that has to be asked. Returns once it
    /// has gone, or its host is lost: then it is ended when that is back.
    pub(crate) async fn end_far(&self, vm: VmId) {
        loop {
            let at = self
                .peers
                .remote_clones
                .find(vm.as_str())
                .and_then(|view| view.host);
            match self.remove_elsewhere(vm.as_str()).await {
                Ok(_) | Err(HostError::Vm(VmError::Unknown { .. })) => return,
                Err(_) if { at.as_ref() }.is_some_and(|name| self.is_lost(name)) => {
                    self.schedule_removal(&at.unwrap_or_default(), &[vm]);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%vm, error = &error as &dyn std::error::Error, "not ended yet");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    fn is_lost(&self, name: &str) -> bool {
        self.neighbours().is_some_and(|all| all.is_lost(name))
    }

    /// Ends those clones of a fork that are no longer awaited.
    pub(super) fn remove_pending(&self, vms: Vec<VmId>) {
        for vm in vms {
            let mut pending_removal = lock(&self.peers.pending_removal);
            if !pending_removal.insert(vm) {
                continue;
            }
            let host = self.handle();
            tokio::spawn(async move {
                if let Some(host) = host.upgrade() {
                    host.end_far(vm).await;
                    lock(&host.peers.pending_removal).remove(&vm);
                }
            });
        }
    }
}
