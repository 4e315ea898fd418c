//! Disjoint access: memory of which each clone reads other pages.

use crate::call;
use std::ffi::{c_int, c_void};

/// Says that each clone will read other pages of these bytes of this process
/// (disjoint access; SnowFlock, section 6.1). Hosts to which this VM is forked
/// from now on are then sent those of the pages that they ask for, and not what
/// the others do. Of the pages that are in memory now, and in whole, whatever
/// else lies in them. A hint: it never changes what a clone reads. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn forkyard_disjoint(addr: *const c_void, len: usize) -> c_int {
    let (address, bytes) = (addr as usize as u64, len as u64);
    call(|client| client.disjoint(address, bytes).map(|()| 0))
}
