//! Clones of a snapshot, here and on other hosts.

use crate::{
    Host, HostError,
    clone::Origin,
    fork::{Assigned, Wanted, assign},
    micros,
    remote::PeerRequests,
};
use forkyard_network::Link;
use forkyard_snapshot::{Layout, Snapshot};
use forkyard_types::{ForkPhase, ForkReport, VmView};
use futures::future::join_all;
use std::path::Path;

/// Results of clones, by their numbers.
pub(crate) type Clones = Vec<(u16, Result<VmView, HostError>)>;

impl Host {
    /// Makes a shell for each clone wanted, over a snapshot that exists, and lets the
    /// network know their identity. `template` is where an empty slice over its disk may
    /// be for a moment. An error if there is no shell at all. Not cancel-safe.
    pub(crate) async fn shells_over(
        &self,
        layout: &Layout,
        template: &Path,
        wanted: &[Wanted],
    ) -> Result<Assigned, HostError> {
        let places: Vec<_> = wanted.iter().map(|wanted| wanted.member).collect();
        let made = self.snapshots.shells_over(layout, template, &places);
        let (shells, failed) = made.await?;
        let failed = failed.into_iter().map(HostError::from);
        Ok((assign(wanted, shells), failed.collect()))
    }

    /// Makes the network of a snapshot's family unless it is there: after a restart of the
    /// host it is not, nor where the family comes from another one. And joins it with that
    /// of the family on other hosts, as far as these are known.
    pub(crate) async fn need_network(&self, layout: &Layout) -> Result<(), HostError> {
        let family = layout.of.family;
        if !self.parts.network.has_link(Link::Bridge(family)) {
            let known = self.parts.store.networks()?.into_iter();
            let mut own = known.filter(|(known, _)| known.id == family);
            let policy = own.next().map(|(_, policy)| policy).unwrap_or_default();
            self.parts
                .network
                .create_family(family, layout.of.network, &policy, None)
                .await?;
        }
        self.sync_overlay(family).await
    }
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
                    None => Err(lost.unwrap_or_else(|| {
                        HostError::Broken("no shell was left for this clone".into())
                    })),
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
