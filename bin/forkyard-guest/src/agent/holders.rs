//! Tickets and clones that end with a process: the tickets it asked for, and
//! the clone it is the work of.
//!
//! ```text
//! ticket granted --> held --joined or killed--> forgotten
//!                     +--- the process ends ---> owed: Kill, said until the host answers
//! ```
//!
//! A process is known by a descriptor, so another with its number is not taken for
//! it. A clone's copy of a process holds nothing: the agent forgets all of this when
//! it becomes a clone. So does an agent that dies; its tickets are then the VM's own.

use forkyard_agent_link::{Ask, CallId, Request};
use forkyard_sys_guest::process::Process;
use forkyard_types::{RequestId, TicketId};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::{collections::BTreeMap, io, os::unix::net::UnixStream};

/// A process that calls.
#[derive(Debug)]
pub struct Holder {
    pid: u32,
    process: Process,
}

impl Holder {
    /// The process that has this number now.
    pub fn of(pid: u32) -> io::Result<Self> {
        let process = Process::open(pid)?;
        Ok(Self { pid, process })
    }

    /// The process at the other end, which waits there for its answer.
    pub fn of_peer(stream: &UnixStream) -> io::Result<Self> {
        let pid = getsockopt(stream, PeerCredentials)?.pid();
        let pid = u32::try_from(pid).map_err(io::Error::other)?;
        Self::of(pid)
    }

    /// Blocks until it has ended.
    pub fn wait(&self) -> io::Result<()> {
        self.process.wait()
    }
}

/// Number of an entry: no process has it later.
pub type Entry = u64;

/// Requests to make of the host when processes end, and those being made.
#[derive(Debug, Default)]
pub struct Held {
    last: Entry,
    entries: BTreeMap<Entry, (u32, Vec<Ask>)>,
    owed: BTreeMap<CallId, Request>,
}

impl Held {
    /// Has this asked when the process ends. The number by which that is to be
    /// told, if nothing waits for that process yet.
    #[must_use]
    pub fn add(&mut self, holder: &Holder, ask: Ask) -> Option<Entry> {
        let mut entries = self.entries.values_mut();
        if let Some((_, asks)) = entries.find(|(pid, _)| *pid == holder.pid) {
            asks.push(ask);
            return None;
        }
        self.last += 1;
        self.entries.insert(self.last, (holder.pid, vec![ask]));
        Some(self.last)
    }

    /// Forgets a ticket that is used up.
    pub fn spent(&mut self, ticket: TicketId) {
        for (_, asks) in self.entries.values_mut() {
            asks.retain(|ask| *ask != Ask::Kill { ticket });
        }
    }

    /// Lists the requests to make now that a process has ended.
    pub fn ended(&mut self, entry: Entry) -> Vec<Ask> {
        self.entries.remove(&entry).unwrap_or_default().1
    }

    /// Notes that this is asked, and gives the request.
    pub fn owe(&mut self, call: CallId, ask: Ask) -> Request {
        let request = Request {
            id: RequestId::random(),
            ask,
        };
        self.owed.insert(call, request.clone());
        request
    }

    /// Notes that the host has answered.
    pub fn paid(&mut self, call: CallId) {
        self.owed.remove(&call);
    }

    /// Lists the requests that the host has not answered yet.
    pub fn owed(&self) -> Vec<(CallId, Request)> {
        let owed = self.owed.iter();
        owed.map(|(call, request)| (*call, request.clone()))
            .collect()
    }

    /// Forgets everything: this is a clone now, and holds nothing.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.owed.clear();
    }
}
