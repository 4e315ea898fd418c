//! Pages of a VM's memory by a guest's numbers of page frames.
//!
//! ```text
//! frame   0 ........ low      4 GiB ......... 4 GiB + rest
//! memory  0 ........ low ...................  low + rest
//! ```
//!
//! A q35 leaves the addresses below 4 GiB to devices from 2.75 GiB on at the
//! latest: a machine with as much memory has 2 GiB there, and all else above. What a
//! machine has beyond the memory that its guest booted with is above as well.

use forkyard_types::{ByteCount, PageCount, PageNo};

/// A machine that booted with as much memory has some of it above [`HIGH`].
pub(crate) const SPLIT: ByteCount = ByteCount(11 << 28);
/// Memory below the gap in that case.
pub(crate) const LOW: ByteCount = ByteCount(2 << 30);
/// Address at which the rest of its memory begins.
const HIGH: ByteCount = ByteCount(4 << 30);

/// The page of a machine's memory at which these page frames begin, which lie
/// there one after the other. None if one of them is no memory of a machine
/// that has so much, and booted with so much, or if there are none.
pub fn page_of_frames(
    booted: ByteCount,
    memory: ByteCount,
    first: u64,
    count: PageCount,
) -> Option<PageNo> {
    let all = memory.pages().0;
    let low = match booted >= SPLIT {
        true => LOW.pages().0,
        false => booted.pages().0.min(all),
    };
    let end = first.checked_add(count.0).filter(|end| *end > first)?;
    if end <= low {
        return Some(PageNo(first));
    }
    let high = HIGH.pages().0;
    let page = first.checked_sub(high)?.checked_add(low)?;
    (end - high <= all - low).then_some(PageNo(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 18;

    fn page(memory_mib: u64, first: u64, count: u64) -> Option<u64> {
        grown(memory_mib, memory_mib, first, count)
    }

    fn grown(booted_mib: u64, memory_mib: u64, first: u64, count: u64) -> Option<u64> {
        let [booted, memory] =
            [booted_mib, memory_mib].map(|mib| ByteCount::from_mib(mib).expect("little"));
        page_of_frames(booted, memory, first, PageCount(count)).map(|page| page.0)
    }

    #[test]
    fn memory_that_came_later_lies_above_the_gap() {
        assert_eq!(grown(256, 1024, 0, 65536), Some(0));
        assert_eq!(grown(256, 1024, 65536, 1), None);
        assert_eq!(grown(256, 1024, 4 * GIB, 3 * 65536), Some(65536));
        assert_eq!(grown(256, 1024, 4 * GIB, 3 * 65536 + 1), None);
        assert_eq!(grown(3072, 4096, 4 * GIB, 2 * GIB), Some(2 * GIB));
    }

    #[test]
    fn a_small_machines_frames_are_its_pages() {
        assert_eq!(page(256, 0, 65536), Some(0));
        assert_eq!(page(256, 65535, 1), Some(65535));
        assert_eq!(page(256, 65535, 2), None, "past its end");
        assert_eq!(page(1024, 4 * GIB, 1), None, "nothing is up there");
        // The largest that has all of its memory below.
        assert_eq!(page(2815, 2815 * 256 - 1, 1), Some(2815 * 256 - 1));
        assert_eq!(page(2815, 4 * GIB, 1), None);
    }

    #[test]
    fn a_large_machines_memory_goes_on_at_4_gib_where_it_ends_at_2() {
        for mib in [2816, 3072, 4096, 16384] {
            let rest = mib * 256 - 2 * GIB;
            assert_eq!(page(mib, 0, 2 * GIB), Some(0));
            assert_eq!(page(mib, 4 * GIB, rest), Some(2 * GIB));
            assert_eq!(page(mib, 4 * GIB + 5, 1), Some(2 * GIB + 5));
            assert_eq!(page(mib, 2 * GIB, 1), None, "a device's");
            assert_eq!(page(mib, 4 * GIB - 1, 2), None, "half a device's");
            assert_eq!(page(mib, 2 * GIB - 1, 2), None, "half a device's");
            assert_eq!(page(mib, 2 * GIB - 1, 3 * GIB), None, "over the gap");
            assert_eq!(page(mib, 4 * GIB, rest + 1), None, "past its end");
        }
    }

    #[test]
    fn no_frames_and_frames_past_all_addresses_are_no_memory() {
        assert_eq!(page(4096, 7, 0), None);
        assert_eq!(page(4096, u64::MAX, 1), None);
        assert_eq!(page(4096, 1, u64::MAX), None);
        assert_eq!(page(4096, 5 * GIB, u64::MAX - 5 * GIB), None);
    }
}
