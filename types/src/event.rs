//! Events: what has happened on a host, in order.

use crate::{
    ByteCount, Cursor, FamilyId, ForkId, ForkPhase, ImageId, InvalidId, NodeName, NodeState,
    PageCount, RequestId, StreamId, TicketId, TicketKind, VmId, VmName, VmState,
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// `GET /v1/events`: something that happened on a host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEvent {
    /// Stream that the event is of: a new one after each start of the daemon.
    pub stream: StreamId,
    /// Position in the stream. The first event has 1, each other one more than the one before.
    pub seq: u64,
    /// Milliseconds since 1970, by the host's clock.
    pub time_ms: u64,
    /// Kind of the subject.
    pub kind: EventKind,
    /// Things that the event is about.
    pub subject: EventSubject,
    /// Occurrence, with its data.
    pub what: Occurrence,
}

impl HostEvent {
    /// Returns the position of this event, to go on from after a break.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            stream: self.stream,
            seq: self.seq,
        }
    }
}

/// Kind of an event's subject.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A VM that runs, or its record.
    Vm,
    /// A fork under way.
    Fork,
    /// A VM on its way to another host.
    Migration,
    /// A reservation of clones.
    Ticket,
    /// An instant of a VM that is kept on disk.
    Checkpoint,
    /// A guest image.
    Image,
    /// A node of the cluster.
    Node,
    /// A page image that comes from another host.
    Transfer,
    /// The stream itself.
    Stream,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Vm,
        Self::Fork,
        Self::Migration,
        Self::Ticket,
        Self::Checkpoint,
        Self::Image,
        Self::Node,
        Self::Transfer,
        Self::Stream,
    ];

    /// Returns the name of the kind, as JSON has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Fork => "fork",
            Self::Migration => "migration",
            Self::Ticket => "ticket",
            Self::Checkpoint => "checkpoint",
            Self::Image => "image",
            Self::Node => "node",
            Self::Transfer => "transfer",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EventKind {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let mut kinds = Self::ALL.into_iter();
        let found = kinds.find(|kind| kind.as_str() == text);
        found.ok_or_else(|| InvalidId {
            text: text.into(),
            what: "a kind of event: vm, fork, migration, ticket, checkpoint, image, node, transfer or stream",
        })
    }
}

/// Things that an event is about, as far as it is about them.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSubject {
    /// The VM; of a fork its parent, of a ticket its owner.
    pub vm: Option<EventVm>,
    /// The fork; of a clone the one that made it.
    pub fork: Option<ForkId>,
    /// The ticket.
    pub ticket: Option<TicketId>,
    /// The guest image, by name.
    pub image: Option<String>,
    /// The page image.
    pub pages: Option<ImageId>,
    /// The node.
    pub node: Option<NodeName>,
}

/// A VM, as an event names it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventVm {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub name: VmName,
    /// Family of the VM, if this host knows it.
    pub family: Option<FamilyId>,
}

/// Occurrences that events tell of, each with its data.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occurrence {
    /// A VM is listed from here on: it boots, or it is a clone that runs.
    VmCreated(VmCreated),
    /// A VM is in another state.
    VmChanged(VmChanged),
    /// A VM does not answer, or answers again.
    VmSilence(VmSilence),
    /// A VM is listed no more.
    VmRemoved(VmRemoved),
    /// A fork has begun.
    ForkBegun(ForkBegun),
    /// This host has come so far with the clones of a fork.
    ForkReached(ForkReached),
    /// A fork is over: each clone runs or has failed.
    ForkOver(ForkOver),
    /// A VM that leaves this host has come so far.
    MigrationReached(MigrationReached),
    /// A VM goes on at another host, or stays here.
    MigrationOver(MigrationOver),
    /// A ticket is at another stage.
    TicketChanged(TicketChanged),
    /// A checkpoint is on disk.
    CheckpointMade(CheckpointMade),
    /// A checkpoint is no more.
    CheckpointRemoved(CheckpointRemoved),
    /// A guest image was built, imported or removed.
    ImageChanged(ImageChanged),
    /// A node has joined the cluster, stands otherwise than before, or was removed.
    NodeChanged(NodeChanged),
    /// A page image has come from another host, or what was left of it is lost.
    TransferOver(TransferOver),
    /// Events before this one are not in the stream any more: the reader was too slow, or
    /// asked too late.
    Lagged(Lagged),
}

impl Occurrence {
    /// Returns the kind of its subject.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::VmCreated(_) | Self::VmChanged(_) | Self::VmSilence(_) | Self::VmRemoved(_) => {
                EventKind::Vm
            }
            Self::ForkBegun(_) | Self::ForkReached(_) | Self::ForkOver(_) => EventKind::Fork,
            Self::MigrationReached(_) | Self::MigrationOver(_) => EventKind::Migration,
            Self::TicketChanged(_) => EventKind::Ticket,
            Self::CheckpointMade(_) | Self::CheckpointRemoved(_) => EventKind::Checkpoint,
            Self::ImageChanged(_) => EventKind::Image,
            Self::NodeChanged(_) => EventKind::Node,
            Self::TransferOver(_) => EventKind::Transfer,
            Self::Lagged(_) => EventKind::Stream,
        }
    }
}

