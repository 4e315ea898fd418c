//! Images, their uses, and the reads that wait for them.
//!
//! ```text
//! Promised --publish--> Ready <--arrived-- Arriving <--arrive-- Promised
//!     |  '--fail------> Failed <--fail-------'
//! (any) --retire--> nameless --last file closed--> forgotten
//! ```
//!
//! Decides, does nothing: reads come in as values of any type `W` and go out
//! again to the code that has to answer them; none is ever dropped here.

mod draft;
mod entry;
mod expected;
mod succession;

use crate::PagerRefusal;
use crate::similar::{Memory, Similarity};
use crate::touched::Run;
pub(crate) use draft::Draft;
use draft::Freshness;
pub(crate) use entry::Ready;
use entry::{Entry, Named, State};
pub(crate) use expected::Push;
use forkyard_image::Image;
use forkyard_types::{ImageId, ImageUse, ImageView, PageCount, PageNo};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Number of an image's file: never used twice, unlike a name that could be
/// retired and promised again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Node(pub u64);

/// The directory has number 1.
const FIRST: u64 = 2;
/// Most pages of a working set: 64 MiB.
const MOST_PUSHED: PageCount = PageCount(16_384);
#[derive(Debug)]
pub(crate) struct Catalog<W> {
    names: HashMap<ImageId, Node>,
    entries: HashMap<Node, Entry<W>>,
    next: u64,
    /// Summaries of images that are gone.
    memory: Memory,
}

/// Decision on a read.
#[derive(Debug)]
pub(crate) enum Verdict<W> {
    /// Answer it now, from this image.
    Serve(Image, W),
    /// The read is kept until the image is published or fails.
    Kept,
    /// The image is on its way from another host: the fetching side answers.
    Arriving(W),
    /// There is nothing to read: answer with an error.
    Refuse(W),
}

/// An image that has just become readable, and the reads that waited for it.
#[derive(Debug)]
pub(crate) struct Published<W> {
    pub node: Node,
    pub image: Image,
    pub waiting: Vec<W>,
}

/// An image that can be read.
#[derive(Debug)]
pub(crate) struct Readable {
    pub node: Node,
    pub image: Image,
    /// Time since the image was last read.
    pub quiet: Duration,
}

impl<W> Catalog<W> {
    pub fn new() -> Self {
        Self {
            names: HashMap::new(),
            entries: HashMap::new(),
            next: FIRST,
            memory: Memory::default(),
        }
    }

    /// An image of so many pages will come: its file exists from now on.
    pub fn promise(&mut self, image: ImageId, pages: PageCount) -> Result<Node, PagerRefusal> {
        if self.names.contains_key(&image) {
            return Err(PagerRefusal::AlreadyExists { image });
        }
        let waiting = Vec::new();
        Ok(self.insert(Entry::new(image, pages, State::Promised { waiting })))
    }

    /// An image of so many pages comes from another host, page by page. If it was promised, the
    /// reads that waited for it are to be made again.
    pub fn arrive(
        &mut self,
        image: ImageId,
        pages: PageCount,
    ) -> Result<(Node, Vec<W>), PagerRefusal> {
        let Some(node) = self.names.get(&image).copied() else {
            let node = self.insert(Entry::new(image, pages, State::Arriving));
            return Ok((node, Vec::new()));
        };
        let entry = self.named_mut(image)?;
        let State::Promised { waiting } = &mut entry.state else {
            return Err(PagerRefusal::AlreadyExists { image });
        };
        if entry.pages != pages {
            return Err(PagerRefusal::WrongSize {
                promised: entry.pages,
                got: pages,
            });
        }
        let waiting = std::mem::take(waiting);
        entry.state = State::Arriving;
        Ok((node, waiting))
    }

    /// All of an image has come. Nothing happens if it is not wanted any more.
    pub fn arrived(&mut self, node: Node, ready: Ready) {
        if let Some(entry) = self.entries.get_mut(&node)
            && matches!(entry.state, State::Arriving)
        {
            entry.state = State::Ready(Box::new(ready));
        }
    }

    fn insert(&mut self, entry: Entry<W>) -> Node {
        let node = Node(self.next);
        self.next += 1;
        self.names.insert(entry.image, node);
        self.entries.insert(node, entry);
        node
    }

