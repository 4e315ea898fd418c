//! The thread that writes layers anew in the background.
//!
//! ```text
//! event or a while --> fold what only descendants need
//!                  --> store an image as what it differs from its twin by
//!                  --> compress what was not read for long
//! ```
//!
//! Each works on what can be read at one instant and replaces it at once:
//! a read meanwhile sees the one or the other, and both are the same.

use crate::catalog::{Node, Readable};
use crate::compaction::{self, LayerId, Pair, Seen, Sizes};
use crate::service::Service;
use crate::stacks::Stacks;
use forkyard_image::{Image, ImageError, Layer, Temper, rewrite};
use forkyard_sys_host::memory::{anonymous_file, seal};
use forkyard_sys_host::process::yield_to_others;
use forkyard_types::{ByteCount, PageNo};
use nix::fcntl::{FcntlArg, fcntl};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at what has gone cold.
const A_WHILE: Duration = Duration::from_secs(2);
/// After an event: more will follow.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// An image may be published over layers that are being replaced; then again.
const TRIES: usize = 4;

/// Starts the thread; it ends with the service, or when nothing can wake it
/// any more.
pub(crate) fn start(
    service: Weak<Service>,
    wakes: Receiver<()>,
    cold_after: Option<Duration>,
) -> io::Result<()> {
    let run = move || {
        // Without it compaction is in the way of others more than it need be.
        if let Err(error) = yield_to_others() {
            tracing::debug!(%error, "compaction with the priority of all");
        }
        let mut compactor = Compactor {
            cold_after,
            shared: HashSet::new(),
            kept: HashSet::new(),
            hopeless: HashSet::new(),
        };
        loop {
            match wakes.recv_timeout(A_WHILE) {
                Ok(()) => thread::sleep(DEBOUNCE),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while wakes.try_recv().is_ok() {}
            let Some(service) = service.upgrade() else {
                return;
            };
            compactor.tidy(&service);
        }
    };
    thread::Builder::new().name("tidy".into()).spawn(run)?;
    Ok(())
}

struct Compactor {
    cold_after: Option<Duration>,
    /// Images that have been compared with their twins.
    shared: HashSet<Node>,
    /// Pairs of layers for which folding does not pay.
    kept: HashSet<(LayerId, LayerId)>,
    /// Layers that could not be read: damage stays where it is.
    hopeless: HashSet<LayerId>,
}

impl Compactor {
    /// Does all there is to do.
    fn tidy(&mut self, service: &Service) {
        let work = [Self::fold, Self::share, Self::pack];
        for step in work {
            while step(self, service) {}
        }
        let living: HashSet<Node> = service.readable().iter().map(|image| image.node).collect();
        self.shared.retain(|node| living.contains(node));
        service.sweep();
    }

    /// Folds one pair of layers; false if there is none for which it pays.
    fn fold(&mut self, service: &Service) -> bool {
        let images = service.readable();
        let layers = layers_of(&images);
        let pairs = compaction::pairs(&images.iter().map(seen).collect::<Vec<_>>());
        self.kept.retain(|kept| {
            let there = |pair: &Pair| (pair.lower, pair.upper) == *kept;
            pairs.iter().any(there)
        });
        for pair in pairs {
            if self.kept.contains(&(pair.lower, pair.upper)) {
                continue;
            }
            let known = [pair.lower, pair.upper].map(|id| layers.get(&id));
            let [Some(lower), Some(upper)] = known else {
                continue;
            };
            let id = pair.upper;
            let movable = in_memory(lower) && in_memory(upper) && !self.hopeless.contains(&id);
            let Some(whole) = images.iter().find(|image| image.node == pair.node) else {
                continue;
            };
            let Some(both) = whole.image.prefix(pair.below + 2).filter(|_| movable) else {
                continue;
            };
            if !compaction::pays(sizes(&both, lower, upper, pair)) {
                self.kept.insert((pair.lower, pair.upper));
            } else {
                let over = whole.image.prefix(pair.below);
                return match service.rewrite(&both, over.as_ref(), |_| false) {
                    Ok(()) => true,
                    Err(error) => self.give_up(id, &error),
                };
            }
        }
        false
    }

    /// Stores one image as what it differs from its twin by.
    fn share(&mut self, service: &Service) -> bool {
        for Readable { node, image, quiet } in service.readable() {
            let [layer] = image.layers() else { continue };
            let id = LayerId::of(layer);
            let pages = image.data_pages().0;
            let due = compaction::may_share(pages, quiet) && in_memory(layer);
            if !due || self.hopeless.contains(&id) || !self.shared.insert(node) {
                continue;
            }
            let twin = service.catalog().twin(node).map(|(_, twin)| twin);
            // Not over one that is itself stored over this one.
            let apart = |twin: &Image| !twin.layers().iter().any(|other| Arc::ptr_eq(other, layer));
            let Some(twin) = twin.filter(apart) else {
                continue;
            };
            return match service.rewrite(&image, Some(&twin), |_| false) {
                Ok(()) => true,
                Err(error) => self.give_up(id, &error),
            };
        }
        false
    }

    /// Compresses what has gone cold of one layer.
    fn pack(&mut self, service: &Service) -> bool {
        let images = service.readable();
        let mut users: HashMap<LayerId, Vec<(&Readable, usize)>> = HashMap::new();
        for image in &images {
            for (place, layer) in image.image.layers().iter().enumerate() {
                users
                    .entry(LayerId::of(layer))
                    .or_default()
                    .push((image, place));
            }
        }
        for (layer, users) in users {
            let Some((image, place)) = users.first() else {
                continue;
            };
            let found = &image.image.layers()[*place];
            let quiet = users.iter().map(|(image, _)| image.quiet).min();
            let nodes: Vec<Node> = users.iter().map(|(image, _)| image.node).collect();
            let touched = |node: &Node| service.catalog().touched(*node).0;
            let touched: u64 = nodes.iter().map(touched).sum();
            let cold = found.holdings().plain.0.saturating_sub(touched);
            let due = quiet.is_some_and(|quiet| compaction::is_cold(cold, quiet, self.cold_after));
            if !due || !in_memory(found) || self.hopeless.contains(&layer) {
                continue;
            }
            let Some(whole) = image.image.prefix(place + 1) else {
                continue;
            };
            let over = image.image.prefix(*place);
            let is_cold = |page| {
                let catalog = service.catalog();
                !nodes.iter().any(|node| catalog.is_touched(*node, page))
            };
            return match service.rewrite(&whole, over.as_ref(), is_cold) {
                Ok(()) => true,
                Err(error) => self.give_up(layer, &error),
            };
        }
        false
    }

    fn give_up(&mut self, id: LayerId, error: &ImageError) -> bool {
        let error: &dyn std::error::Error = error;
        tracing::error!(error, "cannot write a layer anew; it stays as it is");
        self.hopeless.insert(id);
        true
    }
}

impl Service {
    /// Writes an image anew over `over`, and puts the result in the place of its
    /// layers in every image that has them. Pages are compressed that are cold,
    /// or were compressed before.
    pub(crate) fn rewrite(
        &self,
        image: &Image,
        over: Option<&Image>,
        is_cold: impl Fn(PageNo) -> bool,
    ) -> Result<(), ImageError> {
        let failed = |source| ImageError::Write { source };
        let file = anonymous_file("forkyard-image", ByteCount(0)).map_err(failed)?;
        let begun = Instant::now();
        let temper = |page| match is_cold(page) || image.is_packed(page) {
            true => Temper::Cold,
            false => Temper::Hot,
        };
        rewrite(image, over, temper, &file)?;
        seal(&file).map_err(failed)?;
        let layer = Arc::new(Layer::open(file)?);
        let mut whole = over.map_or(Vec::new(), |over| over.layers().to_vec());
        whole.push(layer);
        let after = whole.last().map(|layer| layer.holdings());
        for _ in 0..TRIES {
            if !self.put_in_place(image.layers(), &whole)? {
                break;
            }
        }
        let (image, took) = (image.lineage().image, begun.elapsed());
        tracing::debug!(%image, ?after, ?took, "written anew");
        Ok(())
    }

    /// Puts layers in the place of those at the bottom of all images; false if
    /// no image has the old ones.
    fn put_in_place(&self, old: &[Arc<Layer>], new: &[Arc<Layer>]) -> Result<bool, ImageError> {
        let mut stacks = Stacks::default();
        let mut any = false;
        for readable in self.readable() {
            let Some(rest) = rest_over(readable.image.layers(), old) else {
                continue;
            };
            any = true;
            if let Some(image) = stacks.image(&[new, rest].concat())? {
                self.replace(readable.node, &readable.image, image);
            }
        }
        Ok(any)
    }
}

/// Returns the layers of an image over these; `None` if they are not at its
/// bottom.
fn rest_over<'a>(stack: &'a [Arc<Layer>], old: &[Arc<Layer>]) -> Option<&'a [Arc<Layer>]> {
    let (bottom, rest) = stack.split_at_checked(old.len())?;
    let same = bottom.iter().zip(old).all(|(a, b)| Arc::ptr_eq(a, b));
    same.then_some(rest)
}

fn sizes(both: &Image, lower: &Layer, upper: &Layer, pair: Pair) -> Sizes {
    let seen = both.shares().get(pair.below).map_or(0, |pages| pages.0);
    let lower = lower.data_pages().0;
    Sizes {
        lower,
        upper: upper.data_pages().0,
        hidden: lower.saturating_sub(seen),
    }
}

fn seen(image: &Readable) -> Seen {
    Seen {
        node: image.node,
        stack: image.image.layers().iter().map(LayerId::of).collect(),
    }
}

fn layers_of(images: &[Readable]) -> HashMap<LayerId, Arc<Layer>> {
    let layers = images.iter().flat_map(|image| image.image.layers());
    layers
        .map(|layer| (LayerId::of(layer), Arc::clone(layer)))
        .collect()
}

/// Tells whether a layer takes memory. Those of disks are files on a disk and
/// stay there: only files in memory can be sealed.
fn in_memory(layer: &Layer) -> bool {
    fcntl(layer.file(), FcntlArg::F_GET_SEALS).is_ok()
}
