//! Memory that a guest marks as disjoint access (SnowFlock, section 6.1): each of
//! its clones will read other pages of it. A hint, as [`Disjoint`] says.

use crate::HostError;
use forkyard_agent_link::{Answer, Frames, MOST_FRAMES};
use forkyard_snapshot::Disjoint;
use forkyard_types::{ByteCount, PageCount};
use forkyard_vm::Vm;
use forkyard_vmm::page_of_frames;
use std::ops::Range;

/// Marks page frames of a VM's guest, for its forks from now on.
pub(super) fn mark(vm: &Vm, frames: &[Frames]) -> Result<Answer, HostError> {
    let record = vm.record();
    let pages = pages((record.booted, record.memory), frames)?;
    Disjoint::mark(vm, pages);
    Ok(Answer::Marked)
}

/// The pages of a memory of so many bytes that these frames are. None are
/// taken if one is none of it.
fn pages(
    (booted, memory): (ByteCount, ByteCount),
    frames: &[Frames],
) -> Result<Vec<Range<u64>>, HostError> {
    if frames.len() > MOST_FRAMES {
        let many = frames.len();
        return Err(HostError::Invalid(format!(
            "{many} runs of pages: {MOST_FRAMES} at most can be marked at once"
        )));
    }
    let page = |frames: &Frames| {
        let first = page_of_frames(booted, memory, frames.first, PageCount(frames.count));
        let first = first.ok_or_else(|| HostError::Invalid(format!("{frames:?} are no memory")))?;
        Ok(first.0..first.0 + frames.count)
    };
    frames.iter().map(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: ByteCount = ByteCount(256 << 20);
    const PAGES: u64 = 65536;

    fn frames(first: u64, count: u64) -> Frames {
        Frames { first, count }
    }

    /// Every second page from `first` on, as many as one message holds.
    fn scattered(first: u64) -> Vec<Frames> {
        let frames = |n| frames(first + 2 * n, 1);
        (0..MOST_FRAMES as u64).map(frames).collect()
    }

    #[test]
    fn frames_outside_of_the_memory_and_too_many_of_them_are_refused() {
        for refused in [
            vec![frames(0, 1), frames(PAGES, 1)],
            vec![frames(PAGES - 1, 2)],
            vec![frames(u64::MAX, u64::MAX)],
            vec![frames(3, 0)],
            [scattered(0), vec![frames(1, 1)]].concat(),
        ] {
            let error = pages((MEMORY, MEMORY), &refused).expect_err("refused");
            assert!(matches!(error, HostError::Invalid(_)), "{error:?}");
        }
        let all = pages((MEMORY, MEMORY), &[frames(0, PAGES)]).expect("its memory");
        assert_eq!(all, vec![0..PAGES; 1]);
        assert_eq!(
            pages((MEMORY, MEMORY), &scattered(0)).expect("few").len(),
            MOST_FRAMES
        );
    }
}