    /// Makes a draft readable, promised before or not. [`None`] if its parent has been
    /// written anew since: it is to be built again, over that.
    pub fn publish(&mut self, draft: Draft) -> Result<Option<Published<W>>, PagerRefusal> {
        let (id, pages) = (draft.lineage().image, draft.pages());
        self.may_publish(id, pages)?;
        if self.freshness(&draft)? == Freshness::Stale {
            return Ok(None);
        }
        let plan = self.working_set_for(&draft);
        let ready = draft.into_ready();
        let image = ready.image.clone();
        let node = match self.names.get(&id) {
            Some(node) => *node,
            None => self.insert(Entry::new(id, pages, State::Failed)),
        };
        let mut waiting = Vec::new();
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.uses.plan = plan;
            let before = std::mem::replace(&mut entry.state, State::Ready(Box::new(ready)));
            if let State::Promised { waiting: reads } = before {
                waiting = reads;
            }
        }
        Ok(Some(Published {
            node,
            image,
            waiting,
        }))
    }

    /// An image that other hosts are to get, and what they will want first.
    pub fn offered(&self, image: ImageId) -> Result<(Node, Image, Vec<Run>), PagerRefusal> {
        let node = self.names.get(&image);
        let found = node.and_then(|node| Some((*node, self.entries.get(node)?)));
        let (node, entry) = found.ok_or(PagerRefusal::UnknownImage { image })?;
        let ready = entry.ready().ok_or(PagerRefusal::NotReady { image })?;
        Ok((node, ready.image.clone(), entry.working_set()))
    }

    fn ready(&self, parent: ImageId) -> Result<&Image, PagerRefusal> {
        let entry = self
            .names
            .get(&parent)
            .and_then(|node| self.entries.get(node));
        match entry.map(|entry| &entry.state) {
            Some(State::Ready(ready)) => Ok(&ready.image),
            Some(State::Promised { .. } | State::Arriving | State::Failed) => {
                Err(PagerRefusal::ParentNotReady { parent })
            }
            None => Err(PagerRefusal::ParentUnknown { parent }),
        }
    }

    /// A promised image will not come. Answers the reads that waited for it.
    pub fn fail(&mut self, image: ImageId) -> Result<Vec<W>, PagerRefusal> {
        let entry = self.named_mut(image)?;
        match std::mem::replace(&mut entry.state, State::Failed) {
            State::Promised { waiting } => Ok(waiting),
            State::Arriving | State::Failed => Ok(Vec::new()),
            ready @ State::Ready(_) => {
                entry.state = ready;
                Err(PagerRefusal::AlreadyExists { image })
            }
        }
    }

    /// The image can no longer be found. Answers the reads that waited for it:
    /// it cannot be published any more.
    pub fn retire(&mut self, image: ImageId) -> Result<(Node, Vec<W>), PagerRefusal> {
        let node = self
            .names
            .remove(&image)
            .ok_or(PagerRefusal::UnknownImage { image })?;
        let Some(entry) = self.entries.get_mut(&node) else {
            return Ok((node, Vec::new()));
        };
        entry.named = Named::Retired;
        let waiting = match &mut entry.state {
            State::Promised { waiting } => std::mem::take(waiting),
            State::Ready(_) | State::Arriving | State::Failed => Vec::new(),
        };
        if matches!(entry.state, State::Promised { .. }) {
            entry.state = State::Failed;
        }
        self.forget_if_unused(node);
        Ok((node, waiting))
    }

    /// The file of an image.
    pub fn find(&self, image: ImageId) -> Option<(Node, PageCount)> {
        let node = self.names.get(&image)?;
        Some((*node, self.entries.get(node)?.pages))
    }

    /// Tells whether a file's image is all there.
    pub fn is_ready(&self, node: Node) -> bool {
        let entry = self.entries.get(&node);
        entry.is_some_and(|entry| entry.ready().is_some())
    }

    /// Size of a file, whether it still has a name or not.
    pub fn size(&self, node: Node) -> Option<PageCount> {
        Some(self.entries.get(&node)?.pages)
    }

    /// Tells whether a file is open, and its image there.
    fn in_use(&self, node: Node) -> bool {
        let entry = self.entries.get(&node);
        entry.is_some_and(|entry| entry.files > 0 && entry.ready().is_some())
    }

    /// A file is being opened; false if it has no name any more. The kernel may
    /// remember names longer than we do.
    pub fn open(&mut self, node: Node) -> bool {
        match self.entries.get_mut(&node) {
            Some(entry) if entry.named == Named::Yes => {
                entry.files += 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// A file that was opened has been closed and is mapped no more.
    pub fn close(&mut self, node: Node) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.files = entry.files.saturating_sub(1);
        }
        self.forget_if_unused(node);
    }

    fn forget_if_unused(&mut self, node: Node) {
        let unused = |entry: &Entry<W>| entry.named == Named::Retired && entry.files == 0;
        if self.entries.get(&node).is_some_and(unused)
            && let Some(entry) = self.entries.remove(&node)
        {
            let working_set = entry.working_set();
            if let State::Ready(ready) = entry.state {
                self.memory.remember(ready.fingerprint, working_set);
            }
        }
    }

    /// Takes a read of a file.
    pub fn read(&mut self, node: Node, read: W) -> Verdict<W> {
        match self.entries.get_mut(&node).map(|entry| &mut entry.state) {
            Some(State::Ready(ready)) => Verdict::Serve(ready.image.clone(), read),
            Some(State::Promised { waiting }) => {
                waiting.push(read);
                Verdict::Kept
            }
            Some(State::Arriving) => Verdict::Arriving(read),
            Some(State::Failed) | None => Verdict::Refuse(read),
        }
    }

    /// All images that can be read, with a name or without.
    pub fn readable(&self, now: Instant) -> Vec<Readable> {
        let ready = self.entries.iter().filter_map(|(node, entry)| {
            let ready = entry.ready()?;
            let last = entry.uses.last.unwrap_or(ready.since);
            Some(Readable {
                node: *node,
                image: ready.image.clone(),
                quiet: now.saturating_duration_since(last),
            })
        });
        let mut ready: Vec<_> = ready.collect();
        ready.sort_by_key(|readable| readable.node);
        ready
    }

    /// Pages that clones of an image have asked for.
    pub fn touched(&self, node: Node) -> PageCount {
        let entry = self.entries.get(&node);
        entry.map_or(PageCount(0), |entry| entry.uses.touched.pages())
    }

    /// Tells whether any clone of an image has asked for a page of it.
    pub fn is_touched(&self, node: Node, page: PageNo) -> bool {
        let entry = self.entries.get(&node);
        entry.is_some_and(|entry| entry.uses.touched.has(page))
    }

    /// The image that `node` is most like, of those that were there before it.
    pub fn twin(&self, node: Node) -> Option<(Node, Image)> {
        let image = &self.entries.get(&node)?.ready()?.image;
        let others = self.entries.iter().filter(|(other, _)| **other < node);
        let likened = others.filter_map(|(other, entry)| {
            let ready = entry.ready()?;
            Some((ready.fingerprint.likeness(image), *other, &ready.image))
        });
        let (likeness, other, twin) =
            likened.max_by_key(|(likeness, other, _)| (*likeness, *other))?;
        (likeness >= Similarity::TWIN).then(|| (other, twin.clone()))
    }

    /// Puts `new`, which reads the same, in the place of `old`; false if that is
    /// not there any more.
    pub fn replace(&mut self, node: Node, old: &Image, new: Image) -> bool {
        let entry = self.entries.get_mut(&node);
        match entry.map(|entry| &mut entry.state) {
            Some(State::Ready(ready)) if ready.image.is(old) => {
                ready.image = new;
                true
            }
            Some(State::Ready(_) | State::Promised { .. } | State::Arriving | State::Failed)
            | None => false,
        }
    }

    /// Returns the use of an image.
    pub fn usage(&self, image: ImageId) -> Result<ImageUse, PagerRefusal> {
        let entry = self
            .names
            .get(&image)
            .and_then(|node| self.entries.get(node));
        entry
            .map(Entry::usage)
            .ok_or(PagerRefusal::UnknownImage { image })
    }

    /// All images that have a name.
    pub fn views(&self) -> Vec<ImageView> {
        let named = self
            .names
            .values()
            .filter_map(|node| self.entries.get(node));
        named.map(Entry::view).collect()
    }

    /// Open files, of retired images too.
    pub fn files(&self) -> u32 {
        self.entries
            .values()
            .fold(0, |sum, entry| sum.saturating_add(entry.files))
    }

    fn named_mut(&mut self, image: ImageId) -> Result<&mut Entry<W>, PagerRefusal> {
        let node = self.names.get(&image);
        let entry = node.and_then(|node| self.entries.get_mut(node));
        entry.ok_or(PagerRefusal::UnknownImage { image })
    }
}

/// An error as it can cross a socket.
pub(crate) fn bad_layer(error: &dyn std::error::Error) -> PagerRefusal {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    PagerRefusal::BadLayer { why }
}

#[cfg(test)]
mod tests;
