//! Clones of a snapshot, here and on other hosts.

use super::{Assigned, Snapshot};
use crate::{Host, HostError, clone::Origin, fork::micros, remote::PeerRequests};
use forkyard_types::{ForkPhase, ForkReport, VmView};
use futures::future::join_all;

/// Results of clones, by their numbers.
pub(crate) type Clones = Vec<(u16, Result<VmView, HostError>)>;

impl Host {
    /// Makes clones of a snapshot, here of these shells and on other hosts as the requests
    /// say, all at once. Not cancel-safe.
    pub(crate) async fn instantiate(
        &self,
        snapshot: &Snapshot,
        shells: Assigned,
        peer_requests: Result<PeerRequests, HostError>,
        origin: Origin<'_>,
        report: &mut ForkReport,
    ) -> Clones {
        let published = micros(origin.begun.elapsed());
        let (mut clones, far) = tokio::join!(
            self.instantiate_here(snapshot, shells, origin, report),
            self.send(peer_requests, origin),
        );
        for (there, made) in far {
            report.extend(there);
            clones.extend(made);
        }
        report.load_us = report.running_us.saturating_sub(published);
        clones
    }

    /// Makes clones of a snapshot of all the shells, on this host and all at once, and says
    /// which failed. Not cancel-safe.
    pub(crate) async fn instantiate_here(
        &self,
        snapshot: &Snapshot,
        (assigned, mut failed): Assigned,
        origin: Origin<'_>,
        report: &mut ForkReport,
    ) -> Clones {
        let published = micros(origin.begun.elapsed());
        origin.going.reach(ForkPhase::Starting);
        let made = assigned.into_iter().map(|(wanted, shell)| {
            let lost = shell.is_none().then(|| failed.pop()).flatten();
            async move {
                let made = match shell {
                    Some(shell) => self.bring_up(snapshot, shell, wanted, origin).await,
                    None => {
                        Err(lost.unwrap_or_else(|| HostError::Invalid("no shell was left".into())))
                    }
                };
                origin.going.made(None, &made);
                (wanted.number, made)
            }
        });
        let mut clones = Vec::new();
        for (number, made) in join_all(made).await {
            let made = made.map(|clone| {
                report.running_us = report.running_us.max(micros(clone.running));
                report.ready_us = report.ready_us.max(micros(clone.ready));
                self.view_of(&clone.vm)
            });
            clones.push((number, made));
        }
        report.load_us = report.running_us.saturating_sub(published);
        clones
    }
}
