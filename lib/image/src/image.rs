//! A layer over its parent, over its parent's parent, …: a whole image.

use crate::index::Answer;
use crate::{ImageError, Layer, Lineage};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::sync::Arc;

/// Most layers one image may have. A page the topmost layers know nothing of
/// costs one search in each.
pub const MAX_LAYERS: usize = 1024;

/// An image that can be read. Cheap to clone; layers are shared with the images
/// above and below, and closed with the last image that needs them.
#[derive(Clone, Debug)]
pub struct Image {
    /// The topmost first. Never empty.
    layers: Vec<Arc<Layer>>,
    lineage: Lineage,
    pages: PageCount,
}

impl Image {
    /// The image that `layer` makes over `parent`, which must be the one it
    /// names. It is as large as `layer` says; what a larger parent has beyond
    /// is cut off, and beyond a smaller one is zero.
    pub fn new(layer: Arc<Layer>, parent: Option<&Self>) -> Result<Self, ImageError> {
        let (lineage, pages) = (layer.lineage(), layer.pages());
        let got = parent.map(|parent| parent.lineage.image);
        if lineage.parent != got {
            return Err(ImageError::WrongParent {
                wants: lineage.parent,
                got,
            });
        }
        let mut layers = vec![layer];
        layers.extend(
            parent
                .iter()
                .flat_map(|parent| parent.layers.iter().cloned()),
        );
        if layers.len() > MAX_LAYERS {
            return Err(ImageError::TooDeep { max: MAX_LAYERS });
        }
        Ok(Self {
            layers,
            lineage,
            pages,
        })
    }

    /// Which image it is, and over which it lies.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Its size.
    pub fn pages(&self) -> PageCount {
        self.pages
    }

    /// Layers a read may have to look through.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Pages of data its own layer holds.
    pub fn own_pages(&self) -> PageCount {
        self.layers
            .first()
            .map_or(PageCount(0), |layer| layer.data_pages())
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
            .is_none_or(|end| end.0 > self.pages.0)
        {
            return Err(ImageError::OutOfRange {
                first,
                pages: count,
                size: self.pages,
            });
        }
        let (mut page, mut left) = (first, pages);
        while !left.is_empty() {
            let (source, run) = self.find(page, PageCount(left.len() as u64));
            // A run is never longer than what was asked for, so it fits.
            let len = usize::try_from(run.0).unwrap_or(left.len());
            let (now, later) = left.split_at_mut(len);
            match source {
                Source::Zero => now.as_flattened_mut().fill(0),
                Source::Data {
                    layer,
                    answer: (slot, checksums),
                } => {
                    layer.read(page, slot, checksums, now.as_flattened_mut())?;
                }
            }
            page.0 += run.0;
            left = later;
        }
        Ok(())
    }

    /// Where `page` comes from, and for how many pages from it on, at most
    /// `max`, it is the same place.
    fn find(&self, page: PageNo, max: PageCount) -> (Source<'_>, PageCount) {
        let mut run = max;
        for layer in &self.layers {
            let (answer, same) = layer.answer(page, run);
            run = same;
            match answer {
                Answer::Absent => {}
                Answer::Zero => return (Source::Zero, run),
                Answer::Data { slot, checksums } => {
                    return (
                        Source::Data {
                            layer,
                            answer: (slot, checksums),
                        },
                        run,
                    );
                }
            }
        }
        (Source::Zero, run)
    }
}

/// Where pages come from.
enum Source<'a> {
    Zero,
    Data {
        layer: &'a Layer,
        answer: (crate::Slot, &'a [crate::Checksum]),
    },
}
