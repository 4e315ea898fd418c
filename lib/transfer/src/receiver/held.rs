//! Pages that a client has of an image, and those it lacks.

use super::Complete;
use crate::pages::{PageSet, Run};
use forkyard_types::{PageCount, PageNo};

/// See the module.
#[derive(Debug)]
pub(super) struct Held {
    pub have: PageSet,
    /// Pages that the server cannot read, or that are there.
    pub settled: PageSet,
    pub complete: Complete,
    /// Pages that are fetched before all others.
    first: PageSet,
    /// Pages that are fetched after all others, unless a reader waits for them.
    last: PageSet,
    /// Page from which the next that is missing and comes neither first nor last is looked for.
    cursor: PageNo,
    pub told: bool,
}

impl Held {
    /// Nothing of an image of so many pages.
    pub fn new(pages: PageCount) -> Self {
        Self {
            have: PageSet::new(pages),
            settled: PageSet::new(pages),
            complete: Complete::No,
            first: PageSet::new(pages),
            last: PageSet::new(pages),
            cursor: PageNo(0),
            told: false,
        }
    }

    /// Has these fetched before all others.
    pub fn put_first(&mut self, runs: &[Run]) {
        for page in runs.iter().flat_map(|run| run.iter()) {
            self.first.insert(page);
        }
    }

    /// Has these fetched after all others.
    pub fn put_last(&mut self, runs: &[Run]) {
        for page in runs.iter().flat_map(|run| run.iter()) {
            self.last.insert(page);
        }
    }

    /// Returns pages that are missing and not `wanted` yet, at most so many: those that come
    /// last only where there are no others, those that come first before any other.
    pub fn missing(&mut self, most: usize, wanted: impl Fn(PageNo) -> bool) -> Vec<PageNo> {
        let mut missing = self.of(&self.first, most, &wanted);
        while missing.len() < most {
            let others = |page| !self.first.contains(page) && !self.last.contains(page);
            let found = self.next(self.cursor, others);
            match found {
                Some(page) => {
                    self.cursor = PageNo(page.0 + 1);
                    if !wanted(page) {
                        missing.push(page);
                    }
                }
                None if self.cursor.0 > 0 => {
                    // The next time from the start: everything from here on is there or
                    // wanted.
                    self.cursor = PageNo(0);
                    break;
                }
                None => break,
            }
        }
        match missing.is_empty() {
            true => self.of(&self.last, most, &wanted),
            false => missing,
        }
    }

    /// Lists the missing ones of some pages.
    fn of(&self, pages: &PageSet, most: usize, wanted: impl Fn(PageNo) -> bool) -> Vec<PageNo> {
        let (mut missing, mut from) = (Vec::new(), PageNo(0));
        if pages.count().0 == 0 {
            return missing;
        }
        while missing.len() < most
            && let Some(page) = self.next(from, |page| pages.contains(page))
        {
            from = PageNo(page.0 + 1);
            if !wanted(page) {
                missing.push(page);
            }
        }
        missing
    }

    /// The first page from `from` on that is missing and fits.
    fn next(&self, mut from: PageNo, fits: impl Fn(PageNo) -> bool) -> Option<PageNo> {
        loop {
            let page = self.settled.first_missing(from)?;
            if fits(page) {
                return Some(page);
            }
            from = PageNo(page.0 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pages: &[PageNo]) -> Vec<u64> {
        pages.iter().map(|page| page.0).collect()
    }

    #[test]
    fn pages_that_come_first_are_missing_before_all_others() {
        let mut held = Held::new(PageCount(6));
        held.put_first(&[Run {
            first: PageNo(3),
            pages: PageCount(2),
        }]);
        assert_eq!(numbers(&held.missing(3, |_| false)), [3, 4, 0]);
        let wanted = |page: PageNo| [0, 3, 4].contains(&page.0);
        assert_eq!(numbers(&held.missing(9, wanted)), [1, 2, 5]);
    }

    #[test]
    fn pages_that_come_last_are_missing_once_no_others_are() {
        let mut held = Held::new(PageCount(10));
        held.put_last(&[Run {
            first: PageNo(2),
            pages: PageCount(3),
        }]);
        held.settled.insert(PageNo(0));
        assert_eq!(numbers(&held.missing(4, |_| false)), [1, 5, 6, 7]);
        let wanted = |page: PageNo| (5..8).contains(&page.0) || page.0 == 1;
        assert_eq!(numbers(&held.missing(4, wanted)), [8, 9]);
        let wanted = |page: PageNo| page.0 >= 5 || page.0 == 1;
        assert_eq!(numbers(&held.missing(2, wanted)), [2, 3]);
        for page in [1, 5, 6, 7, 8, 9] {
            held.settled.insert(PageNo(page));
        }
        assert_eq!(numbers(&held.missing(9, |page| page.0 == 3)), [2, 4]);
    }
}
