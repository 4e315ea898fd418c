//! Messages between host and agent.
//!
//! Every message from a guest is hostile input: the codec bounds its size and
//! the host checks its sense. Nothing here trusts either side.

use crate::{Answer, Growth, Request};
use forkyard_types::{
    ApiError, Epoch, ExitStatus, ForkId, Identity, KeptCommand, NotStarted, RequestId, WindowSize,
};
use serde::{Deserialize, Serialize};

/// Version of these messages, and of the devices of a machine that are saved with its memory; both
/// sides must have the same one.
pub const VERSION: u16 = 13;

/// Most bytes of a command's output in one message: whole pages, which a guest passes on uncopied.
pub const CHUNK: usize = 128 << 10;

/// Messages of a command's output that may be under way
/// before their reader asks for more: what a slow reader can make a peer hold.
pub const WINDOW: u16 = 16;

/// Most bytes of a command's input in one message.
pub const INPUT: usize = 64 << 10;

/// Likewise, of input. Together it is less than a guest's kernel has buffers for, 128 of 4 KiB: while some are
/// free, the kernel need not stop its processor to tell of each that it returns.
pub const INPUT_WINDOW: u16 = 6;

/// Number of a command's run, chosen by the host, unique while the link lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session(pub u32);

/// Number of a call by a guest program, chosen by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallId(pub u32);

/// From the host to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToGuest {
    /// First word on a connection to a guest that runs; answered by
    /// [`ToHost::Hello`]. Calls and commands of earlier connections are over.
    Hello {
        /// The host's [`VERSION`].
        version: u16,
    },
    /// Ask for the time, hold user code still, answer [`ToHost::Quiesced`], and then say nothing
    /// until [`ToGuest::Resume`] (the parent) or [`ToGuest::Identify`] (a
    /// clone): the VM is stopped while nothing is under way on the link.
    Quiesce {
        /// The fork it is for.
        fork: ForkId,
    },
    /// To the parent, or after a fork that failed: set the clock right and let user code go on.
    Resume,
    /// Become this, and take the host's time. Answered by [`ToHost::Identified`]; user code stays still
    /// until [`ToGuest::Release`].
    Identify(Box<Identify>),
    /// The VM's network port is open: run the hooks, then let user code go on.
    /// Answered by [`ToHost::Released`].
    Release,
    /// Start a command.
    Exec {
        /// The number it will be known by.
        session: Session,
        /// Command to run.
        command: Box<Command>,
    },
    /// Bytes for a command's standard input; none of them means end of file.
    ExecInput {
        /// The command.
        session: Session,
        /// The bytes, [`INPUT`] at most.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Room for this many more [`ToHost::ExecOutput`], on top of the [`WINDOW`]
    /// each command starts with.
    ExecMore {
        /// The command.
        session: Session,
        /// Number of chunks.
        chunks: u16,
    },
    /// The reader has gone: hang up on the command, discard what it
    /// still writes, and kill what is left of it and of all that it started.
    ExecDetach {
        /// The command.
        session: Session,
    },
    /// Send a command's first process this signal; SIGINT and SIGQUIT are for its process group,
    /// SIGKILL for all that it started.
    ExecSignal {
        /// The command.
        session: Session,
        /// Signal number.
        signal: u8,
    },
    /// Answer to a [`ToHost::Call`].
    Reply {
        /// Call that is meant.
        call: CallId,
        /// Outcome of the call.
        outcome: Result<Answer, ApiError>,
    },
    /// Show that the agent is there, by [`ToHost::AskTime`].
    Ping,
    /// Answer to a [`ToHost::AskTime`].
    Time {
        /// Number of the question.
        asked: u64,
        /// Wall clock of the host, in nanoseconds since 1970.
        host: u64,
    },
    /// This VM stood still without having been asked to, and goes on: its clock may be behind.
    StoodStill,
    /// A command's terminal has another size.
    ExecResize {
        /// The command.
        session: Session,
        /// The size.
        size: WindowSize,
    },
    /// Follow a command that is kept. Answered by [`ToHost::ExecStarted`], then as a command that
    /// was started under this number; or by [`ToHost::ExecEnd`] if there is none.
    Attach {
        /// The number it will be known by, too.
        session: Session,
        /// Process id of the command.
        pid: u32,
        /// True if its output, past and future, is wanted, not its end alone.
        output: bool,
    },
    /// Tell of all commands that are kept; answered by [`ToHost::Kept`].
    ListKept {
        /// The question's number.
        session: Session,
    },
    /// First word of the host that this VM has moved to, instead of [`ToGuest::Hello`], and answered
    /// as that: commands of the earlier connection go on under their numbers, and what they wait to
    /// say is said here.
    Moved {
        /// The host's [`VERSION`].
        version: u16,
    },
}

impl ToGuest {
    /// Bytes of data at its end, for a command.
    pub fn data(&self) -> usize {
        if let Self::ExecInput { data, .. } = self {
            data.len()
        } else {
            0
        }
    }

    /// Command that this is about, if it is about one.
    pub fn session(&self) -> Option<Session> {
        match self {
            Self::Exec { session, .. }
            | Self::ExecInput { session, .. }
            | Self::ExecMore { session, .. }
            | Self::ExecDetach { session }
            | Self::ExecSignal { session, .. }
            | Self::ExecResize { session, .. }
            | Self::Attach { session, .. }
            | Self::ListKept { session } => Some(*session),
            Self::Hello { .. }
            | Self::Quiesce { .. }
            | Self::Resume
            | Self::Identify(_)
            | Self::Release
            | Self::Reply { .. }
            | Self::Ping
            | Self::Time { .. }
            | Self::StoodStill
            | Self::Moved { .. } => None,
        }
    }
}

