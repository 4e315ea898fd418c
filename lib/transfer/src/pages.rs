//! Sets and runs of pages.

use forkyard_types::{PageCount, PageNo};
use serde::{Deserialize, Serialize};

/// Pages one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The first.
    pub first: PageNo,
    /// Number of pages.
    pub pages: PageCount,
}

impl Run {
    /// One page.
    pub fn one(first: PageNo) -> Self {
        Self {
            first,
            pages: PageCount(1),
        }
    }

    /// Each of its pages.
    pub fn iter(self) -> impl Iterator<Item = PageNo> {
        (self.first.0..self.first.0.saturating_add(self.pages.0)).map(PageNo)
    }

    /// Returns the part inside an image of `size`; `None` if there is none.
    pub fn within(self, size: PageCount) -> Option<Self> {
        let left = size.0.checked_sub(self.first.0).filter(|left| *left > 0)?;
        let pages = PageCount(self.pages.0.min(left));
        (pages.0 > 0).then_some(Self { pages, ..self })
    }
}

/// Some pages of an image: a bit for each.
#[derive(Clone, Debug)]
pub struct PageSet {
    words: Vec<u64>,
    size: PageCount,
    count: u64,
}

impl PageSet {
    /// No page of an image of `size`.
    pub fn new(size: PageCount) -> Self {
        let words = usize::try_from(size.0.div_ceil(64)).unwrap_or(usize::MAX);
        Self {
            words: vec![0; words],
            size,
            count: 0,
        }
    }

    /// Adds a page; whether it is new. Pages past the end are never in a set.
    pub fn insert(&mut self, page: PageNo) -> bool {
        let Some((word, bit)) = self.place(page) else {
            return false;
        };
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(new);
        new
    }

    /// Tells whether it has a page.
    pub fn contains(&self, page: PageNo) -> bool {
        self.place(page)
            .is_some_and(|(word, bit)| self.words[word] & bit != 0)
    }

    /// The first page from `page` on that it does not have.
    pub fn first_missing(&self, page: PageNo) -> Option<PageNo> {
        let (mut word, _) = self.place(page)?;
        // Pages before it count as there.
        let mut missing = !self.words[word] & (u64::MAX << (page.0 % 64));
        while missing == 0 {
            word += 1;
            missing = !*self.words.get(word)?;
        }
        let found = word as u64 * 64 + u64::from(missing.trailing_zeros());
        (found < self.size.0).then_some(PageNo(found))
    }

    /// Size of the image.
    pub fn size(&self) -> PageCount {
        self.size
    }

    /// Pages in it.
    pub fn count(&self) -> PageCount {
        PageCount(self.count)
    }

    /// Tells whether it has every page of the image.
    pub fn is_full(&self) -> bool {
        self.count == self.size.0
    }

    fn place(&self, page: PageNo) -> Option<(usize, u64)> {
        let word = usize::try_from(page.0 / 64).ok()?;
        (page.0 < self.size.0).then_some((word, 1 << (page.0 % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn set_agrees_with_a_tree(size in 1..200u64, pages in prop::collection::vec(0..220u64, 0..300), from in 0..220u64) {
            let mut set = PageSet::new(PageCount(size));
            let mut model = BTreeSet::new();
            for page in pages {
                prop_assert_eq!(set.insert(PageNo(page)), page < size && model.insert(page));
            }
            model.retain(|page| *page < size);
            prop_assert_eq!(set.count().0, model.len() as u64);
            prop_assert_eq!(set.is_full(), model.len() as u64 == size);
            for page in 0..220 {
                prop_assert_eq!(set.contains(PageNo(page)), model.contains(&page));
            }
            let missing = (from..size).find(|page| !model.contains(page)).map(PageNo);
            prop_assert_eq!(set.first_missing(PageNo(from)), missing);
        }
    }

    #[test]
    fn run_is_cut_at_the_end_of_the_image() {
        let run = |first, pages| Run {
            first: PageNo(first),
            pages: PageCount(pages),
        };
        assert_eq!(run(3, 9).within(PageCount(5)), Some(run(3, 2)));
        assert_eq!(run(5, 1).within(PageCount(5)), None);
        assert_eq!(run(u64::MAX, u64::MAX).iter().count(), 0);
    }
}
