//! Page frames of a guest: its memory as its kernel numbers it.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most [`Frames`] in one message.
pub const MOST_FRAMES: usize = 4096;

/// Page frames of a guest, of 4 KiB, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Number of the first: its guest-physical address by the size of a page.
    pub first: u64,
    /// Number of frames.
    pub count: u64,
}

/// Merges the ranges into as few as there can be, in order.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(_) | None => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn joined_ranges_have_the_same_numbers_and_do_not_touch(
            ranges in prop::collection::vec((0..60u64, 0..6u64), 0..20),
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(first, count)| *first..first + count).collect();
            let numbers: BTreeSet<_> = ranges.iter().cloned().flatten().collect();
            let joined = joined(ranges);
            prop_assert!(joined.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(joined.into_iter().flatten().collect::<BTreeSet<_>>(), numbers);
        }
    }
}
