//! Choice of layers to write anew, so that memory does not grow with depth.
//!
//! Layers of images that are gone stay where another image needs them. Such a
//! layer, if a single other lies over it, can be folded into that one: what it
//! hides is then stored nowhere. Folding copies, so it must pay: a layer is
//! folded when much of it is hidden, or when the one above is at least about as
//! large, so that a page is copied a few times and not once a generation.
//!
//! Decides, does nothing.

use crate::catalog::Node;
use forkyard_image::Layer;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A layer, by anything that tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LayerId(pub usize);

impl LayerId {
    /// Takes the address as id: no other layer has it as long as this one is
    /// referred to.
    pub fn of(layer: &Arc<Layer>) -> Self {
        Self(Arc::as_ptr(layer).addr())
    }
}

/// Writing anew is not worth it for fewer pages than this.
const FEW: u64 = 256;
/// Time since the last read of an image: the rush of its first clones is over.
const SETTLED: Duration = Duration::from_secs(2);

/// Image, as the compactor sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub node: Node,
    /// Layers of the image, the bottom first.
    pub stack: Vec<LayerId>,
}

/// Two layers, one right over the other, of which the lower is there for
/// nothing but the upper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub lower: LayerId,
    pub upper: LayerId,
    /// An image that has both, and how many layers are below them in it.
    pub node: Node,
    pub below: usize,
}

/// All pairs that could be folded, the lowest first.
pub(crate) fn pairs(seen: &[Seen]) -> Vec<Pair> {
    let tops: HashSet<LayerId> = seen
        .iter()
        .filter_map(|seen| seen.stack.last().copied())
        .collect();
    let mut above: HashMap<LayerId, HashSet<LayerId>> = HashMap::new();
    let mut found = Vec::new();
    for image in seen {
        for (below, pair) in image.stack.windows(2).enumerate() {
            let [lower, upper] = [pair[0], pair[1]];
            if above.entry(lower).or_default().insert(upper) {
                let node = image.node;
                found.push(Pair {
                    lower,
                    upper,
                    node,
                    below,
                });
            }
        }
    }
    found.retain(|pair| {
        let only = above.get(&pair.lower).is_some_and(|above| above.len() == 1);
        only && !tops.contains(&pair.lower)
    });
    found.sort_by_key(|pair| (pair.below, pair.node));
    found
}

/// Pages of data in a pair of layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub lower: u64,
    pub upper: u64,
    /// Pages of the lower that the upper hides.
    pub hidden: u64,
}

/// Tells whether folding pays.
pub(crate) fn pays(sizes: Sizes) -> bool {
    sizes.lower <= FEW || sizes.hidden * 4 >= sizes.lower || sizes.lower <= sizes.upper * 2
}

/// Tells whether an image may be stored as its difference from another.
pub(crate) fn may_share(pages: u64, quiet: Duration) -> bool {
    pages > FEW && quiet >= SETTLED
}

/// Tells whether an image has so many pages that have gone cold that they
/// should be compressed; `None` as limit: never.
pub(crate) fn is_cold(plain_cold: u64, quiet: Duration, limit: Option<Duration>) -> bool {
    plain_cold > FEW && limit.is_some_and(|limit| quiet >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(stacks: &[&[usize]]) -> Vec<Seen> {
        let image = |(node, stack): (u64, &&[usize])| Seen {
            node: Node(node),
            stack: stack.iter().copied().map(LayerId).collect(),
        };
        (0..).zip(stacks).map(image).collect()
    }

    fn folded(stacks: &[&[usize]]) -> Vec<(usize, usize)> {
        let pairs = pairs(&seen(stacks));
        pairs
            .iter()
            .map(|pair| (pair.lower.0, pair.upper.0))
            .collect()
    }

    #[test]
    fn layer_only_a_descendant_needs_is_folded_into_it() {
        assert_eq!(folded(&[&[1, 2]]), [(1, 2)]);
        assert_eq!(folded(&[&[1, 2, 3]]), [(1, 2), (2, 3)]);
    }

    #[test]
    fn layer_of_an_image_in_use_is_left_alone() {
        assert_eq!(folded(&[&[1, 2], &[1]]), []);
        assert_eq!(folded(&[&[1, 2, 3], &[1, 2]]), [(1, 2)]);
    }

    #[test]
    fn layer_that_several_need_is_left_alone() {
        assert_eq!(folded(&[&[1, 2], &[1, 3]]), []);
        assert_eq!(folded(&[&[1, 2, 3], &[1, 2, 4]]), [(1, 2)]);
    }

    #[test]
    fn large_base_is_not_copied_for_a_small_change() {
        let sizes = |lower, upper, hidden| Sizes {
            lower,
            upper,
            hidden,
        };
        assert!(!pays(sizes(30_000, 300, 200)));
        assert!(pays(sizes(30_000, 300, 8_000)));
        assert!(pays(sizes(400, 300, 0)));
    }

    #[test]
    fn nothing_is_compressed_while_it_is_read_or_where_it_is_not_wanted() {
        let minute = Duration::from_secs(60);
        assert!(is_cold(1000, minute, Some(minute)));
        assert!(!is_cold(1000, minute / 2, Some(minute)));
        assert!(!is_cold(1000, minute, None));
        assert!(!is_cold(10, minute, Some(minute)));
    }

    proptest! {
        /// A chain in which each generation is folded when it pays: what is
        /// copied in all stays within a few times of what was ever written.
        #[test]
        fn copying_stays_in_proportion(changes in prop::collection::vec(1..3000u64, 1..200)) {
            let base = 30_000u64;
            let (mut layers, mut copied) = (vec![base], 0u64);
            let written: u64 = base + changes.iter().sum::<u64>();
            for change in changes {
                layers.push(change);
                while let [.., lower, upper] = layers[..]
                    && pays(Sizes { lower, upper, hidden: 0 })
                {
                    layers.truncate(layers.len() - 2);
                    layers.push(lower + upper);
                    copied += lower + upper;
                }
            }
            prop_assert!(layers.len() < 24, "{layers:?}");
            prop_assert!(copied <= written * 20, "{copied} of {written}");
        }
    }
}
