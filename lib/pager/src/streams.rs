//! Readers of an image page after page, and the pages that come next there.
//!
//! The kernel asks for a page where one is touched, and no more: reading ahead is
//! decided here, for what a clone does not need it has to fetch, and its host
//! to keep. A reader of four pages in a row is taken to go on. It is given as many as
//! it has read, so at most half of what is given is in vain, and 64 at most; more, once it
//! has come to the middle of what it was given.
//!
//! ```text
//! |--- read ---|- given -|      no question is asked for what the kernel has;
//!         here ^   ^ end        if the end of it is asked for, then it was wanted
//! ```

use crate::touched::Run;
use forkyard_types::{PageCount, PageNo};
use std::collections::VecDeque;

/// Streams that are remembered, of all clones of an image: the latest.
const MOST: usize = 32;
/// Pages in a row that make a stream.
const LEAST_READ: u64 = 4;
/// Most pages given at once.
const MOST_GIVEN: u64 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Streams(VecDeque<Stream>);

/// Pages one after the other, the last of which may be given and not yet read.
#[derive(Clone, Copy, Debug)]
struct Stream {
    first: u64,
    /// The first page that was not read, as far as is known.
    read: u64,
    /// The first page that was neither read nor given.
    end: u64,
}

/// Effect of a read on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Pages that were given before, and have turned out to be wanted.
    pub used: Option<Run>,
    /// Pages to give now.
    pub next: Option<Run>,
}

impl Streams {
    /// The kernel asks for pages.
    pub fn read(&mut self, run: Run) -> Step {
        let (first, end) = (run.first.0, run.first.0.saturating_add(run.pages.0));
        let goes_on = |stream: &Stream| (stream.read..=stream.end).contains(&first);
        let place = self.0.iter().position(goes_on);
        let before = place.and_then(|place| self.0.remove(place));
        let mut stream = before.unwrap_or(Stream {
            first,
            read: first,
            end: first,
        });
        let used = between(stream.read, first.min(stream.end));
        stream.read = end;
        stream.end = stream.end.max(end);
        let (read, given) = (end - stream.first, stream.end - end);
        let wanted = read.min(MOST_GIVEN);
        let next = if read >= LEAST_READ && given <= wanted / 2 {
            between(stream.end, end.saturating_add(wanted))
        } else {
            None
        };
        stream.end += next.map_or(0, |next| next.pages.0);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(stream);
        Step { used, next }
    }
}

fn between(first: u64, end: u64) -> Option<Run> {
    let pages = PageCount(end.checked_sub(first).filter(|pages| *pages > 0)?);
    let first = PageNo(first);
    Some(Run { first, pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn run(first: u64, pages: u64) -> Run {
        let (first, pages) = (PageNo(first), PageCount(pages));
        Run { first, pages }
    }

    /// Reads by a kernel that keeps what it is given.
    fn read_all(pages: impl Iterator<Item = u64>) -> (Vec<u64>, BTreeSet<u64>) {
        let (mut streams, mut asked) = (Streams::default(), Vec::new());
        let mut has = BTreeSet::new();
        for page in pages {
            if has.insert(page) {
                asked.push(page);
                let given = streams.read(run(page, 1)).next;
                has.extend(
                    given
                        .into_iter()
                        .flat_map(|given| given.first.0..given.first.0 + given.pages.0),
                );
            }
        }
        (asked, has)
    }

    #[test]
    fn who_reads_on_is_given_ever_more_up_to_a_bound() {
        let (asked, has) = read_all(0..400);
        assert_eq!(asked, [0, 1, 2, 3, 8, 18, 38, 78, 143, 208, 273, 338]);
        assert_eq!(has.last(), Some(&402));
    }

    #[test]
    fn who_reads_here_and_there_is_given_nothing() {
        let scattered = (0..300)
            .map(|n| n * 7 % 300)
            .chain([500, 501, 502, 600, 499]);
        let (asked, has) = read_all(scattered);
        assert_eq!(asked.len(), has.len());
    }

    #[test]
    fn what_was_given_is_told_of_once_it_is_known_to_be_wanted() {
        let mut streams = Streams::default();
        let steps: Vec<_> = [0, 1, 2, 3, 8]
            .map(|page| streams.read(run(page, 1)))
            .into();
        assert_eq!(steps[3].next, Some(run(4, 4)));
        assert!(steps[..4].iter().all(|step| step.used.is_none()));
        assert_eq!(steps[4].used, Some(run(4, 4)));
    }

    #[test]
    fn who_asks_for_each_page_is_given_more_half_way() {
        let mut streams = Streams::default();
        let given = (0..200).filter_map(|page| Some((page, streams.read(run(page, 1)).next?)));
        let given: Vec<_> = given.take(6).collect();
        // Nothing is given twice, and more is there before it is needed.
        assert_eq!(
            given[..3],
            [(3, run(4, 4)), (5, run(8, 4)), (7, run(12, 4))]
        );
        let mut end = 4;
        for (asked, next) in given {
            assert!(next.first.0 == end && asked < end);
            end += next.pages.0;
        }
    }

    #[test]
    fn several_streams_do_not_disturb_each_other() {
        let interleaved = (0..100).flat_map(|n| [n, 1000 + n, 5000 + n]);
        let (asked, _) = read_all(interleaved);
        let (alone, _) = read_all(0..100);
        assert_eq!(asked.len(), 3 * alone.len());
    }

    proptest! {
        #[test]
        fn at_most_half_of_what_is_had_is_in_vain(
            starts in prop::collection::vec((0..5000u64, 1..90u64), 1..40),
        ) {
            let read: Vec<u64> = starts.iter().flat_map(|(first, pages)| *first..first + pages).collect();
            let wanted: BTreeSet<u64> = read.iter().copied().collect();
            let (_, has) = read_all(read.into_iter());
            prop_assert!(wanted.is_subset(&has));
            prop_assert!(has.len() <= 2 * wanted.len());
        }
    }
}
