//! An image as other hosts are served from it.

use super::PeerEvent;
use crate::catalog::Node;
use forkyard_image::Image;
use forkyard_transfer::{Page, PageContent, PageSource};
use forkyard_types::{PageCount, PageNo};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

/// Most zero pages said at once.
const MOST_ZERO: u64 = 4096;

/// Most pages that clones elsewhere wait for and that are still to be noted.
const MOST_WANTED: usize = 4096;

/// Pages that clones elsewhere wait for: those made later will want them, too. What comes faster
/// than it can be noted is left out.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    pub heard: Sender<PeerEvent>,
    pub waiting: Arc<AtomicUsize>,
}

impl Wishes {
    fn note(&self, node: Node, page: PageNo) {
        if self.waiting.load(Ordering::Relaxed) >= MOST_WANTED {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Fails only if the thread is gone, and the pager with it.
        let _ = self.heard.send(PeerEvent::Wanted(node, page));
    }
}

/// Keeps the image's layers, as an open file does.
#[derive(Debug)]
pub(super) struct Offered {
    pub node: Node,
    pub image: Image,
    pub wanted: Wishes,
}

impl PageSource for Offered {
    fn waited_for(&mut self, page: PageNo) {
        self.wanted.note(self.node, page);
    }

    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        let image = &self.image;
        if image.checksum(page).is_none() {
            let most = image.pages().0.saturating_sub(page.0).min(MOST_ZERO);
            let zero = |n: &u64| image.checksum(PageNo(page.0 + n)).is_none();
            let pages = (0..most).take_while(zero).count() as u64;
            return PageContent::Zero(PageCount(pages.max(1)));
        }
        match image.read(page, out) {
            Ok(()) => PageContent::Data,
            Err(error) => {
                let image = image.lineage().image;
                let error: &dyn std::error::Error = &error;
                tracing::error!(%image, %page, error, "cannot serve a page to another host");
                PageContent::Gone
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_is_wanted_faster_than_it_is_noted_grows_nothing() {
        let (heard, hears) = channel();
        let wishes = Wishes {
            heard,
            waiting: Arc::default(),
        };
        for page in 0..3 * MOST_WANTED as u64 {
            wishes.note(Node(1), PageNo(page));
        }
        assert_eq!(hears.try_iter().count(), MOST_WANTED);
    }
}
