//! Which images there are, who uses them, and who waits for them.
//!
//! ```text
//! Promised --publish--> Ready
//!     |  '--fail------> Failed
//! (any) --retire--> nameless --last file closed--> forgotten
//! ```
//!
//! Decides, does nothing: reads come in as values of any type `W` and go out
//! again to whoever has to answer them; none is ever dropped here.

use crate::Refusal;
use forkyard_image::{Image, Layer};
use forkyard_types::{ImageId, ImageUse, ImageView, PageCount};
use std::collections::HashMap;
use std::sync::Arc;

/// Number of an image's file: never used twice, unlike a name that could be
/// retired and promised again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node(pub u64);

/// The directory has number 1.
const FIRST: u64 = 2;

#[derive(Debug)]
pub(crate) struct Catalog<W> {
    names: HashMap<ImageId, Node>,
    entries: HashMap<Node, Entry<W>>,
    next: u64,
}

#[derive(Debug)]
struct Entry<W> {
    image: ImageId,
    pages: PageCount,
    named: Named,
    files: u32,
    requests: u64,
    served: PageCount,
    state: State<W>,
}

/// Whether the image can still be found by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Yes,
    Retired,
}

#[derive(Debug)]
enum State<W> {
    Promised { waiting: Vec<W> },
    Ready(Image),
    Failed,
}

/// What is to become of a read.
#[derive(Debug)]
pub(crate) enum Verdict<W> {
    /// Answer it now, from this image.
    Serve(Image, W),
    /// It is kept until the image is published or fails.
    Kept,
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

impl<W> Catalog<W> {
    pub fn new() -> Self {
        Self {
            names: HashMap::new(),
            entries: HashMap::new(),
            next: FIRST,
        }
    }

    /// An image of so many pages will come: its file exists from now on.
    pub fn promise(&mut self, image: ImageId, pages: PageCount) -> Result<(), Refusal> {
        if self.names.contains_key(&image) {
            return Err(Refusal::AlreadyExists { image });
        }
        self.insert(
            image,
            pages,
            State::Promised {
                waiting: Vec::new(),
            },
        );
        Ok(())
    }

    fn insert(&mut self, image: ImageId, pages: PageCount, state: State<W>) -> Node {
        let node = Node(self.next);
        self.next += 1;
        let (named, files, requests, served) = (Named::Yes, 0, 0, PageCount(0));
        let entry = Entry {
            image,
            pages,
            named,
            files,
            requests,
            served,
            state,
        };
        self.entries.insert(node, entry);
        self.names.insert(image, node);
        node
    }

    /// The image that `layer` makes is there, promised before or not.
    pub fn publish(&mut self, layer: Layer) -> Result<Published<W>, Refusal> {
        let lineage = layer.lineage();
        let (id, pages) = (lineage.image, layer.pages());
        let promised = self.names.get(&id).and_then(|node| self.entries.get(node));
        match promised.map(|entry| (&entry.state, entry.pages)) {
            None => {}
            Some((State::Promised { .. }, promised)) if promised == pages => {}
            Some((State::Promised { .. }, promised)) => {
                return Err(Refusal::WrongSize {
                    promised,
                    got: pages,
                });
            }
            Some((State::Ready(_), _)) => return Err(Refusal::AlreadyExists { image: id }),
            Some((State::Failed, _)) => return Err(Refusal::HasFailed { image: id }),
        }
        let parent = lineage
            .parent
            .map(|parent| self.ready(parent))
            .transpose()?;
        let image = Image::new(Arc::new(layer), parent).map_err(|error| bad_layer(&error))?;
        let node = match self.names.get(&id) {
            Some(node) => *node,
            None => self.insert(id, pages, State::Failed),
        };
        let state = State::Ready(image.clone());
        let before = self
            .entries
            .get_mut(&node)
            .map(|e| std::mem::replace(&mut e.state, state));
        let waiting = match before {
            Some(State::Promised { waiting }) => waiting,
            Some(State::Ready(_) | State::Failed) | None => Vec::new(),
        };
        Ok(Published {
            node,
            image,
            waiting,
        })
    }

