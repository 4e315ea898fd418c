//! Images before, while and after they are written anew.

use super::{lineage, read_all};
use crate::{Checksum, Image, Layer, LayerBuilder, Slot, Temper, rewrite};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGES: usize = 80;

/// Value of a page: its first bytes; the rest compresses or does not.
type Value = u8;

fn bytes(value: Value) -> [u8; PAGE_SIZE] {
    std::array::from_fn(|i| match value {
        0 => 0,
        // Half of the contents are noise.
        odd if odd % 2 == 1 => {
            (i.wrapping_mul(usize::from(odd) * 2_654_435_761) >> 13).to_le_bytes()[0]
        }
        even => even,
    })
}

/// Says of each page: nothing, or its contents.
type Says = Vec<Option<Value>>;

fn layer(id: u128, parent: Option<u128>, says: &Says) -> Arc<Layer> {
    let file = tempfile::tempfile().expect("temporary file");
    let mut builder = LayerBuilder::new(lineage(id, parent), PageCount(says.len() as u64));
    let mut slot = Slot(0);
    for (page, value) in (0..).zip(says) {
        match value {
            None => {}
            Some(0) => builder.zero(PageNo(page)),
            Some(value) => {
                let bytes = bytes(*value);
                let offset = slot.offset().expect("small");
                file.write_all_at(&bytes, offset).expect("writes");
                builder.data(PageNo(page), slot, Checksum::of(&bytes));
                slot.0 += 1;
            }
        }
    }
    builder.finish(&file).expect("a layer");
    Arc::new(Layer::open(file).expect("a layer"))
}

/// A tree of images: each over an earlier one, or alone.
fn tree() -> impl Strategy<Value = Vec<(Option<usize>, Says)>> {
    let value = prop_oneof![4 => Just(None), 1 => Just(Some(0)), 4 => (1..9u8).prop_map(Some)];
    let says = prop::collection::vec(value, 1..PAGES);
    prop::collection::vec((any::<Option<usize>>(), says), 1..10).prop_map(|images| {
        let place = |(n, (over, says)): (usize, (Option<usize>, Says))| {
            (over.filter(|_| n > 0).map(|over| over % n.max(1)), says)
        };
        images.into_iter().enumerate().map(place).collect()
    })
}

fn model(images: &[(Option<usize>, Says)]) -> Vec<Vec<u8>> {
    let mut models: Vec<Vec<Value>> = Vec::new();
    for (over, says) in images {
        let page = |(n, says): (usize, &Option<Value>)| {
            let below = || over.and_then(|over| models[over].get(n)).copied();
            says.or_else(below).unwrap_or(0)
        };
        models.push(says.iter().enumerate().map(page).collect());
    }
    let whole = |values: Vec<Value>| values.into_iter().flat_map(bytes).collect();
    models.into_iter().map(whole).collect()
}

/// All images of a tree, and which stacks of layers they are.
struct Forest {
    stacks: Vec<Vec<Arc<Layer>>>,
}

impl Forest {
    fn plant(tree: &[(Option<usize>, Says)]) -> Self {
        let mut stacks: Vec<Vec<Arc<Layer>>> = Vec::new();
        for (n, (over, says)) in tree.iter().enumerate() {
            let mut stack = over.map_or(Vec::new(), |over| stacks[over].clone());
            stack.push(layer(n as u128, over.map(|over| over as u128), says));
            stacks.push(stack);
        }
        Self { stacks }
    }

    fn image(&self, n: usize) -> Image {
        build(&self.stacks[n]).expect("an image")
    }

    /// Puts a layer that was written anew in the place of some.
    fn replace(&mut self, old: &[Arc<Layer>], new: &[Arc<Layer>]) {
        for stack in &mut self.stacks {
            let begins = stack.len() >= old.len() && alike(&stack[..old.len()], old);
            if begins {
                stack.splice(..old.len(), new.iter().cloned());
            }
        }
    }
}

