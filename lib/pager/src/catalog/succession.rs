//! State that one pager's catalog leaves to the next, and the taking up of it.

use super::entry::{Entry, Named, Ready, State};
use super::{Catalog, FIRST, Node};
use crate::journal::{Kept, KeptState, LayerNo};
use forkyard_image::{Image, Layer};
use std::sync::Arc;
use std::time::Instant;

impl<W> Catalog<W> {
    /// One that goes on where another has ended: numbers from `next` on are free.
    pub fn after(next: u64) -> Self {
        Self {
            next: next.max(FIRST),
            ..Self::new()
        }
    }

    /// Puts an image back that another pager had.
    pub fn restore(&mut self, node: Node, kept: Kept, image: Option<Image>, now: Instant) {
        let state = match (kept.state, image) {
            (KeptState::Promised, _) => State::Promised {
                waiting: Vec::new(),
            },
            (KeptState::Failed, _) | (KeptState::Ready { .. }, None) => State::Failed,
            (
                KeptState::Ready {
                    parent, published, ..
                },
                Some(image),
            ) => {
                let ready = Ready::new(image, parent, now);
                State::Ready(Box::new(Ready { published, ..ready }))
            }
        };
        let mut entry = Entry::new(kept.image, kept.pages, state);
        entry.files = kept.files;
        if kept.retired {
            entry.named = Named::Retired;
        } else {
            self.names.insert(kept.image, node);
        }
        self.entries.insert(node, entry);
    }

    /// Returns the state of an image that another pager needs; `None` if it is
    /// gone.
    pub fn kept(&self, node: Node, number: impl Fn(&Arc<Layer>) -> LayerNo) -> Option<Kept> {
        let entry = self.entries.get(&node)?;
        let state = match &entry.state {
            State::Promised { .. } => KeptState::Promised,
            // What has come of it is lost with us: later reads must not wait.
            State::Arriving | State::Failed => KeptState::Failed,
            State::Ready(ready) => KeptState::Ready {
                parent: ready.parent,
                published: ready.published,
                layers: ready.image.layers().iter().map(number).collect(),
            },
        };
        Some(Kept {
            image: entry.image,
            pages: entry.pages,
            retired: entry.named == Named::Retired,
            files: entry.files,
            state,
        })
    }

    /// Every image there is, with a name or without.
    pub fn nodes(&self) -> Vec<Node> {
        self.entries.keys().copied().collect()
    }

    /// Returns the number of them.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The highest number given so far.
    pub fn last(&self) -> u64 {
        self.next - 1
    }
}
