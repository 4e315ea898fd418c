//! A layer over its parent, over its parent's parent, …: a whole image.

use crate::format::Content;
use crate::index::Place;
use crate::table::{Entry, Table};
use crate::{Checksum, ImageError, Layer, Lineage};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// An image that can be read. Cheap to clone; layers are shared with the images
/// above and below, and closed with the last image that needs them.
///
/// A page is found at once, however many layers there are.
#[derive(Clone, Debug)]
pub struct Image(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The bottom first. Never empty.
    layers: Vec<Arc<Layer>>,
    table: Table,
    lineage: Lineage,
    pages: PageCount,
    shares: OnceLock<Vec<PageCount>>,
}

impl Image {
    /// The image that `layer` makes over `parent`, which must be the one it
    /// names. It is as large as `layer` says; what a larger parent has beyond
    /// is cut off, and beyond a smaller one is zero.
    pub fn new(layer: Arc<Layer>, parent: Option<&Self>) -> Result<Self, ImageError> {
        let (lineage, pages) = (layer.lineage(), layer.pages());
        let got = parent.map(|parent| parent.0.lineage.image);
        if lineage.parent != got {
            return Err(ImageError::WrongParent {
                wants: lineage.parent,
                got,
            });
        }
        let below = parent.map_or(&[][..], Self::layers);
        let number = u32::try_from(below.len()).unwrap_or(u32::MAX);
        let mut table = parent.map(|parent| parent.0.table.clone());
        let table = table.get_or_insert_default();
        if parent.is_some_and(|parent| parent.0.pages > pages) {
            table.truncate(pages);
        }
        for (extent, start) in layer.index().numbered() {
            for (i, page) in (0..extent.pages.0).zip(extent.first.0..) {
                let entry = match extent.content {
                    Content::Zero | Content::Unknown(_) => Entry::Zero,
                    Content::Data(_) | Content::Packed(_) => Entry::Data {
                        layer: number,
                        // Checked when the index was opened.
                        nth: start.saturating_add(u32::try_from(i).unwrap_or(u32::MAX)),
                    },
                    Content::Borrowed(from) => {
                        let from = PageNo(from.0.saturating_add(i));
                        let lender = parent.filter(|parent| from.0 < parent.0.pages.0);
                        let missing = ImageError::Borrowed {
                            image: lineage.image,
                            page: PageNo(page),
                            from,
                        };
                        lender.ok_or(missing)?.0.table.get(from)
                    }
                };
                table.set(PageNo(page), entry);
            }
        }
        let mut layers = below.to_vec();
        layers.push(layer);
        Ok(Self(Arc::new(Inner {
            layers,
            table: std::mem::take(table),
            lineage,
            pages,
            shares: OnceLock::new(),
        })))
    }

    /// Returns the image that it is, and the one that its topmost layer lies over.
    pub fn lineage(&self) -> Lineage {
        self.0.lineage
    }

    /// Returns the size.
    pub fn pages(&self) -> PageCount {
        self.0.pages
    }

    /// Pages of data of which `other` has the content somewhere, by their checksums.
    pub fn pages_in(&self, other: &Self) -> PageCount {
        let data = other.table().data();
        let theirs: HashSet<Checksum> = data.filter_map(|(page, _)| other.checksum(page)).collect();
        let own = self.table().data();
        let in_other = own
            .filter_map(|(page, _)| self.checksum(page))
            .filter(|checksum| theirs.contains(checksum));
        PageCount(in_other.count() as u64)
    }

    /// Tells whether both are one and the same, not only alike.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the layers, the bottom first. Never empty.
    pub fn layers(&self) -> &[Arc<Layer>] {
        &self.0.layers
    }

    /// The image that its bottom layers make, so many of them; `None` for none,
    /// or for more than there are.
    pub fn prefix(&self, layers: usize) -> Option<Self> {
        if layers == self.0.layers.len() {
            return Some(self.clone());
        }
        let layers = self.0.layers.get(..layers)?;
        layers.iter().try_fold(None, |below: Option<Self>, layer| {
            // Cannot fail: it lay there before.
            let image = Self::new(Arc::clone(layer), below.as_ref()).ok()?;
            Some(Some(image))
        })?
    }

    /// Pages of data its topmost layer holds.
    pub fn own_pages(&self) -> PageCount {
        let top = self.0.layers.last();
        top.map_or(PageCount(0), |layer| layer.data_pages())
    }

