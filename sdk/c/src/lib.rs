//! libforkyard: the fork API for C, in the guest.
//!
//! A thin face over [`forkyard_agent_link::AgentClient`]: it turns results into
//! return codes and keeps the reason of a thread's last failure.
#![allow(unsafe_code)] // a C interface takes pointers; each is checked for null

mod checkpoint;
mod disjoint;
mod generator;
mod team;

use forkyard_agent_link::{AgentClient, CallError, CloneEnd, Cloning};
use forkyard_types::{ErrorKind, Ticket as Granted, TicketId, TicketKind};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{CString, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

/// Reason why a call failed: what calls return, negated in none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum ErrorCode {
    /// The request makes no sense.
    FORKYARD_INVALID = -1,
    /// No such ticket or checkpoint, or it is used up.
    FORKYARD_NOT_FOUND = -2,
    /// Not possible in this state, or in a clone.
    FORKYARD_CONFLICT = -3,
    /// A limit is reached.
    FORKYARD_EXHAUSTED = -4,
    /// The agent cannot be reached or did not answer as it should.
    FORKYARD_AGENT = -5,
    /// The operation took longer than allowed.
    FORKYARD_TIMEOUT = -6,
    /// The host failed.
    FORKYARD_HOST = -7,
}

/// A reservation of clones, and after a join how each of them ended.
#[derive(Debug)]
pub struct Ticket {
    id: TicketId,
    text: CString,
    clones: Vec<Place>,
    /// Ends of numbers that are no clone's own, in hierarchical tickets.
    others: BTreeMap<u16, c_int>,
    /// Process that asked for it: a child's copy is not the ticket.
    holder: u32,
    /// Cloned with, or used up: freeing it gives nothing back.
    used: AtomicBool,
}

impl Ticket {
    fn use_up(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Clones this VM. Marked first, for the clones to have the mark, too.
    fn clone_with(&self, client: &AgentClient) -> Result<Cloning, CallError> {
        self.use_up();
        let cloned = client.clone_vm(self.id);
        cloned.inspect_err(|_| self.used.store(false, Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Place {
    id: u16,
    vcpus: u8,
    processes: u8,
    ip: CString,
    status: c_int,
}

impl Place {
    fn numbers(&self) -> std::ops::Range<u16> {
        self.id..self.id.saturating_add(self.processes.into())
    }
}

/// Status that `forkyard_ticket_status` gives of a clone that never reported
/// its end.
const LOST: c_int = -1;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn fail(code: ErrorCode, text: String) -> c_int {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    ERROR.set(text);
    code as c_int
}

fn failed(error: &CallError) -> c_int {
    let code = match error.kind() {
        ErrorKind::Invalid => ErrorCode::FORKYARD_INVALID,
        ErrorKind::NotFound => ErrorCode::FORKYARD_NOT_FOUND,
        ErrorKind::Conflict => ErrorCode::FORKYARD_CONFLICT,
        ErrorKind::Exhausted => ErrorCode::FORKYARD_EXHAUSTED,
        ErrorKind::Guest => ErrorCode::FORKYARD_AGENT,
        ErrorKind::Timeout => ErrorCode::FORKYARD_TIMEOUT,
        // The last two are for clients over the network.
        ErrorKind::Host | ErrorKind::Unauthorized | ErrorKind::Forbidden => {
            ErrorCode::FORKYARD_HOST
        }
    };
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    fail(code, text)
}

/// Runs a call. A panic ends here: it must not unwind into C.
fn call(work: impl FnOnce(&AgentClient) -> Result<c_int, CallError>) -> c_int {
    match catch_unwind(AssertUnwindSafe(|| work(&AgentClient::from_env()))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(&error),
        Err(_) => fail(
            ErrorCode::FORKYARD_AGENT,
            "libforkyard broke: this is a bug".to_owned(),
        ),
    }
}

fn no_ticket() -> c_int {
    fail(
        ErrorCode::FORKYARD_INVALID,
        "no ticket was given".to_owned(),
    )
}

impl From<Granted> for Ticket {
    fn from(granted: Granted) -> Self {
        let text = |text: String| CString::new(text).unwrap_or_default();
        let place = |clone: forkyard_types::TicketClone| Place {
            id: clone.id,
            vcpus: clone.vcpus,
            processes: clone.processes,
            ip: text(clone.ip.to_string()),
            status: LOST,
        };
        Self {
            id: granted.id,
            text: text(granted.id.to_string()),
            clones: granted.clones.into_iter().map(place).collect(),
            others: BTreeMap::new(),
            holder: std::process::id(),
            used: AtomicBool::new(false),
        }
    }
}

/// Reserves clones of this VM; fewer may be granted than are asked for. NULL
/// if none were. To be freed with forkyard_ticket_free. The ticket belongs to this
/// process: when it ends, clones that were not joined are ended, and what was
/// reserved is given back.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_request_ticket(count: u16) -> *mut Ticket {
    request(count, TicketKind::Flat)
}

/// Requests a ticket for processes: forkyard_clone forks in each clone until it
/// has one for each vCPU it was granted, and numbers those. No more clones are
/// made than so many processes need.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_request_ticket_hierarchical(count: u16) -> *mut Ticket {
    request(count, TicketKind::Hierarchical)
}

fn request(count: u16, kind: TicketKind) -> *mut Ticket {
    let mut ticket = ptr::null_mut();
    call(|client| {
        ticket = Box::into_raw(Box::new(Ticket::from(client.request_ticket(count, kind)?)));
        Ok(0)
    });
    ticket
}

/// Clones this VM. Returns 0 in the parent and 1, 2, … in the clones, as
/// fork(2) does; clones that could not be made are told by the join. Negative
/// if there is no clone at all. With a hierarchical ticket it then calls
/// fork(2) in each clone, and returns in every process with its own number.
///
/// # Safety
/// `ticket` is NULL or came from forkyard_request_ticket and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_clone(ticket: *const Ticket) -> c_int {
    // SAFETY: null, or a living ticket by this function's contract; it is only
    // read, and not freed meanwhile.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else {
        return no_ticket();
    };
    call(|client| match ticket.clone_with(client)? {
        Cloning::Parent { .. } => Ok(0),
        Cloning::Clone { id, processes } => Ok(team::fork_all(client, id, processes).into()),
    })
}

/// forkyard_clone for languages that have a fork of their own: it calls no
/// fork(2). Returns the number of the clone's first process, and sets
/// `*processes` to how many there are to be, itself included.
///
/// # Safety
/// As forkyard_clone; `processes` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_clone_only(ticket: *const Ticket, processes: *mut u8) -> c_int {
    // SAFETY: as in forkyard_clone.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else {
        return no_ticket();
    };
    call(|client| {
        let (id, count) = match ticket.clone_with(client)? {
            Cloning::Parent { .. } => (0, 0),
            Cloning::Clone { id, processes } => (id, processes),
        };
        if !processes.is_null() {
            // SAFETY: not null, so it may be written to by this function's
            // contract.
            unsafe { processes.write(count) };
        }
        Ok(id.into())
    })
}

