//! Evacuation of a host: which VMs leave it, in which order, where to, and which will not make it.
//!
//! ```text
//! by priority, then the quickest first
//!     cannot move, or was refused everywhere ---------------> stays, with the reason
//!     no host with room is left ----------------------------> stays
//!     its end, after all that goes before, is past the limit -> stays; a smaller one may make it
//!     else --------------------------------------------------> moves to the host with most memory free
//! ```
//!
//! All that is sent shares one link, so a VM is there once all that goes before it and itself is
//! sent. Its caller plans anew whenever a move has ended, with the rate that was seen
//! and the time that is left: the first move of each plan is the next one to begin.
//!
//! Does no I/O and reads no clock.

use forkyard_types::{ByteCount, Room, VmId, VmName, VmState};
use serde::{Serialize, Serializer};
use std::{collections::BTreeSet, time::Duration};

/// Time that a move takes beside what is sent.
pub const FIXED: Duration = Duration::from_secs(2);

/// A VM of the host.
#[derive(Clone, Debug)]
pub struct HostedVm {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub name: VmName,
    /// Room that it takes.
    pub needs: Room,
    /// Bytes to be sent for it, at most.
    pub data: ByteCount,
    /// Lower ones leave first.
    pub rank: usize,
    /// State it is in.
    pub state: VmState,
    /// Hosts that did not take it, or to which it did not get.
    pub refused_by: BTreeSet<String>,
    /// Last of their refusals.
    pub refusal: Option<String>,
}

/// A host that VMs may move to.
#[derive(Clone, Debug)]
pub struct TargetHost {
    /// Name.
    pub name: String,
    /// Room that it has free; none if that is not known, which does not keep VMs from it.
    pub free: Option<Room>,
}

/// Bounds of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanBounds {
    /// Bytes a second that all moves together can send.
    pub rate: ByteCount,
    /// Bytes of moves under way that are not sent yet.
    pub under_way: ByteCount,
    /// Time within which VMs must be there; no limit if absent.
    pub within: Option<Duration>,
}

/// Moves, and VMs that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvacuationPlan {
    /// Moves, in the order in which they begin.
    pub moves: Vec<VmMove>,
    /// VMs that stay.
    pub stays: Vec<Stay>,
}

/// A VM that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmMove {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub vm: VmName,
    /// Destination.
    pub to: String,
    /// Bytes to be sent for it, at most.
    pub data: ByteCount,
    /// Seconds from now after which it is there.
    #[serde(rename = "there_s", serialize_with = "seconds")]
    pub there: Duration,
}

/// A VM that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stay {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub vm: VmName,
    /// Reason.
    #[serde(serialize_with = "text")]
    pub why: StayReason,
}

/// Reason why a VM stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StayReason {
    /// Only VMs that run, or are paused, can move.
    #[error("it is {0}: only VMs that run or are paused move")]
    State(VmState),
    /// No host is left that could take it.
    #[error("no host has room for its {} vCPUs and {} of memory", .0.vcpus, .0.memory)]
    NoRoom(Room),
    /// Too late: the deadline would pass.
    #[error("it would be there after {} s, which is too late", .0.as_secs())]
    Late(Duration),
    /// Tried, and failed.
    #[error("{0}")]
    Refused(String),
}

fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_secs())
}

fn text<S: Serializer>(why: &StayReason, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(why)
}

impl HostedVm {
    /// Reason why it stays, whatever the others do.
    fn kept(&self) -> Option<StayReason> {
        match self.state {
            VmState::Running | VmState::Paused => None,
            VmState::Starting
            | VmState::Warm
            | VmState::Stopped
            | VmState::Checkpoint
            | VmState::Ending => Some(StayReason::State(self.state)),
        }
    }
}

impl TargetHost {
    fn has_room_for(&self, needs: Room) -> bool {
        self.free
            .is_none_or(|free| free.vcpus >= needs.vcpus && free.memory >= needs.memory)
    }

    fn take(&mut self, needs: Room) {
        if let Some(free) = &mut self.free {
            free.vcpus = free.vcpus.saturating_sub(needs.vcpus);
            free.memory.0 = free.memory.0.saturating_sub(needs.memory.0);
        }
    }
}

/// Plans the evacuation of a host with these VMs to these hosts.
pub fn plan(
    mut guests: Vec<HostedVm>,
    mut targets: Vec<TargetHost>,
    bounds: PlanBounds,
) -> EvacuationPlan {
    guests.sort_by(|a, b| (a.rank, a.data, &a.name).cmp(&(b.rank, b.data, &b.name)));
    let mut plan = EvacuationPlan::default();
    let mut sent = bounds.under_way.0;
    // Of hosts of which nothing is known, those that have got fewest are next.
    let mut given = vec![0_u32; targets.len()];
    for guest in guests {
        let (id, vm) = (guest.id, guest.name.clone());
        let mut stay = |why| {
            plan.stays.push(Stay {
                id,
                vm: vm.clone(),
                why,
            })
        };
        if let Some(why) = guest.kept() {
            stay(why);
            continue;
        }
        let total = sent.saturating_add(guest.data.0);
        let there = sending(total, bounds.rate).saturating_add(FIXED);
        if bounds.within.is_some_and(|within| there > within) {
            stay(StayReason::Late(there));
            continue;
        }
        let may = |target: &TargetHost| {
            !guest.refused_by.contains(&target.name) && target.has_room_for(guest.needs)
        };
        let best = (0..targets.len())
            .filter(|at| may(&targets[*at]))
            .max_by_key(|at| {
                let free = targets[*at].free.map(|free| free.memory);
                (free, std::cmp::Reverse((given[*at], *at)))
            });
        let Some(at) = best else {
            let refused = guest.refusal.map(StayReason::Refused);
            stay(refused.unwrap_or(StayReason::NoRoom(guest.needs)));
            continue;
        };
        targets[at].take(guest.needs);
        given[at] += 1;
        sent = total;
        plan.moves.push(VmMove {
            id,
            vm,
            to: targets[at].name.clone(),
            data: guest.data,
            there,
        });
    }
    plan
}

fn sending(bytes: u64, rate: ByteCount) -> Duration {
    let seconds = bytes.div_ceil(rate.0.max(1));
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests;
