//! Reads that wait for pages, by page: a page that comes costs as much as it has reads
//! that wait for it, however many wait for others.

use super::pages;
use crate::touched::Run;
use forkyard_types::PageNo;
use std::collections::{BTreeMap, HashMap};

/// See the module.
#[derive(Debug)]
pub(super) struct Waiting<W> {
    /// In the order in which they came.
    reads: BTreeMap<u64, Wait<W>>,
    /// Requests among them that wait for a page.
    missing: HashMap<PageNo, Vec<u64>>,
    /// Of the next read.
    number: u64,
}

#[derive(Debug)]
struct Wait<W> {
    run: Run,
    missing: usize,
    read: W,
}

impl<W> Default for Waiting<W> {
    fn default() -> Self {
        Self {
            reads: BTreeMap::new(),
            missing: HashMap::new(),
            number: 0,
        }
    }
}

impl<W> Waiting<W> {
    /// A read of `run` waits for those of its pages that are missing: at least one.
    pub fn add(&mut self, run: Run, missing: &[PageNo], read: W) {
        let number = self.number;
        self.number += 1;
        for page in missing {
            self.missing.entry(*page).or_default().push(number);
        }
        let missing = missing.len();
        self.reads.insert(number, Wait { run, missing, read });
    }

    /// A page is here: adds to `ready` the reads that waited for nothing else.
    pub fn came(&mut self, page: PageNo, ready: &mut Vec<W>) {
        for number in self.missing.remove(&page).into_iter().flatten() {
            let Some(wait) = self.reads.get_mut(&number) else {
                continue;
            };
            wait.missing -= 1;
            if wait.missing == 0 {
                ready.extend(self.reads.remove(&number).map(|wait| wait.read));
            }
        }
    }

    /// Takes out the reads of a page and of no other.
    pub fn alone(&mut self, page: PageNo) -> Vec<W> {
        let Some(numbers) = self.missing.get_mut(&page) else {
            return Vec::new();
        };
        let reads = &mut self.reads;
        let alone = numbers.extract_if(.., |number| {
            reads.get(number).is_some_and(|wait| wait.run.pages.0 == 1)
        });
        let alone: Vec<_> = alone.collect();
        if numbers.is_empty() {
            self.missing.remove(&page);
        }
        let taken = alone.iter().filter_map(|number| self.reads.remove(number));
        taken.map(|wait| wait.read).collect()
    }

    /// Takes out the reads of such runs.
    pub fn take(&mut self, which: impl Fn(Run) -> bool) -> Vec<W> {
        let taken: Vec<_> = self
            .reads
            .extract_if(.., |_, wait| which(wait.run))
            .collect();
        for (number, wait) in &taken {
            for page in pages(wait.run) {
                if let Some(waiting) = self.missing.get_mut(&page) {
                    waiting.retain(|waits| waits != number);
                    if waiting.is_empty() {
                        self.missing.remove(&page);
                    }
                }
            }
        }
        taken.into_iter().map(|(_, wait)| wait.read).collect()
    }

    /// Pages that are waited for, in order.
    pub fn pages(&self) -> Vec<PageNo> {
        let mut pages: Vec<_> = self.missing.keys().copied().collect();
        pages.sort_unstable();
        pages
    }
}
