//! The catalog, and the answering of reads from it.
//!
//! What the file system and the control socket share. A read is answered on
//! the thread it came in on if its image is there; a read that waited is
//! answered by a thread kept for that, so that neither the publisher nor the
//! kernel's next request waits for it. A third gives the kernel what it is
//! expected to ask for.

use crate::PagerRefusal;
use crate::catalog::{Catalog, Draft, Node, Published, Push, Readable, Verdict};
use crate::journal::Answered;
use crate::peers::{self, Peers};
use crate::successor_state::SuccessorState;
use crate::touched::Run;
use crate::{compactor, pusher};
use forkyard_image::{Image, Layer};
use forkyard_sys_host::fuse::RESENT;
use forkyard_types::{ByteOff, ImageId, PAGE_SIZE, PageCount, PageNo};
use fuser::{Errno, INodeNo, Notifier, ReplyData, RequestId};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Treatment of a pager's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagerOptions {
    /// Choice whether the kernel is given pages it is expected to ask for.
    pub prefetch: Prefetch,
    /// Pages that were not read for so long are compressed; `None`: none is.
    pub cold_after: Option<Duration>,
}

/// Choice whether to read ahead of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Pages that clones of this image, or of the one most like it, have
    /// wanted.
    Yes,
    /// Nothing.
    No,
}

impl Default for PagerOptions {
    fn default() -> Self {
        Self {
            prefetch: Prefetch::Yes,
            cold_after: Some(Duration::from_secs(60)),
        }
    }
}

/// State that a service starts with.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub catalog: Catalog<PendingRead>,
    pub successor_state: Option<SuccessorState>,
    pub answered: Answered,
}

/// A read the kernel waits for. Dropped unanswered, it answers EIO.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub offset: ByteOff,
    pub bytes: u32,
    pub reply: ReplyData,
}

/// Images whose reads wait to be answered.
const DUE: usize = 64;
/// Pages that wait to be given to the kernel, by what they were asked for with.
const PUSHES: usize = 1024;

/// Reads whose image has come.
type Due = (Node, Image, Vec<PendingRead>);

#[derive(Debug)]
pub(crate) struct Service {
    catalog: Mutex<Catalog<PendingRead>>,
    due: SyncSender<Due>,
    pushes: SyncSender<Push>,
    wakes: SyncSender<()>,
    prefetch: Prefetch,
    /// None if no pager is to take over from us.
    successor_state: Option<SuccessorState>,
    /// Requests that the previous pager had carried out.
    answered: Answered,
    /// Other hosts.
    peers: Peers,
    /// Set once the file system is mounted.
    kernel: OnceLock<Notifier>,
}

