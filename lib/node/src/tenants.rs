//! VMs and what they live on, where the source of room goes on counting it
//! while they live.
//!
//! ```text
//! clones made --settle--> kept --no VM left----------> given back
//!                           \---its allocation ended--> its VMs end, wherever they are
//! ```
//!
//! An ending is believed when it was seen twice: no VM ends because a server
//! was asked at the wrong moment.

use crate::peers::Nodes;
use forkyard_cluster::{CloneLayout, CloneNeed, Cluster, ClusterError, Reservation, Wish};
use forkyard_fork::{CloneRoom, Granted, Host, HostError, Lot, Neighbours as _, VmError};
use forkyard_types::{ApiError, CloneResult, ErrorKind, NodeName, TicketId, VmId, VmView};
use futures::future::{BoxFuture, FutureExt};
use std::{collections::BTreeSet, error::Error, sync::Arc, time::Duration};
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Interval while a request waits for a change.
const AGAIN: Duration = Duration::from_millis(300);

/// Room reserved for the clones of a fork.
#[derive(Debug, Default)]
pub struct ForkRooms(pub Vec<Reservation>);

/// Room reserved for the clones of a guest's ticket, as this node sees it.
#[derive(Debug)]
struct TicketRoom {
    cluster: Cluster,
    rooms: ForkRooms,
}

impl CloneRoom for TicketRoom {
    fn places(&self) -> Vec<Granted> {
        let mut places: Vec<Granted> = { self.rooms.0.iter() }
            .map(Reservation::grant)
            .flat_map(|grant| grant.places.iter().map(|place| (grant.need.vcpus, place)))
            .map(|(vcpus, place)| Granted {
                host: (place.node != *self.cluster.name()).then(|| place.node.to_string()),
                lot: Lot {
                    vcpus,
                    clones: place.clones,
                },
            })
            .collect();
        places.sort_by(|a, b| (&a.host, b.lot.vcpus).cmp(&(&b.host, a.lot.vcpus)));
        places
    }

    fn check(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async {
            for look in 0.. {
                let Ok(granted) = self.cluster.granted().await else {
                    return Ok(());
                };
                let ended = { self.rooms.0.iter() }
                    .map(|reservation| reservation.grant().id)
                    .find(|grant| !granted.contains(grant));
                match ended {
                    None => return Ok(()),
                    Some(_) if look == 0 => sleep(AGAIN).await,
                    Some(grant) => return Err(has_ended(grant)),
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn settle(self: Box<Self>, vms: &[VmView]) {
        self.rooms.settle_vms(vms.iter());
    }
}

fn has_ended(grant: TicketId) -> ApiError {
    ApiError {
        kind: ErrorKind::Conflict,
        message: format!(
            "the allocation {grant} has ended that the ticket's clones were to live on: it was \
             cancelled, or its time was up"
        ),
        hint: Some("request another ticket".into()),
    }
}

/// Room for clones that a VM's guest asks for, here first: of each size as many as
/// there is room for.
pub async fn room(
    cluster: &Cluster,
    vm: VmView,
    lots: Vec<Lot>,
) -> Result<Box<dyn CloneRoom>, ClusterError> {
    let (mut rooms, mut denied) = (ForkRooms::default(), None);
    for lot in lots {
        match cluster.reserve(&wish(cluster, &vm, lot, None)).await {
            Ok(reserved) => rooms.0.push(reserved),
            // There may be room for smaller ones.
            Err(error) => denied = denied.or(Some(error)),
        }
    }
    match denied.filter(|_| rooms.0.is_empty()) {
        Some(error) => Err(error),
        None => Ok(Box::new(TicketRoom {
            cluster: cluster.clone(),
            rooms,
        })),
    }
}

/// Reserves room on these nodes, as much as there is on each.
pub async fn room_at(
    cluster: &Cluster,
    vm: VmView,
    places: Vec<Granted>,
) -> Result<Box<dyn CloneRoom>, ClusterError> {
    let mut rooms = ForkRooms::default();
    for Granted { host, lot } in places {
        let node = match host {
            None => cluster.name().clone(),
            Some(name) => match name.parse() {
                Ok(node) => node,
                Err(_) => continue,
            },
        };
        let wish = wish(cluster, &vm, lot, Some(node));
        rooms.0.push(cluster.reserve(&wish).await?);
    }
    Ok(Box::new(TicketRoom {
        cluster: cluster.clone(),
        rooms,
    }))
}

fn wish(cluster: &Cluster, vm: &VmView, lot: Lot, only: Option<NodeName>) -> Wish {
    Wish {
        user: cluster.owner(vm.family),
        count: lot.clones,
        need: CloneNeed {
            vcpus: lot.vcpus,
            memory: vm.memory,
        },
        layout: CloneLayout::Pack,
        near: Some(cluster.name().clone()),
        only,
    }
}

/// State seen at one look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Grants that have ended.
    ended: BTreeSet<TicketId>,
    /// Grants without a VM.
    empty: BTreeSet<TicketId>,
}

impl ForkRooms {
    /// These clones were made: each lives on what was reserved where it is. Room that
    /// none lives on is given back.
    pub fn settle(self, clones: &[CloneResult]) {
        let vms = clones.iter().filter_map(|clone| match clone {
            CloneResult::Vm(vm) => Some(&**vm),
            CloneResult::Error(_) => None,
        });
        self.settle_vms(vms);
    }

    fn settle_vms<'a>(self, vms: impl Iterator<Item = &'a VmView> + Clone) {
        for reservation in self.0 {
            let grant = reservation.grant();
            let is_on = |node: &NodeName| grant.places.iter().any(|place| place.node == *node);
            let own = vms
                .clone()
                .filter(|vm| match vm.host.as_deref().map(str::parse) {
                    None => is_on(reservation.holder()),
                    Some(node) => node.is_ok_and(|node| is_on(&node)),
                });
            // Of one ticket there may be clones of two sizes on a node.
            let own = own.filter(|vm| vm.vcpus_taken() == grant.need.vcpus);
            let own = own.map(|vm| vm.id).collect();
            reservation.settle(own);
        }
    }
}

/// Keeps VMs and what they live on together, for ever. Cancel-safe.
pub async fn keep(cluster: &Cluster, host: &Arc<Host>) {
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

async fn look(cluster: &Cluster, host: &Arc<Host>) -> Result<Seen, ClusterError> {
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

async fn act(cluster: &Cluster, host: &Arc<Host>, before: &Seen, seen: &Seen) {
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
async fn end(cluster: &Cluster, host: &Arc<Host>, vm: VmId) -> Result<(), ApiError> {
    let remove = |host: Arc<Host>| async move { host.remove(vm.as_str()).await };
    match crate::node::to_its_end(host, remove).await {
        Ok(_) => return Ok(()),
        Err(HostError::Vm(VmError::Unknown { .. })) => {}
        Err(error) => return Err(error.to_api()),
    }
    let found = cluster.find(vm.as_str()).await;
    let Some(found) = found.map_err(|error| error.to_api())? else {
        return Ok(());
    };
    let peer = Nodes(cluster.clone()).find(found.node.as_str())?;
    peer.remove(vm).await.map(drop)
}
