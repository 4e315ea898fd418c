//! An image as other hosts are served from it.

use super::Heard;
use crate::catalog::Node;
use forkyard_image::Image;
use forkyard_transfer::{Content, Page, PageSource};
use forkyard_types::{PageCount, PageNo};
use std::sync::mpsc::Sender;

/// Most zero pages said at once.
const MOST_ZERO: u64 = 4096;

/// Keeps the image's layers, as an open file does.
#[derive(Debug)]
pub(super) struct Offered {
    pub node: Node,
    pub image: Image,
    /// Hears what clones elsewhere wait for: those made later will want it, too.
    pub wanted: Sender<Heard>,
}

impl PageSource for Offered {
    fn waited_for(&mut self, page: PageNo) {
        // Fails only if the thread is gone, and the pager with it.
        let _ = self.wanted.send(Heard::Wanted(self.node, page));
    }

    fn read(&mut self, page: PageNo, out: &mut Page) -> Content {
        let image = &self.image;
        if image.checksum(page).is_none() {
            let most = image.pages().0.saturating_sub(page.0).min(MOST_ZERO);
            let zero = |n: &u64| image.checksum(PageNo(page.0 + n)).is_none();
            let pages = (0..most).take_while(zero).count() as u64;
            return Content::Zero(PageCount(pages.max(1)));
        }
        match image.read(page, out) {
            Ok(()) => Content::Data,
            Err(error) => {
                let image = image.lineage().image;
                let error: &dyn std::error::Error = &error;
                tracing::error!(%image, %page, error, "cannot serve a page to another host");
                Content::Gone
            }
        }
    }
}