/// A command to be run. What it leaves open is as the image's entry point has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment added to that of the image.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub workdir: Option<String>,
    /// `USER` or `USER:GROUP`.
    pub user: Option<String>,
    /// Size of its terminal; none: it has pipes.
    pub tty: Option<WindowSize>,
    /// Keep it: it reads nothing, goes on without a host, and can be followed by its process id.
    /// Answered by [`ToHost::ExecStarted`] and nothing else.
    pub detach: bool,
    /// Keep it as well, with its input open, and follow it from the start: answered by
    /// [`ToHost::ExecStarted`], then as any other. [`ToGuest::ExecDetach`] ends the following alone.
    pub keep: bool,
    /// Label of one that is kept.
    pub tag: Option<String>,
}

impl Command {
    /// A command of our own, as root in the root folder, whatever the image says.
    pub fn of_root(argv: Vec<String>) -> Self {
        Self {
            argv,
            workdir: Some("/".to_owned()),
            user: Some("0".to_owned()),
            ..Self::default()
        }
    }
}

/// A new identity, and what `clone()` is to return in the VM that receives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identify {
    /// Identity that the VM must assume.
    pub identity: Identity,
    /// In a clone: how it came about. None for a VM that booted.
    pub cloned: Option<Cloned>,
    /// Paths of what it must not inherit, to be overwritten and removed.
    pub scrub: Vec<String>,
    /// Memory and vCPUs that the guest does not know of yet; none of most.
    pub growth: Option<Growth>,
}

/// Origin of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cloned {
    /// Number among the clones of this fork: 1 and up. If processes are
    /// numbered, that of its first. 0 of one that founds a family.
    pub id: u16,
    /// Processes that the caller forks into here, itself included.
    pub processes: u8,
    /// vCPUs to have online; none: as the parent had.
    pub vcpus: Option<u8>,
    /// The request of the parent's program that asked for the fork, or took the
    /// checkpoint, which now returns `id` in this clone. None if that was asked
    /// for from outside.
    pub request: Option<RequestId>,
}

/// From the agent to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToHost {
    /// The agent has just started: whatever was asked of an earlier one is lost.
    Started,
    /// Answer to [`ToGuest::Hello`].
    Hello {
        /// The agent's [`VERSION`].
        version: u16,
        /// Identity it last applied; none before the first.
        epoch: Option<Epoch>,
    },
    /// User code stands still and the link is silent, or why that failed.
    Quiesced {
        /// Fork that this answers.
        fork: ForkId,
        /// The reason, if user code could not be stopped; it then runs on.
        failed: Option<String>,
    },
    /// The identity has been applied, or why not.
    Identified {
        /// Epoch of the clone.
        epoch: Epoch,
        /// Problems, one line each; empty if all is well.
        problems: Vec<String>,
    },
    /// User code goes on.
    Released {
        /// Hooks that failed, and what else the user should know, one line
        /// each.
        problems: Vec<String>,
    },
    /// A command wrote something.
    ExecOutput {
        /// The command.
        session: Session,
        /// Destination.
        stream: Stream,
        /// Bytes of output: [`CHUNK`] at most, never none.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// A command ended, after all its output; or it could not be started.
    ExecEnd {
        /// The command.
        session: Session,
        /// Outcome of the command.
        outcome: Result<ExitStatus, NotStarted>,
    },
    /// Room for this many more [`ToGuest::ExecInput`], on top of the [`INPUT_WINDOW`]
    /// each command starts with.
    ExecMore {
        /// The command.
        session: Session,
        /// Number of chunks.
        chunks: u16,
    },
    /// A guest program calls the fork API; answered by [`ToGuest::Reply`].
    Call {
        /// Number of the call.
        call: CallId,
        /// Request of the program.
        request: Request,
    },
    /// Drops a call whose program has gone: its answer is not awaited.
    Forget {
        /// Number of the call.
        call: CallId,
    },
    /// Asks for the host's time; answered by [`ToGuest::Time`] at once, also while the guest
    /// holds still.
    AskTime {
        /// The question's number: time of a clock of the guest's that is never set.
        asked: u64,
    },
    /// A command that is kept runs.
    ExecStarted {
        /// The command; its number is free again if it was started to be detached.
        session: Session,
        /// Process id of the program.
        pid: u32,
    },
    /// The commands that are kept.
    Kept {
        /// The question's number.
        session: Session,
        /// They, the oldest first.
        commands: Vec<KeptCommand>,
    },
    /// Programs wait for memory, or do not any more. May follow a [`ToGuest::Ping`].
    MemoryWait {
        /// Percent of the last ten seconds in which all of them did; 0: it is over.
        percent: u8,
    },
}

impl ToHost {
    /// Bytes of data at its end, of a command.
    pub fn data(&self) -> usize {
        if let Self::ExecOutput { data, .. } = self {
            data.len()
        } else {
            0
        }
    }

    /// Command that this is about, if it is about one.
    pub fn session(&self) -> Option<Session> {
        match self {
            Self::ExecOutput { session, .. }
            | Self::ExecEnd { session, .. }
            | Self::ExecMore { session, .. }
            | Self::ExecStarted { session, .. }
            | Self::Kept { session, .. } => Some(*session),
            Self::Started
            | Self::Hello { .. }
            | Self::Quiesced { .. }
            | Self::Identified { .. }
            | Self::Released { .. }
            | Self::Call { .. }
            | Self::Forget { .. }
            | Self::AskTime { .. }
            | Self::MemoryWait { .. } => None,
        }
    }
}

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}
