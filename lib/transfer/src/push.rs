//! Choice of pages to send unasked.
//!
//! First what is known to be wanted: the working set that earlier clones left.
//! Then, if all is to go, a pool of counters (SnowFlock, 3.5): each request
//! adds one that starts at the page after, and they take turns. No page is pushed
//! that was sent before, by whatever reason.

use crate::pages::{PageSet, Run};
use forkyard_types::{PageCount, PageNo};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, str::FromStr, sync::Arc};

/// Most counters: more than there are clients is enough (SnowFlock, 3.5).
const MOST_COUNTERS: usize = 256;

/// Pages that are pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Push {
    /// The working set alone: for clones that need little of their memory.
    #[default]
    WorkingSet,
    /// The working set, then all that lies behind what is asked for: for
    /// clones that will need most of it.
    Everything,
    /// Nothing.
    Nothing,
}

/// Text that says nothing of what is to be pushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is none of working-set, everything and nothing")]
pub struct UnknownPush {
    /// Text that was given.
    pub text: String,
}

impl FromStr for Push {
    type Err = UnknownPush;
    fn from_str(text: &str) -> Result<Self, UnknownPush> {
        match text {
            "working-set" => Ok(Self::WorkingSet),
            "everything" => Ok(Self::Everything),
            "nothing" => Ok(Self::Nothing),
            _ => Err(UnknownPush { text: text.into() }),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pusher {
    what: Push,
    first: VecDeque<Run>,
    counters: VecDeque<PageNo>,
    sent: PageSet,
    /// Pages that only a client that asks for them gets.
    barred: Arc<PageSet>,
    /// Of those sent, those that hold data.
    data: PageCount,
}

impl Pusher {
    /// Never pushes what is `barred`.
    pub fn new(what: Push, working_set: &[Run], size: PageCount, barred: Arc<PageSet>) -> Self {
        let first = match what {
            Push::Nothing => VecDeque::new(),
            Push::WorkingSet | Push::Everything => working_set.iter().copied().collect(),
        };
        Self {
            what,
            first,
            counters: VecDeque::new(),
            sent: PageSet::new(size),
            barred,
            data: PageCount(0),
        }
    }

    /// A page was sent; whether for the first time.
    pub fn sent(&mut self, page: PageNo) -> bool {
        self.sent.insert(page)
    }

    /// Notes that a page with data was sent; tells whether it was not before.
    pub fn sent_data(&mut self, page: PageNo) -> bool {
        let first = self.sent(page);
        self.data.0 += u64::from(first);
        first
    }

    /// Tells whether a page was sent before.
    pub fn was_sent(&self, page: PageNo) -> bool {
        self.sent.contains(page)
    }

    /// Pages sent that hold data, each once.
    pub fn data(&self) -> PageCount {
        self.data
    }

    /// Pages were asked for.
    pub fn asked(&mut self, run: Run) {
        let after = run.first.checked_add(run.pages);
        if let Some(after) = after.filter(|_| self.what == Push::Everything) {
            if self.counters.len() >= MOST_COUNTERS {
                self.counters.pop_front();
            }
            self.counters.push_back(after);
        }
    }

    /// The next page to push; a page skipped is not offered again if it was
    /// [`sent`](Self::sent) meanwhile.
    pub fn next(&mut self) -> Option<PageNo> {
        while let Some(run) = self.first.pop_front() {
            let rest = PageCount(run.pages.0.saturating_sub(1));
            if let Some(first) = run.first.checked_add(PageCount(1)).filter(|_| rest.0 > 0) {
                self.first.push_front(Run { first, pages: rest });
            }
            if run.pages.0 > 0 && self.is_new(run.first) {
                return Some(run.first);
            }
        }
        while let Some(counter) = self.counters.pop_front() {
            let Some(page) = self.first_new(counter) else {
                // This one has come to the end.
                continue;
            };
            self.counters.push_back(PageNo(page.0 + 1));
            return Some(page);
        }
        None
    }

    /// Tells whether there is nothing to push.
    pub fn is_idle(&self) -> bool {
        self.first.is_empty() && self.counters.is_empty()
    }

    fn is_new(&self, page: PageNo) -> bool {
        self.first_new(page) == Some(page)
    }

    /// The first page from `page` on that may be pushed.
    fn first_new(&self, mut page: PageNo) -> Option<PageNo> {
        loop {
            let unsent = self.sent.first_missing(page)?;
            page = self.barred.first_missing(unsent)?;
            if page == unsent {
                return Some(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn run(first: u64, pages: u64) -> Run {
        Run {
            first: PageNo(first),
            pages: PageCount(pages),
        }
    }

    fn pusher(what: Push, working_set: &[Run], size: u64) -> Pusher {
        let size = PageCount(size);
        Pusher::new(what, working_set, size, Arc::new(PageSet::new(size)))
    }

    #[test]
    fn what_only_one_is_to_get_is_never_pushed() {
        let size = PageCount(12);
        let mut barred = PageSet::new(size);
        for page in [0, 3, 4, 5, 9, 11] {
            barred.insert(PageNo(page));
        }
        let working_set = [run(8, 2), run(3, 3)];
        let mut pusher = Pusher::new(Push::Everything, &working_set, size, Arc::new(barred));
        pusher.asked(run(0, 2));
        assert_eq!(drain(&mut pusher), [8, 2, 6, 7, 10]);
    }

    fn drain(pusher: &mut Pusher) -> Vec<u64> {
        let mut pushed = Vec::new();
        while let Some(page) = pusher.next() {
            pusher.sent(page);
            pushed.push(page.0);
        }
        pushed
    }

    #[test]
    fn working_set_goes_first_and_in_its_order() {
        let mut pusher = pusher(Push::Everything, &[run(8, 2), run(3, 1)], 12);
        pusher.sent(PageNo(9));
        pusher.asked(run(0, 2));
        assert_eq!(drain(&mut pusher), [8, 3, 2, 4, 5, 6, 7, 10, 11]);
        assert!(pusher.is_idle());
    }

    #[test]
    fn counters_take_turns() {
        let mut pusher = pusher(Push::Everything, &[], 100);
        pusher.asked(run(9, 1));
        pusher.asked(run(49, 1));
        let pushed = [(); 6].map(|()| {
            let page = pusher.next().expect("much is left");
            pusher.sent(page);
            page.0
        });
        assert_eq!(pushed, [10, 50, 11, 51, 12, 52]);
    }

    #[test]
    fn nothing_and_the_working_set_alone_are_just_that() {
        let mut none = pusher(Push::Nothing, &[run(1, 5)], 9);
        none.asked(run(0, 1));
        assert_eq!(none.next(), None);
        let mut some = pusher(Push::WorkingSet, &[run(1, 2)], 9);
        some.asked(run(5, 1));
        assert_eq!(drain(&mut some), [1, 2]);
    }

    proptest! {
        #[test]
        fn no_page_is_pushed_twice_and_none_behind_a_request_is_forgotten(
            size in 1..200u64,
            asks in prop::collection::vec((0..220u64, any::<bool>()), 1..60),
        ) {
            let mut pusher = pusher(Push::Everything, &[], size);
            let (mut sent, mut least) = (HashSet::new(), u64::MAX);
            for (page, push) in asks {
                if page < size {
                    sent.insert(page);
                    pusher.sent(PageNo(page));
                    pusher.asked(run(page, 1));
                    least = least.min(page);
                }
                if push && let Some(page) = pusher.next() {
                    prop_assert!(sent.insert(page.0), "{} went twice", page.0);
                    pusher.sent(page);
                }
            }
            for page in drain(&mut pusher) {
                prop_assert!(sent.insert(page), "{page} went twice");
            }
            prop_assert!((least..size).all(|page| sent.contains(&page)));
        }
    }
}
