//! Random number generators in user space, which a clone has copies of.
//!
//! ```text
//! /opt/forkyard/epoch       a page to look at: 16 bytes that no two VMs share
//! /opt/forkyard/generators  a page to map privately: a table of memory whose
//!                           bytes are a generator's state
//! ```
//!
//! A program that maps `epoch` shared sees it change before any user code of a clone
//! goes on. A program that maps `generators` privately and writes a table into its
//! copy has those bytes of its memory overwritten with random ones in every
//! clone: the mapping is the registration, so it ends with the program and is
//! copied by fork(2). Table: `forkyard`, a count, then so many addresses and
//! lengths, 64 bits each.

use crate::{
    foreign,
    init::{Outcome, doing},
};
use forkyard_types::Epoch;
use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    unistd::Pid,
};
use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    os::unix::fs::FileExt,
    path::Path,
};

/// Names of the two, in our folder.
pub const EPOCH: &str = "epoch";
pub const GENERATORS: &str = "generators";
/// Length of each.
pub const PAGE: usize = 4096;

const FOLDER: &str = "/opt/forkyard";
const MAGIC: [u8; 8] = *b"forkyard";
const ENTRY: usize = 16;
/// Longer states are a mistake.
const LONGEST: usize = 64 << 10;

/// Shows the epoch to every program that looks.
pub fn show(epoch: Epoch) -> Outcome {
    let path = Path::new(FOLDER).join(EPOCH);
    // In place: programs have it mapped.
    foreign::to_write(path)
        .and_then(|file| file.write_all_at(epoch.0.as_bytes(), 0))
        .map_err(doing("show the epoch"))
}

/// Overwrites the state of every generator that these processes have
/// registered. They must stand still.
pub fn refill(processes: &[i32]) {
    for pid in processes.iter().copied() {
        // One that is ending has no memory left to read.
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for table in tables(&maps) {
            if let Err(error) = refill_one(Pid::from_raw(pid), table) {
                eprintln!("forkyard-guest: generators of process {pid}: {error}");
            }
        }
    }
}

/// Finds the addresses at which a process has private copies of the page.
fn tables(maps: &str) -> impl Iterator<Item = usize> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, _) = words.next()?.split_once('-')?;
        let private = words.next()? == "rw-p";
        let path = Path::new(words.nth(3)?);
        let ours = path == Path::new(FOLDER).join(GENERATORS);
        (private && ours)
            .then(|| usize::from_str_radix(start, 16).ok())
            .flatten()
    })
}

fn refill_one(process: Pid, table: usize) -> io::Result<()> {
    let mut page = [0; PAGE];
    let there = RemoteIoVec {
        base: table,
        len: PAGE,
    };
    process_vm_readv(process, &mut [IoSliceMut::new(&mut page)], &[there])?;
    for (base, len) in entries(&page) {
        let mut bytes = vec![0; len];
        // By the system call: root in the guest can put anything at /dev/urandom.
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        process_vm_writev(
            process,
            &[IoSlice::new(&bytes)],
            &[RemoteIoVec { base, len }],
        )?;
    }
    Ok(())
}

/// The memory a table names; none of one that is not, or not yet, a table.
fn entries(page: &[u8; PAGE]) -> Vec<(usize, usize)> {
    let number = |at: usize| {
        let bytes = page.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_ne_bytes(bytes)).ok()
    };
    if page[..8] != MAGIC {
        return Vec::new();
    }
    let count = number(8).unwrap_or_default().min(PAGE / ENTRY - 1);
    (1..=count)
        .filter_map(|n| Some((number(n * ENTRY)?, number(n * ENTRY + 8)?)))
        .filter(|(_, length)| (1..=LONGEST).contains(length))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(words: &[u64]) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&MAGIC);
        for (to, word) in page[8..].chunks_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        page
    }

    #[test]
    fn only_a_finished_table_with_sensible_lengths_names_memory() {
        assert_eq!(entries(&page(&[2, 0x1000, 16, 0x2000, 8])).len(), 2);
        assert_eq!(entries(&page(&[1, 0x1000, 16, 0x2000, 8])), [(0x1000, 16)]);
        assert_eq!(entries(&page(&[2, 0x1000, 0, 0x2000, 1 << 40])), []);
        // More than fit: those that do.
        let full = [vec![u64::MAX], vec![9; 510]].concat();
        assert_eq!(entries(&page(&full)).len(), 255);
        let mut unfinished = page(&[1, 0x1000, 16]);
        unfinished[0] = 0;
        assert_eq!(entries(&unfinished), []);
    }

    #[test]
    fn only_private_writable_maps_of_the_page_are_tables() {
        let maps = "\
            7f0000000000-7f0000001000 rw-p 00000000 00:14 12 /opt/forkyard/generators\n\
            7f0000002000-7f0000003000 rw-s 00000000 00:14 12 /opt/forkyard/generators\n\
            7f0000004000-7f0000005000 r--p 00000000 00:14 12 /opt/forkyard/generators\n\
            7f0000006000-7f0000007000 rw-p 00000000 00:00 0 \n\
            7f0000008000-7f0000009000 rw-p 00000000 00:14 13 /opt/forkyard/epoch\n";
        assert_eq!(tables(maps).collect::<Vec<_>>(), [0x7f00_0000_0000]);
    }

    #[test]
    fn registered_memory_of_a_process_is_overwritten_and_no_other() {
        let memory = std::hint::black_box([7u8; 96]);
        let state = memory.as_ptr() as u64;
        let table = page(&[1, state + 32, 32]);
        refill_one(Pid::this(), table.as_ptr() as usize).expect("refilled");
        // Read the same way it was written: the compiler knows of neither.
        let mut now = [0; 96];
        let there = RemoteIoVec {
            base: memory.as_ptr() as usize,
            len: 96,
        };
        process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut now)], &[there]).expect("read");
        assert_eq!(now[..32], [7; 32]);
        assert_ne!(now[32..64], [7; 32]);
        assert_eq!(now[64..], [7; 32]);
    }
}