    fn ready(&self, parent: ImageId) -> Result<&Image, Refusal> {
        let entry = self
            .names
            .get(&parent)
            .and_then(|node| self.entries.get(node));
        match entry.map(|entry| &entry.state) {
            Some(State::Ready(image)) => Ok(image),
            Some(State::Promised { .. } | State::Failed) => Err(Refusal::ParentNotReady { parent }),
            None => Err(Refusal::ParentUnknown { parent }),
        }
    }

    /// A promised image will not come. Answers the reads that waited for it.
    pub fn fail(&mut self, image: ImageId) -> Result<Vec<W>, Refusal> {
        let entry = self.named_mut(image)?;
        match std::mem::replace(&mut entry.state, State::Failed) {
            State::Promised { waiting } => Ok(waiting),
            State::Failed => Ok(Vec::new()),
            ready @ State::Ready(_) => {
                entry.state = ready;
                Err(Refusal::AlreadyExists { image })
            }
        }
    }

    /// The image can no longer be found. Answers the reads that waited for it:
    /// nobody can publish it any more.
    pub fn retire(&mut self, image: ImageId) -> Result<(Node, Vec<W>), Refusal> {
        let node = self
            .names
            .remove(&image)
            .ok_or(Refusal::UnknownImage { image })?;
        let Some(entry) = self.entries.get_mut(&node) else {
            return Ok((node, Vec::new()));
        };
        entry.named = Named::Retired;
        let waiting = match &mut entry.state {
            State::Promised { waiting } => std::mem::take(waiting),
            State::Ready(_) | State::Failed => Vec::new(),
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

    /// Size of a file, whether it still has a name or not.
    pub fn size(&self, node: Node) -> Option<PageCount> {
        Some(self.entries.get(&node)?.pages)
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
        if self.entries.get(&node).is_some_and(unused) {
            self.entries.remove(&node);
        }
    }

    /// Somebody reads a file.
    pub fn read(&mut self, node: Node, read: W) -> Verdict<W> {
        match self.entries.get_mut(&node).map(|entry| &mut entry.state) {
            Some(State::Ready(image)) => Verdict::Serve(image.clone(), read),
            Some(State::Promised { waiting }) => {
                waiting.push(read);
                Verdict::Kept
            }
            Some(State::Failed) | None => Verdict::Refuse(read),
        }
    }

    /// A read was answered with so many pages.
    pub fn served(&mut self, node: Node, pages: PageCount) {
        if let Some(entry) = self.entries.get_mut(&node) {
            entry.requests += 1;
            entry.served.0 += pages.0;
        }
    }

    /// How an image is used.
    pub fn usage(&self, image: ImageId) -> Result<ImageUse, Refusal> {
        let entry = self
            .names
            .get(&image)
            .and_then(|node| self.entries.get(node));
        entry
            .map(Entry::usage)
            .ok_or(Refusal::UnknownImage { image })
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

    fn named_mut(&mut self, image: ImageId) -> Result<&mut Entry<W>, Refusal> {
        let node = self.names.get(&image);
        let entry = node.and_then(|node| self.entries.get_mut(node));
        entry.ok_or(Refusal::UnknownImage { image })
    }
}

impl<W> Entry<W> {
    fn image(&self) -> Option<&Image> {
        match &self.state {
            State::Ready(image) => Some(image),
            State::Promised { .. } | State::Failed => None,
        }
    }

    fn usage(&self) -> ImageUse {
        let image = self.image();
        ImageUse {
            pages: image.map_or(PageCount(0), Image::own_pages),
            layers: image.map_or(0, |image| u32::try_from(image.layers()).unwrap_or(u32::MAX)),
            pages_served: self.served,
            requests: self.requests,
            users: self.files,
        }
    }

    fn view(&self) -> ImageView {
        let parent = self.image().and_then(|image| image.lineage().parent);
        ImageView {
            id: self.image,
            parent,
            usage: self.usage(),
        }
    }
}

/// An error as it can cross a socket.
pub(crate) fn bad_layer(error: &dyn std::error::Error) -> Refusal {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    Refusal::BadLayer { why }
}

#[cfg(test)]
mod tests;
