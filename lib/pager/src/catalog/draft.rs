//! Building an image before the catalog has it.
//!
//! Building costs time for each of its pages, and every fault of every VM takes the catalog's
//! lock. So it takes three steps, of which only the short ones hold that lock:
//!
//! ```text
//! Catalog::base (lock) -> Draft::new (no lock) -> Catalog::publish (lock)
//!      ^------- the parent was written anew meanwhile: Stale ----'
//! ```
//!
//! A draft that is dropped leaves nothing behind. A draft whose parent was retired, or whose
//! name was taken meanwhile, is refused as if it had come later.

use super::entry::{Ready, State};
use super::{Catalog, Node, bad_layer};
use crate::PagerRefusal;
use crate::similar::{Fingerprint, Similarity};
use crate::touched::Run;
use forkyard_image::{Image, Layer, Lineage};
use forkyard_types::PageCount;
use std::sync::Arc;
use std::time::Instant;

/// The part of the catalog that a new image depends on.
#[derive(Debug)]
pub(crate) struct Base {
    parent: Option<Image>,
    candidates: Vec<(Candidate, Arc<Fingerprint>)>,
}

/// An image whose working set may fit another.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// One that is gone, by its number among those remembered.
    Past(u64),
    Living(Node),
}

/// An image that can be read, and is not in the catalog yet.
#[derive(Debug)]
pub(crate) struct Draft {
    lineage: Lineage,
    parent: Option<Image>,
    ready: Ready,
    /// Similar images, the most similar last.
    similar: Vec<Candidate>,
}

impl Draft {
    /// Builds the image that `layer` makes. Takes time for each of its pages.
    pub fn new(layer: Arc<Layer>, base: Base, now: Instant) -> Result<Self, PagerRefusal> {
        let lineage = layer.lineage();
        let image = Image::new(layer, base.parent.as_ref()).map_err(|error| bad_layer(&error))?;
        let mut similar: Vec<_> = base
            .candidates
            .into_iter()
            .map(|(candidate, fingerprint)| (fingerprint.likeness(&image), candidate))
            .filter(|(likeness, _)| *likeness >= Similarity::ALIKE)
            .collect();
        similar.sort_by_key(|(likeness, _)| *likeness);
        Ok(Self {
            lineage,
            parent: base.parent,
            ready: Ready::new(image, lineage.parent, now),
            similar: similar
                .into_iter()
                .map(|(_, candidate)| candidate)
                .collect(),
        })
    }

    pub fn pages(&self) -> PageCount {
        self.ready.image.pages()
    }

    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    pub(super) fn into_ready(self) -> Ready {
        self.ready
    }
}

/// State of a draft's parent in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Fresh,
    /// The parent was rewritten: the draft would keep the old layers in memory.
    Stale,
}

impl<W> Catalog<W> {
    /// Collects what an image of this lineage and size is built on, if it may be published.
    pub fn base(&self, lineage: Lineage, pages: PageCount) -> Result<Base, PagerRefusal> {
        self.may_publish(lineage.image, pages)?;
        let parent = self.parent(lineage)?.cloned();
        let past = self
            .memory
            .fingerprints()
            .map(|(number, print)| (Candidate::Past(number), Arc::clone(print)));
        let living = self.entries.iter().filter_map(|(node, entry)| {
            let ready = entry.ready().filter(|_| entry.has_working_set())?;
            Some((Candidate::Living(*node), Arc::clone(&ready.fingerprint)))
        });
        Ok(Base {
            parent,
            candidates: past.chain(living).collect(),
        })
    }

    /// Refuses an image that is neither new nor promised in this size.
    pub(super) fn may_publish(
        &self,
        image: forkyard_types::ImageId,
        pages: PageCount,
    ) -> Result<(), PagerRefusal> {
        let node = self.names.get(&image);
        let Some(entry) = node.and_then(|node| self.entries.get(node)) else {
            return Ok(());
        };
        match (&entry.state, entry.pages) {
            (State::Promised { .. }, promised) if promised == pages => Ok(()),
            (State::Promised { .. }, promised) => Err(PagerRefusal::WrongSize {
                promised,
                got: pages,
            }),
            (State::Ready(_) | State::Arriving, _) => Err(PagerRefusal::AlreadyExists { image }),
            (State::Failed, _) => Err(PagerRefusal::HasFailed { image }),
        }
    }

    fn parent(&self, lineage: Lineage) -> Result<Option<&Image>, PagerRefusal> {
        lineage.parent.map(|parent| self.ready(parent)).transpose()
    }

    pub(super) fn freshness(&self, draft: &Draft) -> Result<Freshness, PagerRefusal> {
        let now = self.parent(draft.lineage)?;
        let same = match (now, &draft.parent) {
            (Some(now), Some(then)) => now.is(then),
            (now, then) => now.is_none() && then.is_none(),
        };
        Ok(match same {
            true => Freshness::Fresh,
            false => Freshness::Stale,
        })
    }

    /// Predicts the working set of a draft's clones: that of the most similar image, or else of
    /// its parent.
    pub(super) fn working_set_for(&self, draft: &Draft) -> Vec<Run> {
        let working_set = |candidate: &Candidate| match candidate {
            Candidate::Past(number) => self.memory.working_set(*number).map(<[Run]>::to_vec),
            Candidate::Living(node) => Some(self.entries.get(node)?.working_set()),
        };
        let wanted = |runs: &Vec<Run>| !runs.is_empty();
        let similar = draft
            .similar
            .iter()
            .rev()
            .filter_map(working_set)
            .find(wanted);
        let parent = || {
            let node = self.names.get(&draft.lineage.parent?)?;
            Some(self.entries.get(node)?.working_set())
        };
        let size = draft.pages();
        let inside = similar.or_else(parent).into_iter().flatten();
        inside.filter_map(|run| run.within(size)).collect()
    }
}
