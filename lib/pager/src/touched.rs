//! Pages of an image that have been asked for, in order, and those of them that
//! the kernel should still have.
//!
//! The order is the image's working set: what the next clones will want first.

use forkyard_types::{PageCount, PageNo};

/// Pages one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: PageNo,
    pub pages: PageCount,
}

impl Run {
    fn numbers(self) -> std::ops::Range<u64> {
        self.first.0..self.first.0.saturating_add(self.pages.0)
    }

    /// Returns the part inside an image of `size`.
    pub fn within(self, size: PageCount) -> Option<Self> {
        let left = size.0.checked_sub(self.first.0).filter(|left| *left > 0)?;
        let pages = PageCount(self.pages.0.min(left));
        Some(Self { pages, ..self })
    }
}

/// Conclusion from a request about the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The kernel asks for pages it never had.
    First,
    /// The kernel asks for pages it had: it has dropped them, and so perhaps
    /// the rest.
    Again,
}

/// Choice whether pages are worth giving in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Data,
    /// All of them are zero, which costs nothing to say and a page of the kernel's to keep.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    order: Vec<Run>,
    asked: Marks,
    count: u64,
    given: Marks,
}

impl Touched {
    /// The kernel asks for these pages and gets them.
    pub fn read(&mut self, run: Run, holds: Holds) -> Asked {
        let again = run.numbers().filter(|page| self.given.has(*page)).count() as u64;
        let asked = match again * 2 > run.pages.0 {
            true => Asked::Again,
            false => Asked::First,
        };
        if asked == Asked::Again {
            self.given = Marks::default();
        }
        self.given.mark(run);
        self.used(run, holds);
        asked
    }

    /// Clones have used these pages, whether or not the kernel asked.
    pub fn used(&mut self, run: Run, holds: Holds) {
        for page in run.numbers() {
            if self.asked.add(page) {
                self.count += 1;
                if holds == Holds::Data {
                    append(&mut self.order, page);
                }
            }
        }
    }

    /// The kernel got these pages without asking.
    pub fn pushed(&mut self, run: Run) {
        self.given.mark(run);
    }

    /// Pages used so far, each once.
    pub fn pages(&self) -> PageCount {
        PageCount(self.count)
    }

    /// Tells whether a page was ever used.
    pub fn has(&self, page: PageNo) -> bool {
        self.asked.has(page.0)
    }

    /// Returns the pages that were used and hold data, in that order.
    pub fn order(&self) -> &[Run] {
        &self.order
    }

    /// Returns the part of `wanted` that the kernel does not have yet, in its
    /// order.
    pub fn missing(&self, wanted: &[Run]) -> Vec<Run> {
        let mut missing = Vec::new();
        let mut taken = Marks::default();
        for page in wanted.iter().flat_map(|run| run.numbers()) {
            if !self.given.has(page) && taken.add(page) {
                append(&mut missing, page);
            }
        }
        missing
    }
}

/// The last `most` pages of `earlier` and then `later`, each page once, where
/// it is first.
pub(crate) fn joined(earlier: &[Run], later: &[Run], most: PageCount) -> Vec<Run> {
    let both = Touched::default().missing(&[earlier, later].concat());
    let total: u64 = both.iter().map(|run| run.pages.0).sum();
    let mut surplus = total.saturating_sub(most.0);
    let shortened = both.into_iter().filter_map(|run| {
        let cut = surplus.min(run.pages.0);
        surplus -= cut;
        let first = PageNo(run.first.0 + cut);
        let pages = PageCount(run.pages.0 - cut);
        (pages.0 > 0).then_some(Run { first, pages })
    });
    shortened.collect()
}

fn append(runs: &mut Vec<Run>, page: u64) {
    match runs.last_mut() {
        Some(last) if last.numbers().end == page => last.pages.0 += 1,
        Some(_) | None => runs.push(Run {
            first: PageNo(page),
            pages: PageCount(1),
        }),
    }
}

/// A set of pages. Grows to the highest page in it.
#[derive(Debug, Default)]
struct Marks(Vec<u64>);

impl Marks {
    fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|n| self.0.get(n));
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// False if it was there.
    fn add(&mut self, page: u64) -> bool {
        if self.has(page) {
            return false;
        }
        // Pages come from requests that were served: there is so much memory.
        let word = usize::try_from(page / 64).unwrap_or(usize::MAX);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (page % 64);
        true
    }

    fn mark(&mut self, run: Run) {
        for page in run.numbers() {
            self.add(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u64, pages: u64) -> Run {
        let (first, pages) = (PageNo(first), PageCount(pages));
        Run { first, pages }
    }

    #[test]
    fn first_reads_are_kept_in_their_order_and_later_ones_are_not() {
        let mut touched = Touched::default();
        assert_eq!(touched.read(run(70, 2), Holds::Data), Asked::First);
        assert_eq!(touched.read(run(3, 4), Holds::Data), Asked::First);
        touched.read(run(5, 4), Holds::Data);
        assert_eq!(touched.order(), [run(70, 2), run(3, 6)]);
        assert_eq!(touched.pages(), PageCount(8));
        assert!(touched.has(PageNo(71)) && !touched.has(PageNo(72)));
    }

    #[test]
    fn what_the_kernel_lost_is_pushed_again() {
        let mut touched = Touched::default();
        touched.read(run(0, 10), Holds::Data);
        touched.pushed(run(20, 10));
        let wanted = [run(0, 40)];
        assert_eq!(touched.missing(&wanted), [run(10, 10), run(30, 10)]);
        assert_eq!(touched.read(run(22, 2), Holds::Data), Asked::Again);
        assert_eq!(touched.missing(&wanted), [run(0, 22), run(24, 16)]);
    }

    #[test]
    fn request_that_overlaps_a_little_loses_nothing() {
        let mut touched = Touched::default();
        touched.read(run(0, 10), Holds::Data);
        assert_eq!(touched.read(run(8, 10), Holds::Data), Asked::First);
        assert!(touched.missing(&[run(0, 18)]).is_empty());
    }

    #[test]
    fn zero_pages_are_used_and_no_one_s_working_set() {
        let mut touched = Touched::default();
        touched.read(run(0, 2), Holds::Nothing);
        touched.used(run(2, 3), Holds::Data);
        touched.read(run(0, 9), Holds::Data);
        assert_eq!(touched.order(), [run(2, 7)]);
        assert_eq!(touched.pages(), PageCount(9));
    }

    #[test]
    fn pages_pushed_are_no_one_s_working_set() {
        let mut touched = Touched::default();
        touched.pushed(run(0, 10));
        assert!(touched.order().is_empty());
    }

    #[test]
    fn oldest_pages_make_room() {
        let both = joined(&[run(0, 4), run(9, 1)], &[run(2, 6)], PageCount(6));
        assert_eq!(both, [run(3, 1), run(9, 1), run(4, 4)]);
    }

    proptest! {
        #[test]
        fn order_has_each_page_once(reads in prop::collection::vec((0..300u64, 1..40u64), 0..20)) {
            let mut touched = Touched::default();
            let mut model = std::collections::BTreeSet::new();
            for (first, pages) in reads {
                touched.read(run(first, pages), Holds::Data);
                model.extend(first..first + pages);
            }
            let mut order: Vec<u64> = touched.order().iter().flat_map(|run| run.numbers()).collect();
            prop_assert_eq!(order.len() as u64, touched.pages().0);
            order.sort_unstable();
            prop_assert_eq!(order, model.into_iter().collect::<Vec<_>>());
        }
    }
}
