//! An image as other hosts are served from it.

use forkyard_image::Image;
use forkyard_transfer::{Content, Page, PageSource};
use forkyard_types::{PageCount, PageNo};

/// Most zero pages said at once.
const MOST_ZERO: u64 = 4096;

/// Keeps the image's layers, as an open file does.
#[derive(Debug)]
pub(super) struct Offered(pub Image);

impl PageSource for Offered {
    fn read(&mut self, page: PageNo, out: &mut Page) -> Content {
        if self.0.checksum(page).is_none() {
            let most = self.0.pages().0.saturating_sub(page.0).min(MOST_ZERO);
            let zero = |n: &u64| self.0.checksum(PageNo(page.0 + n)).is_none();
            let pages = (0..most).take_while(zero).count() as u64;
            return Content::Zero(PageCount(pages.max(1)));
        }
        match self.0.read(page, out) {
            Ok(()) => Content::Data,
            Err(error) => {
                let image = self.0.lineage().image;
                let error: &dyn std::error::Error = &error;
                tracing::error!(%image, %page, error, "cannot serve a page to another host");
                Content::Gone
            }
        }
    }
}