/// Ends this clone: its memory and disk vanish. Returns only if that failed.
/// With a hierarchical ticket it ends this process, and the clone with the last
/// of its processes.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_exit(status: u8) -> c_int {
    let others = team::leave(status);
    call(|client| match client.exit(status, others)? {})
}

/// forkyard_exit for languages that have a fork of their own: ends the clone at
/// once, and says how its other processes ended, in the order of their numbers;
/// negative for one that never said. `first` is the number of the second.
///
/// # Safety
/// `statuses` points to `count` numbers, or `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_exit_only(
    status: u8,
    first: u16,
    statuses: *const c_int,
    count: usize,
) -> c_int {
    let statuses = match count {
        0 => &[],
        // SAFETY: `count` numbers, by this function's contract, which no thread
        // changes during the call.
        count => unsafe { std::slice::from_raw_parts(statuses, count) },
    };
    let others = (first..).zip(statuses).map(|(id, status)| CloneEnd {
        id,
        status: u8::try_from(*status).ok(),
    });
    let others = others.collect();
    call(|client| match client.exit(status, others)? {})
}

/// Waits until this VM is forked, by whatever request. Returns in every clone,
/// with its number; in the parent it goes on waiting.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_wait_fork() -> c_int {
    call(|client| client.wait_fork().map(c_int::from))
}

/// Has these bytes of this process, the state of a random number generator,
/// overwritten with random ones in every clone from now on, whichever request makes
/// the fork, before any user code goes on there. For as long as the process
/// lives: the memory must stay what it is.
///
/// # Safety
/// `state` points to `size` bytes for as long as the process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_refill(state: *mut c_void, size: usize) -> c_int {
    match generator::register(state as usize, size) {
        Ok(()) => 0,
        Err(error) => fail(
            ErrorCode::FORKYARD_AGENT,
            format!("the generator could not be registered: {error}"),
        ),
    }
}