thread_local! {
    /// Kept between reads: a fresh one would cost a page fault for each page.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Service {
    /// A service and its threads, which end with it.
    pub fn start(options: PagerOptions, past: Recovered) -> io::Result<Arc<Self>> {
        let (due, arrived) = sync_channel::<Due>(DUE);
        let (pushes, pushed) = sync_channel(PUSHES);
        let (wakes, woken) = sync_channel(1);
        let (peers, heard) = Peers::new();
        let (catalog, kernel) = (Mutex::new(past.catalog), OnceLock::new());
        let service = Arc::new(Self {
            catalog,
            due,
            pushes,
            wakes,
            prefetch: options.prefetch,
            successor_state: past.successor_state,
            answered: past.answered,
            peers,
            kernel,
        });
        // Not an `Arc`: the threads must not keep alive what they end with.
        let weak = Arc::downgrade(&service);
        thread::Builder::new()
            .name("answer".into())
            .spawn(move || {
                for (node, image, waiting) in arrived {
                    let Some(service) = weak.upgrade() else { break };
                    waiting
                        .into_iter()
                        .for_each(|read| service.serve(node, &image, read));
                }
            })?;
        pusher::start(Arc::downgrade(&service), pushed)?;
        compactor::start(Arc::downgrade(&service), woken, options.cold_after)?;
        peers::start(Arc::downgrade(&service), heard)?;
        Ok(service)
    }

    /// From now on the kernel is told of names that vanish, and given pages.
    pub fn mounted(&self, kernel: Notifier) {
        // There is one mount in the life of a service.
        let _ = self.kernel.set(kernel);
    }

    /// The kernel, once the file system is mounted.
    pub fn kernel(&self) -> Option<&Notifier> {
        self.kernel.get()
    }

    /// All images that can be read now.
    pub fn readable(&self) -> Vec<Readable> {
        self.catalog().readable(Instant::now())
    }

    /// Puts an image that reads the same in the place of another.
    pub fn replace(&self, node: Node, old: &Image, new: Image) {
        // Counted before the lock is taken, under which it may be asked for.
        new.shares();
        let mut catalog = self.catalog();
        if catalog.replace(node, old, new) {
            self.note(&catalog, node, None);
        }
    }

    /// Returns the state that is kept for a pager that takes over.
    pub fn successor_state(&self) -> Option<&SuccessorState> {
        self.successor_state.as_ref()
    }

    /// Keeps no layer any longer that no image has.
    pub fn sweep(&self) {
        if let Some(successor_state) = &self.successor_state {
            successor_state.sweep();
        }
    }

    /// Notes how an image is now, under the lock under which it became so.
    pub fn note(&self, catalog: &Catalog<PendingRead>, node: Node, request: Option<RequestId>) {
        if let Some(successor_state) = &self.successor_state {
            successor_state.note(catalog, node, request.map(|request| request.0 & !RESENT));
        }
    }

    /// Tells whether a request was carried out by a pager that died before it
    /// answered.
    fn is_answered(&self, request: RequestId) -> bool {
        request.0 & RESENT != 0 && self.answered.has(request.0 & !RESENT)
    }

    /// An image of so many pages will come.
    pub fn promise(&self, image: ImageId, pages: PageCount) -> Result<(), PagerRefusal> {
        let mut catalog = self.catalog();
        let node = catalog.promise(image, pages)?;
        self.note(&catalog, node, None);
        Ok(())
    }

    /// A file is being opened; false if it has no name any more.
    pub fn open(&self, node: Node, request: RequestId) -> bool {
        if self.is_answered(request) {
            return true;
        }
        let mut catalog = self.catalog();
        let opened = catalog.open(node);
        if opened {
            self.note(&catalog, node, Some(request));
        }
        opened
    }

    /// Something has changed that may leave layers to compact.
    fn wake(&self) {
        // Fails if it has been told already, or the thread is gone; then layers stay as they are.
        let _ = self.wakes.try_send(());
    }

    /// Tells whether anything is read before it is asked for.
    pub fn reads_ahead(&self) -> bool {
        self.prefetch == Prefetch::Yes
    }

    fn push(&self, push: Option<Push>) {
        if let Some(push) = push.filter(|_| self.reads_ahead()) {
            // Fails if it has much to do, or the thread is gone; the kernel then asks by itself.
            let _ = self.pushes.try_send(push);
        }
    }

    /// The catalog, for as long as the guard lives. No method of ours may be
    /// called meanwhile.
    pub fn catalog(&self) -> MutexGuard<'_, Catalog<PendingRead>> {
        // Its methods leave it consistent at every point at which they can panic.
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a read, now or when its image comes.
    pub fn read(&self, node: Node, read: PendingRead) {
        let verdict = self.catalog().read(node, read);
        match verdict {
            Verdict::Serve(image, read) => self.serve(node, &image, read),
            Verdict::Kept => {}
            Verdict::Arriving(read) => self.read_arriving(node, read),
            Verdict::Refuse(read) => read.reply.error(Errno::EIO),
        }
    }

    /// As [`read`](Self::read), of an image that was on its way and is not now.
    pub fn read_again(&self, node: Node, read: PendingRead) {
        let verdict = self.catalog().read(node, read);
        match verdict {
            Verdict::Serve(image, read) => self.serve(node, &image, read),
            Verdict::Kept => {}
            Verdict::Arriving(read) | Verdict::Refuse(read) => read.reply.error(Errno::EIO),
        }
    }

    /// Other hosts, and what they and we have of each other.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Stops fetching an image that is not used any more.
    fn stop_fetching(&self, node: Node) {
        let gone = self.catalog().size(node).is_none();
        if gone {
            self.peers.forget(node);
        }
    }

    fn serve(&self, node: Node, image: &Image, read: PendingRead) {
        let Some(span) = Span::of(read.offset, read.bytes, image.pages()) else {
            return read.reply.data(&[]);
        };
        BUFFER.with_borrow_mut(|buffer| {
            let whole = span.length();
            if buffer.len() < whole {
                buffer.resize(whole, 0);
            }
            match image.read(span.first, &mut buffer[..whole]) {
                Ok(()) => {
                    // Before the answer, so that its receiver finds it counted.
                    let expected = self.catalog().served(node, span.run(), Instant::now());
                    self.push(expected.push);
                    read.reply.data(span.wanted(buffer));
                }
                Err(error) => {
                    let (image, page) = (image.lineage().image, span.first);
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(%image, %page, error, "cannot serve pages");
                    read.reply.error(Errno::EIO);
                }
            }
        });
    }

    /// Publishes a layer and has the reads that waited for it answered. Other reads are
    /// answered meanwhile, however large the image is.
    pub fn publish(&self, layer: Layer) -> Result<(), PagerRefusal> {
        let now = Instant::now();
        let layer = Arc::new(layer);
        let published = loop {
            let base = self.catalog().base(layer.lineage(), layer.pages())?;
            let draft = Draft::new(Arc::clone(&layer), base, now)?;
            let mut catalog = self.catalog();
            // Ends: an image is written anew a few times in its life.
            if let Some(published) = catalog.publish(draft)? {
                self.note(&catalog, published.node, None);
                break published;
            }
        };
        let Published {
            node,
            image,
            waiting,
        } = published;
        if !waiting.is_empty() {
            // Fails only if the thread is gone; the reads then answer themselves. May wait for it,
            // which holds up this publisher alone.
            let _ = self.due.send((node, image, waiting));
        }
        let push = self.catalog().push(node, now);
        self.push(push);
        self.wake();
        Ok(())
    }

    /// Breaks a promise: reads that waited, and later ones, get EIO.
    pub fn fail(&self, image: ImageId, reason: &str) -> Result<(), PagerRefusal> {
        let mut catalog = self.catalog();
        let waiting = catalog.fail(image)?;
        let node = catalog.find(image).map(|(node, _)| node);
        if let Some(node) = node {
            self.note(&catalog, node, None);
        }
        drop(catalog);
        node.into_iter().for_each(|node| self.peers.forget(node));
        tracing::warn!(%image, reason, waiting = waiting.len(), "image failed");
        waiting
            .into_iter()
            .for_each(|read| read.reply.error(Errno::EIO));
        Ok(())
    }

    /// A file has been closed.
    pub fn close(&self, node: Node, request: RequestId) {
        if !self.is_answered(request) {
            let mut catalog = self.catalog();
            catalog.close(node);
            self.note(&catalog, node, Some(request));
        }
        self.stop_fetching(node);
        self.wake();
    }

    /// Takes an image's name away, here and in the kernel.
    pub fn retire(&self, image: ImageId) -> Result<(), PagerRefusal> {
        let mut catalog = self.catalog();
        let (node, waiting) = catalog.retire(image)?;
        self.note(&catalog, node, None);
        drop(catalog);
        waiting
            .into_iter()
            .for_each(|read| read.reply.error(Errno::EIO));
        self.stop_fetching(node);
        self.wake();
        let name = image.to_string();
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_entry(INodeNo::ROOT, OsStr::new(&name))
        {
            // The name cannot be opened in any case; it may only be seen longer.
            tracing::debug!(%image, %error, "kernel keeps a retired name");
        }
        Ok(())
    }
}

