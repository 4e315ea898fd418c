//! Changes of a VM, as events.
//!
//! Each is told where the state itself changes, and under the same lock, so that the order of
//! events is that of the changes.

use forkyard_events::Broadcast;
use forkyard_records::VmRecord;
use forkyard_types::{
    CheckpointMade, CheckpointRemoved, EventSubject, EventVm, Occurrence, VmChanged, VmCreated,
    VmRemoved, VmSilence, VmState,
};

/// The VM of a record, as events name it.
pub fn subject(record: &VmRecord) -> EventVm {
    EventVm {
        id: record.id,
        name: record.name.clone(),
        family: Some(record.family),
    }
}

/// A VM as the subject of an event, with the fork that it came from.
pub fn about(record: &VmRecord) -> EventSubject {
    EventSubject {
        vm: Some(subject(record)),
        fork: record.birth.and_then(|birth| birth.fork),
        ..EventSubject::default()
    }
}

/// A VM is listed from here on.
pub(crate) fn created(events: &Broadcast, record: &VmRecord) {
    let parent = record.birth.map(|birth| birth.parent);
    let what = match record.state {
        VmState::Checkpoint => Occurrence::CheckpointMade(CheckpointMade { parent }),
        VmState::Starting
        | VmState::Warm
        | VmState::Running
        | VmState::Paused
        | VmState::Stopped
        | VmState::Ending => Occurrence::VmCreated(VmCreated {
            state: record.state,
            parent,
            image: record.image.clone(),
        }),
    };
    events.publish(about(record), what);
}

/// A VM is in another state.
pub fn changed(events: &Broadcast, record: &VmRecord, from: VmState, to: VmState) {
    let change = VmChanged {
        from,
        to,
        failure: record.failure.clone(),
    };
    events.publish(about(record), Occurrence::VmChanged(change));
}

/// A VM does not answer, or answers again.
pub(crate) fn silent(events: &Broadcast, record: &VmRecord, why: Option<String>) {
    events.publish(about(record), Occurrence::VmSilence(VmSilence { why }));
}

/// A VM is listed no more.
pub(crate) fn removed(events: &Broadcast, record: &VmRecord) {
    let parent = record.birth.map(|birth| birth.parent);
    let what = match record.state {
        VmState::Checkpoint => Occurrence::CheckpointRemoved(CheckpointRemoved { parent }),
        VmState::Starting
        | VmState::Warm
        | VmState::Running
        | VmState::Paused
        | VmState::Stopped
        | VmState::Ending => Occurrence::VmRemoved(VmRemoved {
            state: record.state,
            failure: record.failure.clone(),
        }),
    };
    events.publish(about(record), what);
}
