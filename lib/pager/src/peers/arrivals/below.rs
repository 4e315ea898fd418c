//! An image that is here, and of which another that is on its way differs in some pages.

use super::Arrivals;
use forkyard_image::Image;
use forkyard_transfer::{PageSet, Run};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use std::io;

/// See the module.
#[derive(Debug)]
pub(crate) struct Below {
    image: Image,
    changed: PageSet,
}

impl Below {
    /// Describes an image of so many pages that differs from `image` in these.
    pub fn new(image: Image, pages: PageCount, changed: &[Run]) -> Self {
        let mut set = PageSet::new(pages);
        for page in changed
            .iter()
            .filter_map(|run| run.within(pages))
            .flat_map(Run::iter)
        {
            set.insert(page);
        }
        Self {
            image,
            changed: set,
        }
    }

    /// Returns the id, as a layer over it gives it.
    pub fn id(&self) -> ImageId {
        self.image.lineage().image
    }

    /// The image that is here.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Pages that come, in order.
    pub fn changed(&self) -> impl Iterator<Item = PageNo> {
        let pages = (0..self.changed.size().0).map(PageNo);
        pages.filter(|page| self.changed.contains(*page))
    }

    /// Pages that come.
    pub fn changes(&self) -> &PageSet {
        &self.changed
    }

    /// Reads pages that do not come where they belong in `out`.
    pub fn fill(&self, first: PageNo, out: &mut [u8]) -> io::Result<()> {
        for (page, bytes) in (first.0..).map(PageNo).zip(out.chunks_mut(PAGE_SIZE)) {
            if !self.changed.contains(page) {
                self.image.read(page, bytes).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

impl<W> Arrivals<W> {
    /// Has all pages that do not come read as those of an image that is here.
    pub fn over(mut self, below: Below) -> Self {
        let mut state = self.state();
        for page in (0..self.pages.0).map(PageNo) {
            if !below.changed.contains(page) {
                state.have.insert(page);
            }
        }
        drop(state);
        self.below = Some(below);
        self
    }

    /// The image that it lies over, if it lies over one.
    pub fn below(&self) -> Option<&Below> {
        self.below.as_ref()
    }

    /// Returns true if everything is here.
    pub fn is_whole(&self) -> bool {
        self.state().have.is_full()
    }
}
