//! Tickets, as the host's operators see them.

use super::{Entry, Fate, Phase, Promise, Seat, Tickets};
use forkyard_types::{SeatState, TicketId, TicketPhase, TicketSeat, TicketView, VmId};

impl Tickets {
    /// Every ticket that is not spent, in order of their ids.
    pub fn views(&self) -> Vec<TicketView> {
        let views = self.entries.iter().map(|(id, entry)| view(*id, entry));
        views.collect()
    }
}

pub(super) fn view(id: TicketId, entry: &Entry) -> TicketView {
    let (phase, clones) = match &entry.phase {
        Phase::Granted(grant) => (
            TicketPhase::Granted,
            grant.promises.iter().map(reserved).collect(),
        ),
        Phase::Cloned { seats, .. } => (
            TicketPhase::Cloned,
            seats
                .iter()
                .map(|(number, taken)| seat(*number, taken))
                .collect(),
        ),
        Phase::Killed(alive) => (
            TicketPhase::Killed,
            (1..)
                .zip(alive)
                .map(|(number, vm)| dying(number, *vm))
                .collect(),
        ),
    };
    TicketView {
        id,
        owner: entry.owner,
        kind: entry.kind,
        phase,
        clones,
    }
}

fn reserved(promise: &Promise) -> TicketSeat {
    TicketSeat {
        number: promise.clone.id,
        processes: promise.clone.processes,
        host: promise.host.clone(),
        state: SeatState::Reserved,
        vm: None,
        status: None,
    }
}

fn seat(number: u16, seat: &Seat) -> TicketSeat {
    let (state, vm, status) = match seat.fate {
        Fate::Awaited => (SeatState::Awaited, None, None),
        Fate::Unmade => (SeatState::Unmade, None, None),
        Fate::Alive(vm) => (SeatState::Alive, Some(vm), None),
        Fate::Ended(status) => (SeatState::Ended, None, status),
    };
    TicketSeat {
        number,
        processes: seat.processes,
        host: seat.host.clone(),
        state,
        vm,
        status,
    }
}

/// Describes the rest of a killed ticket: VMs, which have no numbers any more.
fn dying(number: u16, vm: VmId) -> TicketSeat {
    TicketSeat {
        number,
        processes: 1,
        host: None,
        state: SeatState::Alive,
        vm: Some(vm),
        status: None,
    }
}