/// Waits until every clone of the ticket has ended, and uses the ticket up:
/// forkyard_ticket_status then tells how each ended. Returns the number of
/// clones that exited with 0.
///
/// # Safety
/// `ticket` is NULL or came from forkyard_request_ticket, was not freed, and
/// no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_join(ticket: *mut Ticket) -> c_int {
    // SAFETY: null, or a living ticket that no other thread uses, by this
    // function's contract.
    let Some(ticket) = (unsafe { ticket.as_mut() }) else {
        return no_ticket();
    };
    call(|client| {
        let mut well = 0;
        for end in client.join(ticket.id)? {
            let status = end.status.map_or(LOST, c_int::from);
            well += c_int::from(status == 0);
            match ticket.clones.iter_mut().find(|place| place.id == end.id) {
                Some(place) => place.status = status,
                None => drop(ticket.others.insert(end.id, status)),
            }
        }
        Ok(well)
    })
}

/// Ends every clone of the ticket now, and uses the ticket up.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_kill(ticket: *const Ticket) -> c_int {
    // SAFETY: as in forkyard_clone.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else {
        return no_ticket();
    };
    ticket.use_up();
    call(|client| client.kill(ticket.id).map(|()| 0))
}

/// The number of this clone, or of this process of one; 0 in a VM that was
/// booted.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_id() -> c_int {
    call(|client| match team::own_number(client) {
        Some(number) => Ok(number.into()),
        None => client.id().map(c_int::from),
    })
}

/// The ticket's name, as `vmfork` takes it. It belongs to the ticket.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_id(ticket: *const Ticket) -> *const c_char {
    // SAFETY: as in forkyard_clone.
    unsafe { ticket.as_ref() }.map_or(ptr::null(), |ticket| ticket.text.as_ptr())
}

/// Returns the number of clones that were granted, or of processes if the
/// ticket is hierarchical: their numbers are 1 and up.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_count(ticket: *const Ticket) -> u16 {
    // SAFETY: as in forkyard_clone.
    unsafe { ticket.as_ref() }.map_or(0, |ticket| {
        let counts = ticket.clones.iter().map(|place| u16::from(place.processes));
        counts.fold(0, u16::saturating_add)
    })
}

/// vCPUs of the clone that has this number (1 and up); 0 if there is none.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_vcpus(ticket: *const Ticket, id: u16) -> u8 {
    // SAFETY: as in forkyard_clone.
    unsafe { place(ticket, id) }.map_or(0, |place| place.vcpus)
}

/// Address of the clone that has this number on the family's network; NULL if
/// there is none. It belongs to the ticket.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_ip(ticket: *const Ticket, id: u16) -> *const c_char {
    // SAFETY: as in forkyard_clone.
    unsafe { place(ticket, id) }.map_or(ptr::null(), |place| place.ip.as_ptr())
}

/// Returns the status of the clone with this number, after a join: 0 to 255 as
/// it reported, or -1 if it was lost, could not be made, or does not exist.
///
/// # Safety
/// As forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_status(ticket: *const Ticket, id: u16) -> c_int {
    // SAFETY: as in forkyard_clone.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else {
        return LOST;
    };
    let own = ticket.clones.iter().find(|place| place.id == id);
    let other = || ticket.others.get(&id).copied();
    own.map(|place| place.status).or_else(other).unwrap_or(LOST)
}

/// Frees a ticket, used up or not. One that was not cloned with is given back.
/// Clones that were not joined live on until this process ends: it holds them.
///
/// # Safety
/// As forkyard_join; the ticket must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_ticket_free(ticket: *mut Ticket) {
    if !ticket.is_null() {
        // SAFETY: not null, so from Box::into_raw in forkyard_request_ticket,
        // and by this function's contract freed just here.
        let ticket = unsafe { Box::from_raw(ticket) };
        if !ticket.used.load(Ordering::Relaxed) && ticket.holder == std::process::id() {
            // Used up by its name meanwhile, perhaps: then there is nothing to give back.
            let _ = catch_unwind(|| AgentClient::from_env().kill(ticket.id));
        }
    }
}

/// Returns why this thread's last call failed; valid until its next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}

/// # Safety
/// As forkyard_clone; the place must not outlive the ticket.
unsafe fn place<'a>(ticket: *const Ticket, id: u16) -> Option<&'a Place> {
    // SAFETY: null, or a living ticket by this function's contract.
    let ticket = unsafe { ticket.as_ref() }?;
    ticket
        .clones
        .iter()
        .find(|place| place.numbers().contains(&id))
}