    /// For each layer, the bottom first, how many pages of this image it holds.
    pub fn shares(&self) -> &[PageCount] {
        self.0.shares.get_or_init(|| {
            let mut shares = vec![PageCount(0); self.0.layers.len()];
            for (_, entry) in self.0.table.data() {
                if let Entry::Data { layer, .. } = entry
                    && let Ok(number) = usize::try_from(layer)
                    && let Some(share) = shares.get_mut(number)
                {
                    share.0 += 1;
                }
            }
            shares
        })
    }

    /// Pages that are not known to be zero.
    pub fn data_pages(&self) -> PageCount {
        PageCount(self.shares().iter().map(|share| share.0).sum())
    }

    /// Some of its pages of data, about `wanted`, spread evenly, with their
    /// checksums.
    pub fn sample(&self, wanted: usize) -> Vec<(PageNo, Checksum)> {
        let all: Vec<_> = self.0.table.data().collect();
        let step = all.len().div_ceil(wanted.max(1)).max(1);
        let some = all.into_iter().step_by(step);
        some.filter_map(|(page, entry)| Some((page, self.checksum_of(entry)?)))
            .collect()
    }

    /// The checksum of a page of data; `None` where it is zero, or past the end.
    pub fn checksum(&self, page: PageNo) -> Option<Checksum> {
        self.checksum_of(self.0.table.get(page))
    }

    fn checksum_of(&self, entry: Entry) -> Option<Checksum> {
        match entry {
            Entry::Zero => None,
            Entry::Data { layer, nth } => self.layer(layer)?.index().checksum(nth),
        }
    }

    /// Tells whether a page is stored compressed.
    pub fn is_packed(&self, page: PageNo) -> bool {
        match self.0.table.get(page) {
            Entry::Zero => false,
            Entry::Data { layer, nth } => self
                .layer(layer)
                .and_then(|layer| layer.index().place(nth))
                .is_some_and(|(place, _)| matches!(place, Place::Packed(_))),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.0.table
    }

    pub(crate) fn layer(&self, number: u32) -> Option<&Arc<Layer>> {
        self.0.layers.get(usize::try_from(number).ok()?)
    }

    /// Reads whole pages, from `first` on, until `out` is full. Pages that
    /// follow each other in a file are read at once; each is checked. After an
    /// error, what `out` holds is unspecified and must not be used.
    pub fn read(&self, first: PageNo, out: &mut [u8]) -> Result<(), ImageError> {
        let (pages, rest) = out.as_chunks_mut::<PAGE_SIZE>();
        let count = PageCount(pages.len() as u64);
        if !rest.is_empty() {
            let bytes = pages.len() * PAGE_SIZE + rest.len();
            return Err(ImageError::NotPages { bytes });
        }
        if first
            .checked_add(count)
            .is_none_or(|end| end.0 > self.0.pages.0)
        {
            return Err(ImageError::OutOfRange {
                first,
                pages: count,
                size: self.0.pages,
            });
        }
        let (mut page, mut left) = (first, pages);
        while !left.is_empty() {
            let entry = self.0.table.get(page);
            let run = self.run(page, entry, left.len());
            let done = match entry {
                Entry::Zero => {
                    left[..run].as_flattened_mut().fill(0);
                    run
                }
                Entry::Data { layer, nth } => {
                    let image = self.0.lineage.image;
                    let layer = self
                        .layer(layer)
                        .ok_or(ImageError::Damaged { image, page })?;
                    layer.read(page, nth, &mut left[..run])?
                }
            };
            page.0 += done as u64;
            left = &mut left[done..];
        }
        Ok(())
    }

    /// Counts those of `pages` pages from `first` on that hold data; those
    /// beyond the end do not.
    pub fn data_among(&self, first: PageNo, pages: PageCount) -> PageCount {
        let end = first.0.saturating_add(pages.0).min(self.0.pages.0);
        let data = (first.0..end).filter(|page| self.0.table.get(PageNo(*page)) != Entry::Zero);
        PageCount(data.count() as u64)
    }

    /// Counts the pages from `page` on, at most `max`, that are the same
    /// layer's, one after the other, or zero.
    fn run(&self, page: PageNo, entry: Entry, max: usize) -> usize {
        let next = |i: usize| match entry {
            Entry::Zero => Some(Entry::Zero),
            Entry::Data { layer, nth } => {
                let nth = nth.checked_add(u32::try_from(i).ok()?)?;
                Some(Entry::Data { layer, nth })
            }
        };
        let same = |i: &usize| next(*i) == Some(self.0.table.get(PageNo(page.0 + *i as u64)));
        (1..max).take_while(same).last().map_or(1, |last| last + 1)
    }
}
