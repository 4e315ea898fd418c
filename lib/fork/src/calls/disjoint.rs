//! Memory that a guest marks as disjoint access (SnowFlock, section 6.1): each of
//! its clones will read other pages of it.
//!
//! A hint: by it the pages of a fork are sent to the hosts that ask for them
//! and not to all of them. What any clone reads is the same with and without.

use crate::HostError;
use forkyard_agent_link::{Answer, Frames, MOST_FRAMES, joined};
use forkyard_pager::Run;
use forkyard_types::{ByteCount, PageCount, PageNo};
use forkyard_vm::{Vm, lock};
use forkyard_vmm::page_of_frames;
use std::{ops::Range, sync::Mutex};

/// Pages of a VM's memory that each of its clones reads for itself: few runs,
/// in order, none of which touch.
#[derive(Debug, Default)]
pub(crate) struct Disjoint(Vec<Range<u64>>);

impl Disjoint {
    /// These are disjoint from now on, too. If that is too much together, then
    /// what was marked before is forgotten: it is the likelier to be something
    /// else by now.
    fn mark(&mut self, pages: Vec<Range<u64>>) {
        let both = joined([self.0.clone(), pages.clone()].concat());
        self.0 = match both.len() <= MOST_FRAMES {
            true => both,
            false => joined(pages),
        };
    }

    /// Those of a VM, as the pager is told.
    pub fn of(vm: &Vm) -> Vec<Run> {
        lock(&vm.attached::<Mutex<Self>>()).runs()
    }

    fn runs(&self) -> Vec<Run> {
        let run = |pages: &Range<u64>| Run {
            first: PageNo(pages.start),
            pages: PageCount(pages.end - pages.start),
        };
        self.0.iter().map(run).collect()
    }
}

/// Marks page frames of a VM's guest, for its forks from now on.
pub(super) fn mark(vm: &Vm, frames: &[Frames]) -> Result<Answer, HostError> {
    let record = vm.record();
    let pages = pages((record.booted, record.memory), frames)?;
    lock(&vm.attached::<Mutex<Disjoint>>()).mark(pages);
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

    #[test]
    fn what_is_marked_adds_up_until_it_is_too_much_and_the_latest_stays() {
        let mut disjoint = Disjoint::default();
        disjoint.mark(vec![7..9, 3..5]);
        disjoint.mark(vec![5..6, 8..12]);
        let run = |first, pages| Run {
            first: PageNo(first),
            pages: PageCount(pages),
        };
        assert_eq!(disjoint.runs(), [run(3, 3), run(7, 5)]);
        let many = pages((MEMORY, MEMORY), &scattered(20)).expect("few");
        disjoint.mark(many.clone());
        assert_eq!(disjoint.0, many, "with the two it would be too much");
        // The same again, all of memory again and again: no more of it.
        disjoint.mark(many.clone());
        assert_eq!(disjoint.0, many);
        disjoint.mark(vec![0..PAGES; MOST_FRAMES]);
        assert_eq!(disjoint.runs(), [run(0, PAGES)]);
    }
}
