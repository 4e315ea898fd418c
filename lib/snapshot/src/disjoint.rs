//! Memory of a VM of which each of its clones will read other pages.
//!
//! A hint: by it the pages of a fork are sent to the hosts that ask for them
//! and not to all of them. What any clone reads is the same with and without.

use forkyard_agent_link::{MOST_FRAMES, joined};
use forkyard_pager::Run;
use forkyard_types::{PageCount, PageNo};
use forkyard_vm::{Vm, lock};
use std::{ops::Range, sync::Mutex};

/// Pages of a VM's memory that each of its clones reads for itself: few runs,
/// in order, none of which touch.
#[derive(Debug, Default)]
pub struct Disjoint(Vec<Range<u64>>);

impl Disjoint {
    /// Marks pages of a VM, for its forks from now on.
    pub fn mark(vm: &Vm, pages: Vec<Range<u64>>) {
        lock(&vm.attached::<Mutex<Self>>()).add(pages);
    }

    /// Returns those of a VM, as the pager is told.
    pub(crate) fn of(vm: &Vm) -> Vec<Run> {
        lock(&vm.attached::<Mutex<Self>>()).runs()
    }

    /// These are disjoint from now on, too. If that is too much together, then
    /// what was marked before is forgotten: it is the likelier to be something
    /// else by now.
    fn add(&mut self, pages: Vec<Range<u64>>) {
        let both = joined([self.0.clone(), pages.clone()].concat());
        self.0 = match both.len() <= MOST_FRAMES {
            true => both,
            false => joined(pages),
        };
    }

    fn runs(&self) -> Vec<Run> {
        let run = |pages: &Range<u64>| Run {
            first: PageNo(pages.start),
            pages: PageCount(pages.end - pages.start),
        };
        self.0.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 65536;

    /// Every second page from `first` on, as many as one message holds.
    fn scattered(first: u64) -> Vec<Range<u64>> {
        let page = |n| first + 2 * n..first + 2 * n + 1;
        (0..MOST_FRAMES as u64).map(page).collect()
    }

    #[test]
    fn what_is_marked_adds_up_until_it_is_too_much_and_the_latest_stays() {
        let mut disjoint = Disjoint::default();
        disjoint.add(vec![7..9, 3..5]);
        disjoint.add(vec![5..6, 8..12]);
        let run = |first, pages| Run {
            first: PageNo(first),
            pages: PageCount(pages),
        };
        assert_eq!(disjoint.runs(), [run(3, 3), run(7, 5)]);
        let many = scattered(20);
        disjoint.add(many.clone());
        assert_eq!(disjoint.0, many, "with the two it would be too much");
        // The same again, all of memory again and again: no more of it.
        disjoint.add(many.clone());
        assert_eq!(disjoint.0, many);
        disjoint.add(vec![0..PAGES; MOST_FRAMES]);
        assert_eq!(disjoint.runs(), [run(0, PAGES)]);
    }
}