fn alike(a: &[Arc<Layer>], b: &[Arc<Layer>]) -> bool {
    a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn build(stack: &[Arc<Layer>]) -> Option<Image> {
    stack.iter().fold(None, |below, layer| {
        Some(Image::new(Arc::clone(layer), below.as_ref()).expect("fits"))
    })
}

fn anew(image: &Image, over: Option<&Image>, cold: &HashSet<u64>) -> (File, Arc<Layer>) {
    let file = tempfile::tempfile().expect("temporary file");
    let temper = |page: PageNo| match cold.contains(&page.0) {
        true => Temper::Cold,
        false => Temper::Hot,
    };
    rewrite(image, over, temper, &file).expect("rewrites");
    let copy = file.try_clone().expect("clones");
    (file, Arc::new(Layer::open(copy).expect("a layer")))
}

/// Clones read a page for the first time while it is written anew: it was cold, and is hot.
#[test]
fn a_page_that_is_touched_meanwhile_damages_nothing() {
    let says: Says = (1..=Value::MAX).take(PAGES).map(Some).collect();
    let before = build(&[layer(1, None, &says)]).expect("an image");
    let looks = Cell::new(0);
    let temper = |page: PageNo| {
        looks.set(looks.get() + 1);
        // Every third is touched right after it was looked at for the first time.
        let touched = looks.get() > PAGES && page.0.is_multiple_of(3);
        match touched || page.0.is_multiple_of(2) {
            true => Temper::Hot,
            false => Temper::Cold,
        }
    };
    let file = tempfile::tempfile().expect("temporary file");
    rewrite(&before, None, temper, &file).expect("rewrites");
    let after = build(&[Arc::new(Layer::open(file).expect("a layer"))]).expect("an image");
    let [before, after] = [before, after].map(|image| read_all(&image).expect("whole"));
    assert!(before == after);
}

proptest! {
    /// Random trees, written anew in random ways: every image reads as its
    /// model before, in between and after, also by programs that had it open before.
    #[test]
    fn images_read_the_same_whatever_is_written_anew(
        tree in tree(),
        steps in prop::collection::vec((any::<usize>(), any::<usize>(), any::<bool>()), 1..6),
        cold in prop::collection::hash_set(0..PAGES as u64, 0..PAGES),
    ) {
        let models = model(&tree);
        let mut forest = Forest::plant(&tree);
        let open: Vec<Image> = (0..tree.len()).map(|n| forest.image(n)).collect();
        for (which, base, alone) in steps {
            let which = which % tree.len();
            let stack = forest.stacks[which].clone();
            // Anything that is not above it may be its base.
            let base = (base % (which + 1)).checked_sub(1).filter(|_| !alone);
            let base = base.filter(|base| !forest.stacks[*base].iter().any(|layer| {
                Arc::ptr_eq(layer, stack.last().expect("never empty"))
            }));
            let over = base.map(|base| forest.image(base));
            let (_, new) = anew(&forest.image(which), over.as_ref(), &cold);
            let mut whole = base.map_or(Vec::new(), |base| forest.stacks[base].clone());
            whole.push(new);
            forest.replace(&stack, &whole);
            for (n, model) in models.iter().enumerate() {
                prop_assert_eq!(&read_all(&forest.image(n)).expect("reads"), model, "image {}", n);
            }
        }
        for (n, model) in models.iter().enumerate() {
            prop_assert_eq!(&read_all(&open[n]).expect("reads"), model, "open image {}", n);
        }
    }
}

fn alone(id: u128, values: &[Value]) -> Image {
    let says = values.iter().map(|value| Some(*value)).collect();
    Image::new(layer(id, None, &says), None).expect("an image")
}

#[test]
fn fold_keeps_what_is_seen_and_drops_what_is_hidden() {
    let bottom = alone(1, &[2, 4, 6, 8]);
    let middle = layer(2, Some(1), &vec![None, Some(12), Some(14), None]);
    let middle = Image::new(middle, Some(&bottom)).expect("an image");
    let top = layer(3, Some(2), &vec![None, None, Some(16), None]);
    let top = Image::new(top, Some(&middle)).expect("an image");
    assert_eq!(
        top.shares().iter().map(|n| n.0).collect::<Vec<_>>(),
        [2, 1, 1]
    );
    let (_, folded) = anew(&top, Some(&bottom), &HashSet::new());
    assert_eq!(folded.lineage(), lineage(3, Some(1)));
    assert_eq!(folded.data_pages(), PageCount(2));
    let image = Image::new(folded, Some(&bottom)).expect("fits");
    assert_eq!(
        read_all(&image).expect("reads"),
        read_all(&top).expect("reads")
    );
}

#[test]
fn pages_that_are_elsewhere_are_not_stored_again() {
    let base = alone(1, &[2, 4, 6, 8]);
    // Same page, another page, twice the same, new.
    let other = alone(2, &[2, 8, 10, 10, 12]);
    let (_, layer) = anew(&other, Some(&base), &HashSet::new());
    let holdings = layer.holdings();
    assert_eq!(
        (holdings.plain, holdings.shared),
        (PageCount(2), PageCount(3))
    );
    let image = Image::new(Arc::clone(&layer), Some(&base)).expect("fits");
    assert_eq!(
        read_all(&image).expect("reads"),
        read_all(&other).expect("reads")
    );
    // Once more, over the same: what was left out before is still counted.
    let (_, again) = anew(&image, Some(&base), &HashSet::from([2, 4]));
    assert_eq!(again.holdings().shared, PageCount(3));
    assert_eq!(again.holdings().packed, PageCount(2));
}

#[test]
fn cold_pages_take_less_and_read_the_same() {
    let values: Vec<Value> = (0..64).map(|n| 2 + n % 60 * 2).collect();
    let image = alone(1, &values);
    let cold: HashSet<u64> = (1..64).collect();
    let (file, layer) = anew(&image, None, &cold);
    let holdings = layer.holdings();
    assert_eq!(holdings.plain.0, 1);
    assert!(
        holdings.packed_bytes.0 < holdings.packed.0 * 256,
        "{holdings:?}"
    );
    assert!(file.metadata().expect("has").len() < 64 * 1024);
    let packed = Image::new(layer, None).expect("fits");
    assert_eq!(
        read_all(&packed).expect("reads"),
        read_all(&image).expect("reads")
    );
}

#[test]
fn damage_is_not_given_a_new_checksum() {
    let image = alone(1, &[2, 4, 6]);
    let file = image.layers()[0].file();
    file.write_all_at(&[9], 2 * PAGE_SIZE as u64)
        .expect("writes");
    let dest = tempfile::tempfile().expect("temporary file");
    let error = rewrite(&image, None, |_| Temper::Hot, &dest).expect_err("damaged");
    assert!(
        matches!(
            error,
            crate::ImageError::Damaged {
                page: PageNo(1),
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn page_borrowed_from_nowhere_is_refused() {
    let long = alone(1, &[2, 4, 6, 8]);
    let other = alone(2, &[8]);
    let (_, borrower) = anew(&other, Some(&long), &HashSet::new());
    let short = alone(1, &[2]);
    let error = Image::new(borrower, Some(&short)).expect_err("too short");
    assert!(
        matches!(error, crate::ImageError::Borrowed { .. }),
        "{error:?}"
    );
}

#[test]
fn images_over_one_share_what_neither_changed() {
    let base = alone(1, &vec![2; 64 * 64]);
    let mut says = vec![None; 64 * 64];
    says[70] = Some(4);
    let child = |id| Image::new(layer(id, Some(1), &says), Some(&base)).expect("fits");
    let (a, b) = (child(2), child(3));
    // One leaf of 64 each, of 64 leaves.
    assert_eq!((a.table().own_leaves(), b.table().own_leaves()), (1, 1));
    let by_layer: HashMap<usize, u64> = a.shares().iter().map(|n| n.0).enumerate().collect();
    assert_eq!(by_layer, HashMap::from([(0, 64 * 64 - 1), (1, 1)]));
}
