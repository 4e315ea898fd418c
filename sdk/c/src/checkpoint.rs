//! Checkpoints: an instant that is kept, and cloned later.

use crate::{ErrorCode, Ticket, call, fail, no_ticket, team};
use forkyard_agent_link::Checkpointing;
use forkyard_types::VmId;
use std::ffi::{CStr, c_char, c_int};

/// Bytes of a checkpoint's name, the NUL at its end included.
pub const FORKYARD_CHECKPOINT_NAME: usize = 12;

/// Keeps this instant of this VM. Returns 0 now, and writes the checkpoint's
/// name to `name`. Returns again, with 1, 2, …, in each clone that
/// forkyard_create_clones makes of it later, the name left empty there; with a
/// hierarchical ticket in each of its processes, as forkyard_clone does.
///
/// # Safety
/// FORKYARD_CHECKPOINT_NAME bytes may be written to `name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_checkpoint(name: *mut c_char) -> c_int {
    let mut processes = 0;
    // SAFETY: by this function's contract; `processes` may be written to.
    let id = unsafe { forkyard_checkpoint_only(name, &raw mut processes) };
    match u16::try_from(id) {
        Ok(id) if id > 0 => call(|client| Ok(team::fork_all(client, id, processes).into())),
        Ok(_) | Err(_) => id,
    }
}

/// forkyard_checkpoint for languages that have a fork of their own, as
/// forkyard_clone_only is.
///
/// # Safety
/// As forkyard_checkpoint; `processes` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_checkpoint_only(name: *mut c_char, processes: *mut u8) -> c_int {
    if name.is_null() {
        return no_checkpoint();
    }
    call(|client| {
        let (text, id, count) = match client.checkpoint()? {
            Checkpointing::Taken { checkpoint } => (checkpoint.to_string(), 0, 0),
            Checkpointing::Clone { id, processes } => (String::new(), id, processes),
        };
        let mut bytes = [0; FORKYARD_CHECKPOINT_NAME];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        // SAFETY: not null, so as many bytes may be written by this function's
        // contract; they are of one alignment, and not ours.
        unsafe { name.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
        if !processes.is_null() {
            // SAFETY: as in forkyard_clone_only.
            unsafe { processes.write(count) };
        }
        Ok(id.into())
    })
}

/// Makes the ticket's clones of a checkpoint that a VM of this family took, as
/// often as there are tickets. Returns 0, in the caller alone: in the clones it
/// is forkyard_checkpoint that returns. Clones that could not be made are told
/// by the join; negative if there is none at all.
///
/// # Safety
/// `checkpoint` is NULL or a string; `ticket` as in forkyard_clone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_create_clones(
    checkpoint: *const c_char,
    ticket: *const Ticket,
) -> c_int {
    // SAFETY: as in forkyard_clone.
    let Some(ticket) = (unsafe { ticket.as_ref() }) else {
        return no_ticket();
    };
    // SAFETY: null or a string, by this function's contract.
    match unsafe { named(checkpoint) } {
        Some(checkpoint) => call(|client| {
            ticket.use_up();
            let created = client.create_clones(checkpoint, ticket.id);
            created.map(|_| 0)
        }),
        None => no_checkpoint(),
    }
}

/// Forgets a checkpoint. Clones it has live on.
///
/// # Safety
/// `checkpoint` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forkyard_drop_checkpoint(checkpoint: *const c_char) -> c_int {
    // SAFETY: null or a string, by this function's contract.
    match unsafe { named(checkpoint) } {
        Some(checkpoint) => call(|client| client.drop_checkpoint(checkpoint).map(|()| 0)),
        None => no_checkpoint(),
    }
}

/// # Safety
/// `checkpoint` is NULL or a string.
unsafe fn named(checkpoint: *const c_char) -> Option<VmId> {
    if checkpoint.is_null() {
        return None;
    }
    // SAFETY: not null, so a string by this function's contract.
    let text = unsafe { CStr::from_ptr(checkpoint) };
    text.to_str().ok()?.parse().ok()
}

fn no_checkpoint() -> c_int {
    fail(
        ErrorCode::FORKYARD_INVALID,
        "no checkpoint was given".to_owned(),
    )
}
