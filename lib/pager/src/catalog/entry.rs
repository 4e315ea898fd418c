//! One image of the catalog.

use super::MOST_PUSHED;
use crate::similar::Fingerprint;
use crate::streams::Streams;
use crate::touched::{Holds, Run, Touched, joined};
use forkyard_image::{Holdings, Image};
use forkyard_types::{ImageId, ImageUse, ImageView, PageCount};
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Entry<W> {
    pub image: ImageId,
    pub pages: PageCount,
    pub named: Named,
    pub files: u32,
    pub state: State<W>,
    pub uses: Uses,
}

/// State of the image's id: it can be found by it, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Yes,
    Retired,
}

#[derive(Debug)]
pub(super) enum State<W> {
    Promised {
        waiting: Vec<W>,
    },
    /// The pages come from another host; reads wait there.
    Arriving,
    Ready(Box<Ready>),
    Failed,
}

/// An image that can be read.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(super) image: Image,
    /// The image it was made from, whatever its layer lies over by now.
    pub(super) parent: Option<ImageId>,
    /// Pages of data its layer had when it came.
    pub(super) published: PageCount,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) since: Instant,
}

impl Ready {
    /// Describes an image made from `parent`. Takes time for each of its pages: not to be
    /// called with the catalog locked.
    pub fn new(image: Image, parent: Option<ImageId>, now: Instant) -> Self {
        // Counted here, for `usage` is called with the catalog locked.
        image.shares();
        Self {
            parent,
            published: image.own_pages(),
            fingerprint: Arc::new(Fingerprint::of(&image)),
            since: now,
            image,
        }
    }
}

/// Work that has been done with an image.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub requests: u64,
    pub served: PageCount,
    pub data: PageCount,
    pub pushed: PageCount,
    pub touched: Touched,
    pub streams: Streams,
    /// Pages its clones are expected to want.
    pub plan: Vec<Run>,
    pub pushed_at: Option<Instant>,
    pub last: Option<Instant>,
}

impl<W> Entry<W> {
    pub fn new(image: ImageId, pages: PageCount, state: State<W>) -> Self {
        Self {
            image,
            pages,
            named: Named::Yes,
            files: 0,
            state,
            uses: Uses::default(),
        }
    }

    pub fn ready(&self) -> Option<&Ready> {
        match &self.state {
            State::Ready(ready) => Some(ready),
            State::Promised { .. } | State::Arriving | State::Failed => None,
        }
    }

    /// Pages of data among these; `None` if that is unknown here.
    pub fn data(&self, run: Run) -> Option<PageCount> {
        let image = &self.ready()?.image;
        Some(image.data_among(run.first, run.pages))
    }

    /// Tells whether these are worth giving in advance.
    pub fn holds(&self, run: Run) -> Holds {
        match self.data(run) {
            Some(PageCount(0)) => Holds::Nothing,
            Some(_) | None => Holds::Data,
        }
    }

    /// Returns the pages its clones wanted, or are expected to.
    pub fn working_set(&self) -> Vec<Run> {
        joined(&self.uses.plan, self.uses.touched.order(), MOST_PUSHED)
    }

    /// Returns true if [`working_set`](Self::working_set) is not empty.
    pub fn has_working_set(&self) -> bool {
        !self.uses.plan.is_empty() || !self.uses.touched.order().is_empty()
    }

    pub fn usage(&self) -> ImageUse {
        let ready = self.ready();
        let image = ready.map(|ready| &ready.image);
        let layers = image.map_or(&[][..], Image::layers);
        let holdings = layers
            .last()
            .map_or(Holdings::default(), |top| top.holdings());
        let data = image.map_or(PageCount(0), Image::data_pages);
        let own = image.and_then(|image| image.shares().last().copied());
        ImageUse {
            pages: ready.map_or(PageCount(0), |ready| ready.published),
            layers: u32::try_from(layers.len()).unwrap_or(u32::MAX),
            pages_served: self.uses.served,
            data_served: self.uses.data,
            requests: self.uses.requests,
            users: self.files,
            data,
            shared: PageCount(data.0 - own.unwrap_or_default().0),
            plain: holdings.plain,
            packed: holdings.packed,
            packed_bytes: holdings.packed_bytes,
            deduplicated: holdings.shared,
            touched: self.uses.touched.pages(),
            prefetched: self.uses.pushed,
        }
    }

    pub fn view(&self) -> ImageView {
        ImageView {
            id: self.image,
            parent: self.ready().and_then(|ready| ready.parent),
            usage: self.usage(),
        }
    }
}
