//! Forks, migrations, tickets and images, as events. Those of a VM itself are told by [`forkyard_vm`].
//!
//! Each is told where the state itself changes, and under the same lock, so that the order of
//! events is that of the changes.

use forkyard_events::Broadcast;
use forkyard_records::VmRecord;
use forkyard_types::{
    EventSubject, EventVm, ForkBegun, ForkId, ForkOver, ForkPhase, ForkProgress, ForkReached,
    ImageId, MigrationOver, MigrationReached, Occurrence, TicketChanged, TicketId, TransferOver,
};
use forkyard_vm::events::{about, subject};

fn of_fork(parent: &EventVm, fork: ForkId) -> EventSubject {
    EventSubject {
        vm: Some(parent.clone()),
        fork: Some(fork),
        ..EventSubject::default()
    }
}

/// A fork has begun.
pub(crate) fn fork_begun(events: &Broadcast, parent: &EventVm, fork: &ForkProgress) {
    let begun = ForkBegun {
        clones: fork.hosts.iter().map(|host| u32::from(host.granted)).sum(),
        watch: fork.watch,
    };
    events.publish(of_fork(parent, fork.fork), Occurrence::ForkBegun(begun));
}

/// This host has come so far with its clones.
pub(crate) fn fork_reached(events: &Broadcast, parent: &EventVm, fork: ForkId, phase: ForkPhase) {
    let reached = ForkReached { phase };
    events.publish(of_fork(parent, fork), Occurrence::ForkReached(reached));
}

/// A fork is over.
pub(crate) fn fork_over(events: &Broadcast, parent: &EventVm, fork: &ForkProgress) {
    let mut why: Vec<String> = Vec::new();
    for reason in fork.hosts.iter().flat_map(|host| &host.why) {
        if !why.contains(reason) {
            why.push(reason.clone());
        }
    }
    let over = ForkOver {
        ready: fork.hosts.iter().map(|host| u32::from(host.ready)).sum(),
        failed: fork.hosts.iter().map(|host| u32::from(host.failed)).sum(),
        why,
    };
    events.publish(of_fork(parent, fork.fork), Occurrence::ForkOver(over));
}

/// A VM that leaves this host has come so far.
pub(crate) fn migration_reached(events: &Broadcast, vm: &VmRecord, reached: MigrationReached) {
    events.publish(about(vm), Occurrence::MigrationReached(reached));
}

/// A VM goes on at another host, or stays.
pub(crate) fn migration_over(events: &Broadcast, vm: &VmRecord, over: MigrationOver) {
    events.publish(about(vm), Occurrence::MigrationOver(over));
}

/// A ticket is at another stage.
pub(crate) fn ticket(
    events: &Broadcast,
    id: TicketId,
    owner: Option<&VmRecord>,
    change: TicketChanged,
) {
    let subject = EventSubject {
        vm: owner.map(subject),
        ticket: Some(id),
        ..EventSubject::default()
    };
    events.publish(subject, Occurrence::TicketChanged(change));
}

/// A page image has come from another host, or what was left of it is lost.
pub(crate) fn transfer(events: &Broadcast, pages: ImageId, over: TransferOver) {
    let subject = EventSubject {
        pages: Some(pages),
        ..EventSubject::default()
    };
    events.publish(subject, Occurrence::TransferOver(over));
}
