//! What a client has of an image, and what it lacks.

use super::Complete;
use crate::pages::{PageSet, Run};
use forkyard_types::{PageCount, PageNo};

/// See the module.
#[derive(Debug)]
pub(super) struct Held {
    pub have: PageSet,
    /// What the server cannot read, or is there.
    pub settled: PageSet,
    pub complete: Complete,
    /// Pages that are fetched after all others, unless somebody asks for them.
    last: PageSet,
    /// Where to look for the next page that is missing.
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
            last: PageSet::new(pages),
            cursor: PageNo(0),
            told: false,
        }
    }

    /// Has these fetched after all others.
    pub fn put_last(&mut self, runs: &[Run]) {
        for page in runs.iter().flat_map(|run| run.iter()) {
            self.last.insert(page);
        }
    }

    /// Returns pages that are missing and not `wanted` yet, at most so many: those that come
    /// last only where there are no others.
    pub fn missing(&mut self, most: usize, wanted: impl Fn(PageNo) -> bool) -> Vec<PageNo> {
        let mut missing = Vec::new();
        while missing.len() < most {
            let found = self.next(self.cursor, |held, page| !held.last.contains(page));
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
        if missing.is_empty() {
            let mut from = PageNo(0);
            while missing.len() < most
                && let Some(page) = self.next(from, |held, page| held.last.contains(page))
            {
                from = PageNo(page.0 + 1);
                if !wanted(page) {
                    missing.push(page);
                }
            }
        }
        missing
    }

    /// The first page from `from` on that is missing and fits.
    fn next(&self, mut from: PageNo, fits: impl Fn(&Self, PageNo) -> bool) -> Option<PageNo> {
        loop {
            let page = self.settled.first_missing(from)?;
            if fits(self, page) {
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
