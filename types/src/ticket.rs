//! Tickets as the host's operators see them.

use crate::{TicketId, TicketKind, VmId};
use serde::{Deserialize, Serialize};

/// `GET /v1/tickets`: a ticket that is not used up.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketView {
    /// Id of the ticket.
    pub id: TicketId,
    /// The VM it was granted to; one of another host, if clones of that one's ticket are
    /// made here.
    pub owner: VmId,
    /// Units that its numbers count.
    pub kind: TicketKind,
    /// Phase of the ticket.
    pub phase: TicketPhase,
    /// Clones of the ticket, in order of their numbers; of another host's
    /// ticket those made here.
    pub clones: Vec<TicketSeat>,
}

/// Phase of a ticket.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketPhase {
    /// Clones are reserved, and none is made yet.
    Granted,
    /// The ticket has been cloned with; its owner has not joined yet.
    Cloned,
    /// The clones of the ticket are being ended.
    Killed,
}

/// One clone of a ticket.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketSeat {
    /// Number of the clone, or of its first process.
    pub number: u16,
    /// Processes in it that have numbers.
    pub processes: u8,
    /// The host that makes it, by its name here; none: this one.
    pub host: Option<String>,
    /// State of the clone.
    pub state: SeatState,
    /// The VM it is, while it lives.
    pub vm: Option<VmId>,
    /// The status it gave when it ended, if it gave one.
    pub status: Option<u8>,
}

/// State of a ticket's clone.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatState {
    /// The clone is reserved.
    Reserved,
    /// The clone is being made.
    Awaited,
    /// The clone could not be made.
    Unmade,
    /// The clone runs.
    Alive,
    /// The clone has ended.
    Ended,
}

impl std::fmt::Display for TicketPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Granted => "granted",
            Self::Cloned => "cloned",
            Self::Killed => "killed",
        })
    }
}

impl std::fmt::Display for SeatState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Reserved => "reserved",
            Self::Awaited => "awaited",
            Self::Unmade => "unmade",
            Self::Alive => "alive",
            Self::Ended => "ended",
        })
    }
}
