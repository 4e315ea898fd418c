//! Search for the image that is most like another.
//!
//! Two forks of one VM make two images that no lineage connects, though most of
//! their pages are the same: what was learnt of the first holds for the
//! second. Similarity is judged by the pages themselves, a sample of them.

use crate::touched::Run;
use forkyard_image::{Checksum, Image};
use forkyard_types::PageNo;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages looked at.
const SAMPLE: usize = 256;
/// Images remembered after they are gone.
const REMEMBERED: usize = 64;

/// Pages of a thousand that two images have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Similarity(pub usize);

impl Similarity {
    /// Enough to expect the same pages to be wanted.
    pub const ALIKE: Self = Self(250);
    /// Enough to store one as what it differs from the other by.
    pub const TWIN: Self = Self(500);
}

/// Some pages of an image by which it is recognised.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint(Vec<(PageNo, Checksum)>);

impl Fingerprint {
    pub fn of(image: &Image) -> Self {
        Self(image.sample(SAMPLE))
    }

    /// Measures how much of the image this was taken of is in `other` as well.
    pub fn likeness(&self, other: &Image) -> Similarity {
        let same = |(page, sum): &&(PageNo, Checksum)| other.checksum(*page) == Some(*sum);
        let alike = self.0.iter().filter(same).count();
        Similarity(alike * 1000 / self.0.len().max(1))
    }
}

/// An image that is gone.
#[derive(Debug)]
struct GoneImage {
    fingerprint: Arc<Fingerprint>,
    working_set: Vec<Run>,
}

/// Summaries of images that are gone, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    past: VecDeque<GoneImage>,
    /// Number of the oldest: numbers are never used twice.
    first: u64,
}

impl Memory {
    pub fn remember(&mut self, fingerprint: Arc<Fingerprint>, working_set: Vec<Run>) {
        if working_set.is_empty() {
            return;
        }
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
            self.first += 1;
        }
        self.past.push_back(GoneImage {
            fingerprint,
            working_set,
        });
    }

    /// Fingerprints by their numbers, the oldest first.
    pub fn fingerprints(&self) -> impl Iterator<Item = (u64, &Arc<Fingerprint>)> {
        (self.first..).zip(self.past.iter().map(|past| &past.fingerprint))
    }

    /// The working set of an image by its number; `None` if it is forgotten.
    pub fn working_set(&self, number: u64) -> Option<&[Run]> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        Some(&self.past.get(place)?.working_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_image::{Layer, LayerBuilder, Lineage, Slot};
    use forkyard_sys_host::memory::anonymous_file;
    use forkyard_types::{ByteCount, ImageId, PageCount};
    use std::os::unix::fs::FileExt;

    fn image(pages: u64, filled: impl Fn(u64) -> u8) -> Image {
        let file = anonymous_file("test", ByteCount(0)).expect("memfd");
        let lineage = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        let mut builder = LayerBuilder::new(lineage, PageCount(pages));
        for page in 0..pages {
            let bytes = [filled(page); 4096];
            let offset = Slot(page).offset().expect("fits");
            file.write_all_at(&bytes, offset).expect("writes");
            builder.data(PageNo(page), Slot(page), Checksum::of(&bytes));
        }
        builder.finish(&file).expect("a layer");
        let layer = Layer::open(file).expect("a layer");
        Image::new(Arc::new(layer), None).expect("an image")
    }

    #[test]
    fn likeness_is_the_share_of_equal_pages() {
        let print = Fingerprint::of(&image(1000, |_| 1));
        assert_eq!(print.likeness(&image(1000, |_| 1)), Similarity(1000));
        assert_eq!(print.likeness(&image(1000, |_| 2)), Similarity(0));
        let half = print.likeness(&image(1000, |page| if page < 500 { 1 } else { 2 }));
        assert!((480..=520).contains(&half.0), "{half:?}");
    }

    #[test]
    fn image_of_nothing_is_like_none() {
        let none = Fingerprint::of(&image(0, |_| 1));
        assert_eq!(none.likeness(&image(10, |_| 1)), Similarity(0));
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let print = Arc::new(Fingerprint::of(&image(1, |_| 1)));
        let mut memory = Memory::default();
        for n in 0..REMEMBERED as u64 + 10 {
            let (first, pages) = (PageNo(n), PageCount(1));
            memory.remember(Arc::clone(&print), vec![Run { first, pages }]);
        }
        memory.remember(print, Vec::new());
        let numbers: Vec<u64> = memory.fingerprints().map(|(number, _)| number).collect();
        assert_eq!(numbers, (10..REMEMBERED as u64 + 10).collect::<Vec<_>>());
        let of = |number| Some(memory.working_set(number)?[0].first.0);
        assert_eq!(
            [of(9), of(10), of(73), of(74)],
            [None, Some(10), Some(73), None]
        );
    }
}
