//! A run queue: an ordered tree that also tells positions.
//!
//! Every node knows the size of the tree below it, as SBCO's red-black tree
//! has its "RB index" (§4.4.2), so that the position of a vCPU is found in
//! O(log n) on the way down from the root. It is balanced as a treap, with
//! priorities that come out the same each time.

use crate::{dice::Dice, units::VcpuId};

/// Key that a queue is ordered by: the least is at the front. No two entries
/// ever have the same `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    /// First key: a virtual time, a deadline, a priority.
    pub major: i64,
    /// Second key, among equals of the first.
    pub minor: i64,
    /// Order of arrival, among equals.
    pub seq: u64,
}

/// No node.
const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node {
    key: QueueKey,
    vcpu: VcpuId,
    priority: u64,
    size: u32,
    left: u32,
    right: u32,
}

/// The queue.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    dice: Dice,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NIL,
            dice: Dice::new(0),
        }
    }
}

impl Tree {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.size(self.root) as usize
    }

    /// Tells whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Puts a vCPU in. The key's `seq` must be of this entry alone.
    pub fn insert(&mut self, key: QueueKey, vcpu: VcpuId) {
        let node = Node {
            key,
            vcpu,
            priority: self.dice.roll(),
            size: 1,
            left: NIL,
            right: NIL,
        };
        let new = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("ids of vCPUs have 32 bits")
            }
        };
        let (before, after) = self.split(self.root, key);
        let before = self.merge(before, new);
        self.root = self.merge(before, after);
    }

    /// Takes out the entry with this key; `None` if there is none.
    pub fn remove(&mut self, key: QueueKey) -> Option<VcpuId> {
        let (before, rest) = self.split(self.root, key);
        let mut next = key;
        next.seq += 1;
        let (found, after) = self.split(rest, next);
        self.root = self.merge(before, after);
        let node = self.nodes.get(found as usize)?;
        self.free.push(found);
        Some(node.vcpu)
    }

    /// Counts the entries before this key: an entry's scheduling ordinate.
    pub fn rank(&self, key: QueueKey) -> usize {
        let (mut at, mut before) = (self.root, 0);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key < key {
                before += self.size(node.left) as usize + 1;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        before
    }

    /// The entry that so many are before.
    pub fn select(&self, mut rank: usize) -> Option<(QueueKey, VcpuId)> {
        let mut at = self.root;
        loop {
            let node = self.nodes.get(at as usize)?;
            let before = self.size(node.left) as usize;
            match rank.cmp(&before) {
                std::cmp::Ordering::Less => at = node.left,
                std::cmp::Ordering::Equal => return Some((node.key, node.vcpu)),
                std::cmp::Ordering::Greater => {
                    rank -= before + 1;
                    at = node.right;
                }
            }
        }
    }

    /// The entry at the front.
    pub fn first(&self) -> Option<(QueueKey, VcpuId)> {
        self.select(0)
    }

    /// Lists all entries, front first.
    pub fn iter(&self) -> impl Iterator<Item = (QueueKey, VcpuId)> + '_ {
        let mut stack = Vec::new();
        let mut at = self.root;
        std::iter::from_fn(move || {
            while let Some(node) = self.nodes.get(at as usize) {
                stack.push(at);
                at = node.left;
            }
            let node = &self.nodes[stack.pop()? as usize];
            at = node.right;
            Some((node.key, node.vcpu))
        })
    }

    fn size(&self, at: u32) -> u32 {
        self.nodes.get(at as usize).map_or(0, |node| node.size)
    }

    fn resize(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        self.nodes[at as usize].size = self.size(node.left) + self.size(node.right) + 1;
    }

    /// Those before `key`, and the others.
    fn split(&mut self, at: u32, key: QueueKey) -> (u32, u32) {
        let Some(node) = self.nodes.get(at as usize) else {
            return (NIL, NIL);
        };
        if node.key < key {
            let (before, after) = self.split(node.right, key);
            self.nodes[at as usize].right = before;
            self.resize(at);
            (at, after)
        } else {
            let (before, after) = self.split(node.left, key);
            self.nodes[at as usize].left = after;
            self.resize(at);
            (before, at)
        }
    }

    /// One tree of two, all of the first before all of the second.
    fn merge(&mut self, a: u32, b: u32) -> u32 {
        let (Some(first), Some(second)) = (self.nodes.get(a as usize), self.nodes.get(b as usize))
        else {
            return if a == NIL { b } else { a };
        };
        if first.priority > second.priority {
            let right = self.merge(first.right, b);
            self.nodes[a as usize].right = right;
            self.resize(a);
            a
        } else {
            let left = self.merge(a, second.left);
            self.nodes[b as usize].left = left;
            self.resize(b);
            b
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_behaves_as_a_sorted_list(steps in prop::collection::vec((any::<bool>(), -9i64..9), 1..120)) {
            let mut tree = Tree::default();
            let mut model = BTreeMap::new();
            for (seq, (insert, major)) in (0u64..).zip(steps) {
                if insert || model.is_empty() {
                    let key = QueueKey { major, minor: 0, seq };
                    let vcpu = VcpuId::from_place(model.len());
                    tree.insert(key, vcpu);
                    model.insert(key, vcpu);
                } else {
                    let nth = usize::try_from(major.unsigned_abs()).expect("small") % model.len();
                    let (&key, &vcpu) = model.iter().nth(nth).expect("not empty");
                    prop_assert_eq!(tree.remove(key), Some(vcpu));
                    prop_assert_eq!(tree.remove(key), None);
                    model.remove(&key);
                }
                prop_assert_eq!(tree.len(), model.len());
                let listed: Vec<_> = tree.iter().collect();
                let wanted: Vec<_> = model.iter().map(|(&k, &v)| (k, v)).collect();
                prop_assert_eq!(&listed, &wanted);
                for (rank, (key, _)) in wanted.iter().enumerate() {
                    prop_assert_eq!(tree.rank(*key), rank);
                    prop_assert_eq!(tree.select(rank), wanted.get(rank).copied());
                }
                prop_assert_eq!(tree.select(wanted.len()), None);
            }
        }
    }
}