/// The whole pages a read touches, and the part of them it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: PageNo,
    pages: usize,
    skip: usize,
    bytes: usize,
}

impl Span {
    /// Bytes of the whole pages.
    pub fn length(self) -> usize {
        self.pages * PAGE_SIZE
    }

    /// Of these, the part that is wanted.
    pub fn wanted(self, whole: &[u8]) -> &[u8] {
        &whole[self.skip..self.skip + self.bytes]
    }

    /// The page, if it touches no other.
    pub fn only(self) -> Option<PageNo> {
        (self.pages == 1).then_some(self.first)
    }

    pub fn run(self) -> Run {
        Run {
            first: self.first,
            pages: PageCount(self.pages as u64),
        }
    }

    /// Cut off at the end of an image of `size`; `None` if nothing is left.
    pub fn of(offset: ByteOff, bytes: u32, size: PageCount) -> Option<Self> {
        let end = size.bytes()?.0.min(offset.0.checked_add(u64::from(bytes))?);
        let bytes = usize::try_from(end.checked_sub(offset.0)?)
            .ok()
            .filter(|n| *n > 0)?;
        let first = offset.page();
        let skip = usize::try_from(offset.0 - first.start()?.0).ok()?;
        Some(Self {
            first,
            pages: (skip + bytes).div_ceil(PAGE_SIZE),
            skip,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests;
