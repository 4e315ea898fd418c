//! Sources of a server's pages, and sinks of a client's.

use crate::codec::Page;
use crate::pages::Run;
use crate::receiver::Loss;
use forkyard_types::{PageCount, PageNo};

/// Content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    /// Data.
    Data,
    /// Zero, from this page on for so many pages: at least one. To say more
    /// than one saves clients from asking.
    Zero(PageCount),
    /// The page cannot be read, and will not be.
    Gone,
}

/// The pages of an image, for a server. They never change.
pub trait PageSource: Send {
    /// Reads `page`, inside the image, into `out`. May block, for as long as a
    /// local read does: nothing else is sent meanwhile.
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent;

    /// The page that is read next is one that a client waits for: neither pushed, nor
    /// asked for in advance.
    fn waited_for(&mut self, page: PageNo) {
        let _ = page;
    }
}

/// Receiver of the pages that come to a client. It is called on the client's own
/// threads, which wait for it, and must not call the client.
pub trait PageSink {
    /// A page that was not there before: asked for, or in advance. It may be kept back
    /// until the next [`flush`](Self::flush).
    fn page(&mut self, page: PageNo, bytes: &Page);

    /// Pages that are zero. Some of them may have been said before. They may be kept
    /// back, too.
    fn zeros(&mut self, run: Run);

    /// Puts pages that came where they belong: after each batch of packets, and after
    /// a packet with a page that a reader waits for.
    fn flush(&mut self) {}

    /// The server cannot read this page, and will not. A read that waits for it is told
    /// in any case.
    fn gone(&mut self, page: PageNo) {
        let _ = page;
    }

    /// No page will come any more. Reads that wait are told in any case.
    fn lost(&mut self, why: Loss) {
        let _ = why;
    }
}

impl<T: PageSource + ?Sized> PageSource for Box<T> {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        (**self).read(page, out)
    }

    fn waited_for(&mut self, page: PageNo) {
        (**self).waited_for(page);
    }
}
