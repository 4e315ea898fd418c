//! Calls of guest programs, as the agent passes them on to the host, and their answers.

use crate::Frames;
use forkyard_types::{Epoch, RequestId, Ticket, TicketId, TicketKind, VmId};
use serde::{Deserialize, Serialize};

/// The fork API as guest programs call it (SnowFlock, Table I).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Reserve clones; answered by [`Answer::Ticket`]. When the calling process
    /// ends, the agent asks [`Ask::Kill`] in its place.
    RequestTicket {
        /// Number of clones; fewer may be granted.
        count: u16,
        /// Of what.
        kind: TicketKind,
    },
    /// Clone this VM. The parent is answered [`Answer::Cloned`]; in a clone
    /// the agent itself answers with the clone's number.
    Clone {
        /// Ticket that was granted.
        ticket: TicketId,
    },
    /// End this clone; it is never answered, for the VM goes.
    Exit {
        /// Status for the parent's join.
        status: u8,
        /// Ends of its other processes, if processes are numbered.
        others: Vec<CloneEnd>,
    },
    /// Wait until every clone of the ticket has ended, and use the ticket up.
    /// Answered by [`Answer::Joined`].
    Join {
        /// Ticket that is meant.
        ticket: TicketId,
    },
    /// End every clone of the ticket now, and use the ticket up.
    /// Answered by [`Answer::Killed`].
    Kill {
        /// Ticket that is meant.
        ticket: TicketId,
    },
    /// Wait until this VM is a clone, by whatever request. The agent
    /// itself answers, [`Answer::Forked`] in the clone; a parent goes on waiting.
    WaitFork {
        /// Epoch of the caller when it began to wait.
        since: Epoch,
    },
    /// Keep this instant of this VM. The caller is answered
    /// [`Answer::Checkpointed`]; in each clone made of it, whenever that is, the
    /// agent itself answers [`Answer::Cloned`] with the clone's number.
    Checkpoint,
    /// Clone a checkpoint that a guest of the family took; the clones belong to
    /// the ticket. Answered [`Answer::Cloned`], in the caller alone.
    CreateClones {
        /// Checkpoint that is meant.
        checkpoint: VmId,
        /// Ticket that was granted.
        ticket: TicketId,
    },
    /// Forget a checkpoint; clones it has live on. Answered [`Answer::Dropped`].
    DropCheckpoint {
        /// Checkpoint that is meant.
        checkpoint: VmId,
    },
    /// Each clone will read other pages of this memory of the caller's. The
    /// agent, which knows the caller, asks [`Ask::DisjointFrames`] in its
    /// place. Answered [`Answer::Marked`].
    Disjoint {
        /// Address of its first byte, as the caller has it.
        address: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Each clone will read others of these page frames: only the hosts that
    /// ask for one of them are to get it. By the agent alone; [`MOST_FRAMES`] at
    /// most. Answered [`Answer::Marked`].
    ///
    /// [`MOST_FRAMES`]: crate::MOST_FRAMES
    DisjointFrames(Vec<Frames>),
    /// Reserve clones for no process in particular: the ticket outlives the
    /// caller, and is given back if it is not cloned with in time. Answered by
    /// [`Answer::Ticket`].
    RequestDetached {
        /// Number of clones; fewer may be granted.
        count: u16,
        /// Of what.
        kind: TicketKind,
    },
    /// End this clone, with this status, when the calling process ends. The
    /// agent itself answers, [`Answer::Tied`].
    EndWithMe {
        /// Status for the parent's join.
        status: u8,
    },
}

/// A call, and what tells it from others that ask the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the caller: the same again after an answer was lost has the
    /// same outcome, and nothing is done twice.
    pub id: RequestId,
    /// Question to the host.
    pub ask: Ask,
}

/// Answer to a guest program's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The clones granted.
    Ticket(Ticket),
    /// `clone()` returned: 0 in the parent, the clone's number in a clone.
    Cloned {
        /// That number.
        id: u16,
        /// In a clone: processes to fork into, the caller included.
        processes: u8,
        /// In the parent: clones that could not be made, by number, and why.
        failed: Vec<(u16, String)>,
    },
    /// Ends of all clones, in order of their numbers.
    Joined(Vec<CloneEnd>),
    /// They are gone.
    Killed,
    /// This VM is now a clone of the one that waited.
    Forked {
        /// Number among the clones of that fork.
        id: u16,
    },
    /// The instant is kept.
    Checkpointed {
        /// Under this name; it is listed as a VM that never runs.
        checkpoint: VmId,
    },
    /// The checkpoint is gone.
    Dropped,
    /// The memory is marked as disjoint access.
    Marked,
    /// This clone ends with the caller.
    Tied,
}

/// End of one clone, or of one process of a hierarchical ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneEnd {
    /// Number in the ticket.
    pub id: u16,
    /// The status it gave to `exit`; none if it was never made, died or was killed.
    pub status: Option<u8>,
}
