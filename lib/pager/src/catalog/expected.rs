//! Reads, and the reads that are expected next.

use super::{Catalog, Node};
use crate::touched::{Asked, Run};
use forkyard_image::Image;
use forkyard_types::{ImageId, PageCount, PageNo};
use std::time::{Duration, Instant};

/// Pause before pages that the kernel loses are pushed again.
const PUSH_PAUSE: Duration = Duration::from_secs(1);

/// Pages that the kernel should have before it asks.
#[derive(Debug)]
pub(crate) struct Push {
    pub node: Node,
    pub image: Image,
    pub runs: Vec<Run>,
}

impl Push {
    /// First this and then another of the same image.
    fn and(mut self, then: Self) -> Self {
        self.runs.extend(then.runs);
        self
    }
}

/// Expectations that follow from a read.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Pages the reader will want next, of an image that is on its way.
    pub next: Option<Run>,
    /// Pages the kernel should have, of an image that is there.
    pub push: Option<Push>,
}

impl<W> Catalog<W> {
    /// A read was answered with these pages.
    pub fn served(&mut self, node: Node, run: Run, now: Instant) -> Expected {
        let Some(entry) = self.entries.get_mut(&node) else {
            return Expected::default();
        };
        let image = entry.ready().map(|ready| ready.image.clone());
        let data = entry.data(run).unwrap_or_default();
        let step = entry.uses.streams.read(run);
        let used = step.used.map(|used| (used, entry.holds(used)));
        let holds = entry.holds(run);
        let uses = &mut entry.uses;
        uses.requests += 1;
        uses.served.0 += run.pages.0;
        uses.data.0 += data.0;
        uses.last = Some(now);
        if let Some((used, holds)) = used {
            uses.touched.used(used, holds);
        }
        let asked = uses.touched.read(run, holds);
        let next = step.next.and_then(|next| next.within(entry.pages));
        let due = match (asked, uses.pushed_at) {
            (Asked::First | Asked::Again, None) => true,
            (Asked::First, Some(_)) => false,
            (Asked::Again, Some(before)) => now.saturating_duration_since(before) > PUSH_PAUSE,
        };
        if let Some(image) = image {
            let runs: Vec<_> = next.into_iter().collect();
            let runs = uses.touched.missing(&runs);
            let next = (!runs.is_empty()).then_some(Push { node, image, runs });
            let unread = due.then(|| self.push(node, now)).flatten();
            return Expected {
                next: None,
                push: next.into_iter().chain(unread).reduce(Push::and),
            };
        }
        Expected { next, push: None }
    }

    /// Returns the pages clones here have touched of an image, in that order;
    /// `None` if it is not known.
    pub fn touched_order(&self, image: ImageId) -> Option<&[Run]> {
        let entry = self.entries.get(self.names.get(&image)?)?;
        Some(entry.uses.touched.order())
    }

    /// A clone on another host waits for a page.
    pub fn wanted_elsewhere(&mut self, node: Node, page: PageNo) {
        if let Some(entry) = self.entries.get_mut(&node) {
            let run = Run {
                first: page,
                pages: PageCount(1),
            };
            let holds = entry.holds(run);
            entry.uses.touched.used(run, holds);
        }
    }

    /// Returns the pages of a file that the kernel should have before it asks,
    /// if the file is open.
    pub fn push(&mut self, node: Node, now: Instant) -> Option<Push> {
        if !self.in_use(node) {
            return None;
        }
        let entry = self.entries.get_mut(&node)?;
        entry.uses.pushed_at = Some(now);
        let image = entry.ready()?.image.clone();
        let runs = entry.uses.touched.missing(&entry.working_set());
        (!runs.is_empty()).then_some(Push { node, image, runs })
    }

    /// The kernel has these pages now.
    pub fn pushed(&mut self, node: Node, run: Run) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.uses.touched.pushed(run);
            entry.uses.pushed.0 += run.pages.0;
        }
    }
}
