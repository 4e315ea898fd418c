//! VMs and what they live on, where whoever hands out room goes on counting it
//! while they live.
//!
//! ```text
//! clones made --settle--> kept --no VM left----------> given back
//!                           \---its allocation ended--> its VMs end, wherever they are
//! ```
//!
//! An ending is believed when it was seen twice: nobody's VM ends because a server
//! was asked at the wrong moment.

use crate::peers::Nodes;
use forkyard_cluster::{Cluster, ClusterError, Layout, Need, Reservation, Wish};
use forkyard_fork::{Host, HostError, Neighbours as _, Room};
use forkyard_types::{ApiError, CloneResult, NodeName, TicketId, VmId, VmView};
use std::{collections::BTreeSet, error::Error, time::Duration};
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// What was reserved for the clones of a fork.
#[derive(Debug, Default)]
pub struct Rooms(pub Vec<Reservation>);

/// What was reserved for the clones of a guest's ticket.
#[derive(Debug)]
struct TicketRoom(Reservation);

impl Room for TicketRoom {
    fn clones(&self) -> u16 {
        self.0.grant().count()
    }

    fn settle(self: Box<Self>, vms: BTreeSet<VmId>) {
        self.0.settle(vms);
    }
}

/// Room on this node for clones that a VM's guest asks for.
pub async fn room_here(
    cluster: &Cluster,
    vm: VmView,
    clones: u16,
) -> Result<Box<dyn Room>, ClusterError> {
    let here = Some(cluster.name().clone());
    let wish = Wish {
        user: cluster.owner(vm.family),
        count: clones,
        need: Need {
            vcpus: vm.vcpus,
            memory: vm.memory,
        },
        layout: Layout::Pack,
        near: here.clone(),
        only: here,
    };
    Ok(Box::new(TicketRoom(cluster.reserve(&wish).await?)))
}

/// What was seen at one look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Grants that have ended.
    ended: BTreeSet<TicketId>,
    /// Grants without a VM.
    empty: BTreeSet<TicketId>,
}

impl Rooms {
    /// These clones were made: each lives on what was reserved where it is. Room that
    /// none lives on is given back.
    pub fn settle(self, clones: &[CloneResult]) {
        for reservation in self.0 {
            let places = &reservation.grant().places;
            let is_on = |node: &NodeName| places.iter().any(|place| place.node == *node);
            let vms = clones.iter().filter_map(|clone| match clone {
                CloneResult::Vm(vm) => Some(vm),
                CloneResult::Error(_) => None,
            });
            let own = vms.filter(|vm| match vm.host.as_deref().map(str::parse) {
                None => is_on(reservation.holder()),
                Some(node) => node.is_ok_and(|node| is_on(&node)),
            });
            let own = own.map(|vm| vm.id).collect();
            reservation.settle(own);
        }
    }
}

/// Keeps VMs and what they live on together, for ever. Cancel-safe.
pub async fn keep(cluster: &Cluster, host: &Host) {
    let (mut before, mut failing) = (Seen::default(), false);
    loop {
        sleep(LOOK).await;
        if cluster.kept().is_empty() {
            continue;
        }
        match look(cluster, host).await {
            Ok(seen) => {
                act(cluster, host, &before, &seen).await;
                (before, failing) = (seen, false);
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(
                        error = &error as &dyn Error,
                        "not known whether what VMs live on has ended: they run on"
                    );
                }
                (before, failing) = (Seen::default(), true);
            }
        }
    }
}

async fn look(cluster: &Cluster, host: &Host) -> Result<Seen, ClusterError> {
    cluster.may_act()?;
    // Before anything else is looked at: what is kept was granted, and its VMs made.
    let kept = cluster.kept();
    let granted = cluster.granted().await?;
    let others = cluster.others_vms().await?.into_iter().map(|it| it.vm.id);
    let own = host.list().into_iter().map(|vm| vm.id);
    let alive: BTreeSet<VmId> = own.chain(others).collect();
    let mut seen = Seen::default();
    for (grant, vms) in kept {
        if vms.is_disjoint(&alive) {
            seen.empty.insert(grant);
        } else if !granted.contains(&grant) {
            seen.ended.insert(grant);
        }
    }
    Ok(seen)
}

async fn act(cluster: &Cluster, host: &Host, before: &Seen, seen: &Seen) {
    for grant in before.empty.intersection(&seen.empty) {
        cluster.give_back(*grant);
    }
    let kept = cluster.kept();
    for grant in before.ended.intersection(&seen.ended) {
        tracing::warn!(%grant, "its allocation has ended: its VMs end with it");
        for vm in kept.get(grant).into_iter().flatten() {
            // Those that could not be are tried again at the next look.
            if let Err(error) = end(cluster, host, *vm).await {
                tracing::warn!(%vm, %error, "it lives on without an allocation");
            }
        }
    }
}

/// Ends a VM, wherever it is; none is fine.
async fn end(cluster: &Cluster, host: &Host, vm: VmId) -> Result<(), ApiError> {
    match host.remove(vm.as_str()).await {
        Ok(_) => return Ok(()),
        Err(HostError::NoSuchVm { .. }) => {}
        Err(error) => return Err(error.to_api()),
    }
    let found = cluster.find(vm.as_str()).await;
    let Some(found) = found.map_err(|error| error.to_api())? else {
        return Ok(());
    };
    let peer = Nodes(cluster.clone()).find(found.node.as_str())?;
    peer.remove(vm).await.map(drop)
}
