//! Images that come from another host as what they differ in from one that is here.

use super::arrivals::Below;
use crate::PagerRefusal;
use crate::protocol::Over;
use crate::service::Service;
use forkyard_transfer::Run;
use forkyard_types::{ImageId, PageCount, PageNo};

impl Service {
    /// Returns the pages of an image that read otherwise than another's; both must be all here.
    /// Takes time for each page that was written since.
    pub fn changes(&self, image: ImageId, since: ImageId) -> Result<Vec<Run>, PagerRefusal> {
        let (image, since) = {
            let catalog = self.catalog();
            (catalog.offered(image)?.1, catalog.offered(since)?.1)
        };
        Ok(stretches(image.changes_since(&since)))
    }

    /// Finds the image that one of so many pages comes over.
    pub(super) fn below(&self, pages: PageCount, over: &Over) -> Result<Below, PagerRefusal> {
        let (_, image, _) = self.catalog().offered(over.image)?;
        match image.pages() == pages {
            true => Ok(Below::new(image, pages, &over.changed)),
            false => Err(PagerRefusal::WrongSize {
                promised: image.pages(),
                got: pages,
            }),
        }
    }
}

/// Pages in order, as stretches.
pub(super) fn stretches(pages: impl Iterator<Item = PageNo>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.first.0 + last.pages.0 == page.0 => last.pages.0 += 1,
            Some(_) | None => runs.push(Run::one(page)),
        }
    }
    runs
}
