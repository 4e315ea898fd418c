//! The processes of one clone that have numbers of their own.
//!
//! ```text
//! clone() -- fork, fork, … --> first: waits for the others, then ends the clone
//!                              others: end themselves
//! ```
//!
//! In a clone of the clone the processes are there, too, but their numbers were
//! another VM's.

use forkyard_agent_link::{AgentClient, CloneEnd};
use forkyard_types::Epoch;
use libc::pid_t;
use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Role of this process in its clone.
#[derive(Debug)]
struct Member {
    number: u16,
    /// The life of the VM in which it has that number.
    epoch: Option<Epoch>,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// The process called `clone()`, and forked these.
    First(Vec<(u16, Option<pid_t>)>),
    /// The process was forked.
    Other,
}

static MEMBER: Mutex<Option<Member>> = Mutex::new(None);

/// Forks until there are so many processes, numbered from `first` on; the
/// number of the one this returns in. One that cannot be forked is lost.
pub fn fork_all(client: &AgentClient, first: u16, processes: u8) -> u16 {
    if processes <= 1 {
        return first;
    }
    let epoch = client.epoch().ok();
    let mut others = Vec::new();
    for number in (first..).take(processes.into()).skip(1) {
        // SAFETY: the child goes on as fork(2) lets a program go on: with this
        // thread alone. The caller has to know that, as it asked for processes.
        match unsafe { libc::fork() } {
            0 => {
                *lock() = Some(Member {
                    number,
                    epoch,
                    role: Role::Other,
                });
                return number;
            }
            child => others.push((number, (child > 0).then_some(child))),
        }
    }
    *lock() = Some(Member {
        number: first,
        epoch,
        role: Role::First(others),
    });
    first
}

fn lock() -> MutexGuard<'static, Option<Member>> {
    MEMBER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of this process, if it has one of its own in this VM.
pub fn own_number(client: &AgentClient) -> Option<u16> {
    let member = lock();
    let member = member.as_ref()?;
    (member.epoch == client.epoch().ok()).then_some(member.number)
}

/// Ends this process, unless it is the clone's first: that waits for the
/// others, and says how they ended.
pub fn leave(status: u8) -> Vec<CloneEnd> {
    match lock().take().map(|member| member.role) {
        // Not through the program's own exit handlers: its VM goes.
        Some(Role::Other) => {
            // SAFETY: ends the process; takes no pointer.
            unsafe { libc::_exit(status.into()) }
        }
        Some(Role::First(others)) => others
            .into_iter()
            .map(|(id, pid)| CloneEnd {
                id,
                status: pid.and_then(wait_for),
            })
            .collect(),
        None => Vec::new(),
    }
}

/// The status it exited with; none if a signal ended it.
fn wait_for(process: pid_t) -> Option<u8> {
    let mut status = 0;
    // SAFETY: `status` may be written to; the process is a child of this one.
    while unsafe { libc::waitpid(process, &raw mut status, 0) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    libc::WIFEXITED(status)
        .then(|| u8::try_from(libc::WEXITSTATUS(status)).ok())
        .flatten()
}