/// A VM is listed from here on.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmCreated {
    /// State of the VM: `starting` of one that boots, `running` of a clone.
    pub state: VmState,
    /// The VM that it is a clone of.
    pub parent: Option<VmId>,
    /// Guest image of the VM.
    pub image: String,
}

/// A VM is in another state.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmChanged {
    /// State before.
    pub from: VmState,
    /// State from here on.
    pub to: VmState,
    /// Reason of its end, if it failed.
    pub failure: Option<String>,
}

/// A VM does not answer, or answers again.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSilence {
    /// Reason of its silence; none: it answers again.
    pub why: Option<String>,
}

/// A VM is listed no more.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRemoved {
    /// Last state of the VM.
    pub state: VmState,
    /// Reason of its end, if it failed.
    pub failure: Option<String>,
}

/// A fork has begun.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkBegun {
    /// Clones to be made, on all hosts that this one has make them.
    pub clones: u32,
    /// Name that the client gave it, if it did.
    pub watch: Option<RequestId>,
}

/// This host has come so far with its clones.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkReached {
    /// Phase that it has reached.
    pub phase: ForkPhase,
}

/// A fork is over.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOver {
    /// Clones that run.
    pub ready: u32,
    /// Clones that were not made.
    pub failed: u32,
    /// Reasons for those, each once; at most eight.
    pub why: Vec<String>,
}

/// A VM that leaves this host has come so far.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationReached {
    /// Host that it moves to.
    pub to: String,
    /// Phase that it has reached.
    pub phase: MigrationPhase,
    /// Rounds that were sent.
    pub rounds: u32,
    /// Pages and blocks that the other host has not, once that is known.
    pub left: Option<PageCount>,
    /// Time that the guest would stand still if it were stopped now, in microseconds, once that is known.
    pub gap_us: Option<u64>,
}

/// Phase of a migration.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationPhase {
    /// A first copy of all it has is sent.
    Copying,
    /// Pages written meanwhile are sent, again and again.
    Converging,
    /// The guest stands still, and what is left is sent.
    HandingOver,
}

/// A VM goes on at another host, or stays here.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationOver {
    /// Host that it was to move to.
    pub to: String,
    /// Time until that host had answered that it goes on there, in microseconds; none: it stays here, or
    /// that is not known yet.
    pub gap_us: Option<u64>,
    /// Reason for which it stays, or for which nothing is known.
    pub why: Option<String>,
}

/// A ticket is at another stage.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketChanged {
    /// Stage of the ticket.
    pub stage: TicketStage,
    /// Units that its numbers count.
    pub ticket: TicketKind,
    /// Clones of it here: reserved, made or being ended.
    pub clones: u16,
}

/// Stage of a ticket.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketStage {
    /// Clones are reserved.
    Granted,
    /// Clones are being made, or run.
    Cloned,
    /// Clones are being ended.
    Killed,
    /// The ticket is used up, or was given back.
    Spent,
}

impl fmt::Display for TicketStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Granted => "granted",
            Self::Cloned => "cloned",
            Self::Killed => "killed",
            Self::Spent => "spent",
        })
    }
}

/// A checkpoint is on disk.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointMade {
    /// The VM that it is an instant of.
    pub parent: Option<VmId>,
}

/// A checkpoint is no more.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRemoved {
    /// The VM that it was an instant of.
    pub parent: Option<VmId>,
}

/// A guest image was built, imported or removed.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChanged {
    /// Bytes that it takes on disk; none: it was removed.
    pub built: Option<ByteCount>,
}

/// A node stands otherwise than before.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChanged {
    /// State before; none: it has joined.
    pub from: Option<NodeState>,
    /// State from here on; none: it was removed.
    pub to: Option<NodeState>,
}

/// A transfer is over.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferOver {
    /// Pages of the image.
    pub pages: PageCount,
    /// Pages that are lost: none if all have come.
    pub lost: PageCount,
}

/// Events that the reader has missed.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lagged {
    /// Number of events, of all kinds; none: not known, since they were of an earlier stream.
    pub missed: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read_by_the_name_that_json_has() {
        for kind in EventKind::ALL {
            let text = serde_json::to_string(&kind).expect("text");
            assert_eq!(text.trim_matches('"').parse(), Ok(kind));
        }
        assert!("vms".parse::<EventKind>().is_err());
    }

    #[test]
    fn an_event_is_flat_json_with_what_happened_by_name() {
        let event = HostEvent {
            stream: "22222222222".parse().expect("an id"),
            seq: 7,
            time_ms: 1,
            kind: EventKind::Stream,
            subject: EventSubject::default(),
            what: Occurrence::Lagged(Lagged { missed: Some(3) }),
        };
        let json = serde_json::to_value(&event).expect("json");
        assert_eq!(json["what"]["lagged"]["missed"], 3);
        assert_eq!(json["kind"], "stream");
        assert_eq!(event.cursor().to_string(), "22222222222-7");
    }
}
