use super::*;
use forkyard_image::{Layer, LayerBuilder, Lineage};
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::ByteCount;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Something done to a catalog. Images are few, so that they meet again.
#[derive(Clone, Copy, Debug)]
enum Step {
    Promise(u8),
    Publish(u8, Option<u8>),
    Fail(u8),
    Retire(u8),
    Open(u8),
    /// Closes the nth file that is open.
    Close(usize),
    /// Reads the nth file that is open.
    Read(usize),
}

/// Meaning of an image's name in the model.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    Promised(BTreeSet<u32>),
    Ready,
    Failed,
}

fn id(n: u8) -> ImageId {
    ImageId(Uuid::from_u128(u128::from(n)))
}

fn layer(image: u8, parent: Option<u8>) -> Layer {
    let file = anonymous_file("test", ByteCount(0)).expect("memfd");
    let lineage = Lineage {
        image: id(image),
        parent: parent.map(id),
    };
    LayerBuilder::new(lineage, PageCount(1))
        .finish(&file)
        .expect("a layer");
    Layer::open(file).expect("a layer")
}

fn draft<W>(catalog: &Catalog<W>, layer: Layer) -> Result<Draft, PagerRefusal> {
    let base = catalog.base(layer.lineage(), layer.pages())?;
    Draft::new(Arc::new(layer), base, Instant::now())
}

fn publish<W: std::fmt::Debug>(
    catalog: &mut Catalog<W>,
    layer: Layer,
) -> Result<Published<W>, PagerRefusal> {
    let draft = draft(catalog, layer)?;
    Ok(catalog.publish(draft)?.expect("nothing was in between"))
}

fn run(first: u64, pages: u64) -> Run {
    let (first, pages) = (PageNo(first), PageCount(pages));
    Run { first, pages }
}

fn step() -> impl Strategy<Value = Step> {
    let image = || 0..4u8;
    prop_oneof![
        1 => image().prop_map(Step::Promise),
        1 => (image(), prop::option::of(image())).prop_map(|(image, over)| Step::Publish(image, over)),
        1 => image().prop_map(Step::Fail),
        1 => image().prop_map(Step::Retire),
        2 => image().prop_map(Step::Open),
        1 => any::<usize>().prop_map(Step::Close),
        3 => any::<usize>().prop_map(Step::Read),
    ]
}

impl<W> Catalog<W> {
    /// Checks the invariants that hold between any two calls.
    fn check(&self) {
        for (name, node) in &self.names {
            let entry = self.entries.get(node).expect("every name has its entry");
            assert_eq!((entry.image, entry.named), (*name, Named::Yes));
        }
        let retired = self
            .entries
            .values()
            .filter(|entry| entry.named == Named::Retired);
        for entry in retired {
            assert!(entry.files > 0, "kept for nobody");
            assert!(
                !matches!(entry.state, State::Promised { .. }),
                "waits for ever"
            );
        }
        let named = self
            .entries
            .values()
            .filter(|entry| entry.named == Named::Yes);
        assert_eq!(named.count(), self.names.len());
    }
}

/// A slow catalog: names, and for each open file what it was opened as.
#[derive(Debug, Default)]
struct Model {
    names: BTreeMap<u8, Known>,
    open: Vec<(Node, u8, Option<Known>)>,
    reads: u32,
}

impl Model {
    /// Returns the content that an open file shows now: its name's state as
    /// long as the name is the one it was opened by, and after that the state
    /// when retired.
    fn state(&self, file: &(Node, u8, Option<Known>)) -> Known {
        let frozen = file.2.clone();
        frozen
            .or_else(|| self.names.get(&file.1).cloned())
            .unwrap_or(Known::Failed)
    }

    fn perform(&mut self, catalog: &mut Catalog<u32>, step: Step) {
        match step {
            Step::Promise(n) => {
                let done = catalog.promise(id(n), PageCount(1)).is_ok();
                assert_eq!(done, !self.names.contains_key(&n));
                self.names
                    .entry(n)
                    .or_insert(Known::Promised(BTreeSet::new()));
            }
            Step::Publish(n, parent) => self.publish(catalog, n, parent),
            Step::Fail(n) => {
                let waited = catalog.fail(id(n));
                match self.names.get_mut(&n) {
                    Some(Known::Promised(waiting)) => {
                        assert_eq!(&BTreeSet::from_iter(waited.expect("promised")), waiting);
                        self.names.insert(n, Known::Failed);
                    }
                    Some(Known::Failed) => assert_eq!(waited, Ok(Vec::new())),
                    Some(Known::Ready) | None => assert!(waited.is_err()),
                }
            }
            Step::Retire(n) => self.retire(catalog, n),
            Step::Open(n) => {
                let Some((node, pages)) = catalog.find(id(n)) else {
                    return assert!(!self.names.contains_key(&n));
                };
                assert_eq!(pages, PageCount(1));
                assert!(catalog.open(node));
                self.open.push((node, n, None));
            }
            Step::Close(nth) if !self.open.is_empty() => {
                let (node, _, _) = self.open.swap_remove(nth % self.open.len());
                catalog.close(node);
            }
            Step::Read(nth) if !self.open.is_empty() => self.read(catalog, nth),
            Step::Close(_) | Step::Read(_) => {}
        }
    }

    fn publish(&mut self, catalog: &mut Catalog<u32>, n: u8, parent: Option<u8>) {
        let allowed = parent.is_none_or(|parent| self.names.get(&parent) == Some(&Known::Ready));
        let waiting = match self.names.get(&n) {
            None => Some(BTreeSet::new()),
            Some(Known::Promised(waiting)) => Some(waiting.clone()),
            Some(Known::Ready | Known::Failed) => None,
        };
        match (
            publish(catalog, layer(n, parent)),
            waiting.filter(|_| allowed),
        ) {
            (Ok(published), Some(waiting)) => {
                assert_eq!(BTreeSet::from_iter(published.waiting), waiting);
                assert_eq!(published.image.lineage().image, id(n));
                self.names.insert(n, Known::Ready);
            }
            (Err(_), None) => {}
            (got, want) => panic!("{got:?}, not {want:?}"),
        }
    }

    fn retire(&mut self, catalog: &mut Catalog<u32>, n: u8) {
        let Ok((node, waited)) = catalog.retire(id(n)) else {
            return assert!(!self.names.contains_key(&n));
        };
        let (rest, waiting) = match self.names.remove(&n).expect("known") {
            Known::Promised(waiting) => (Known::Failed, waiting),
            rest @ (Known::Ready | Known::Failed) => (rest, BTreeSet::new()),
        };
        assert_eq!(BTreeSet::from_iter(waited), waiting);
        assert!(!catalog.open(node), "opened without a name");
        self.open
            .iter_mut()
            .filter(|file| file.0 == node)
            .for_each(|file| file.2 = Some(rest.clone()));
    }

    fn read(&mut self, catalog: &mut Catalog<u32>, nth: usize) {
        let file = &self.open[nth % self.open.len()];
        self.reads += 1;
        let number = self.reads;
        match (catalog.read(file.0, number), self.state(file)) {
            (Verdict::Serve(image, read), Known::Ready) => {
                assert_eq!((image.lineage().image, read), (id(file.1), number));
                catalog.served(file.0, run(0, 1), Instant::now());
            }
            (Verdict::Kept, Known::Promised(_)) => {
                let Some(Known::Promised(waiting)) = self.names.get_mut(&file.1) else {
                    panic!("promised without a name");
                };
                waiting.insert(number);
            }
            (Verdict::Refuse(read), Known::Failed) => assert_eq!(read, number),
            (got, want) => panic!("{got:?}, not {want:?}"),
        }
    }
}

proptest! {
    /// Among the rest: every read that was kept comes out exactly once, when
    /// its image is published, fails or is retired.
    #[test]
    fn catalog_behaves_as_its_model(steps in prop::collection::vec(step(), 0..80)) {
        let (mut catalog, mut model) = (Catalog::new(), Model::default());
        for step in steps {
            model.perform(&mut catalog, step);
            catalog.check();
            let names: BTreeSet<_> = catalog.views().into_iter().map(|view| view.id).collect();
            prop_assert_eq!(names, model.names.keys().map(|n| id(*n)).collect());
            prop_assert_eq!(catalog.files() as usize, model.open.len());
        }
        for (node, _, _) in model.open {
            catalog.close(node);
        }
        catalog.check();
        prop_assert_eq!(catalog.entries.len(), catalog.names.len());
    }
}

#[test]
fn image_promised_again_after_retirement_is_another_file() {
    let mut catalog = Catalog::<u32>::new();
    catalog.promise(id(1), PageCount(1)).expect("new");
    let (first, _) = catalog.find(id(1)).expect("known");
    assert!(catalog.open(first));
    catalog.retire(id(1)).expect("known");
    catalog.promise(id(1), PageCount(2)).expect("free again");
    let (second, _) = catalog.find(id(1)).expect("known");
    assert_ne!(first, second);
    assert_eq!(
        (catalog.size(first), catalog.size(second)),
        (Some(PageCount(1)), Some(PageCount(2)))
    );
}

#[test]
fn usage_counts_what_was_served() {
    let mut catalog = Catalog::<u32>::new();
    let now = Instant::now();
    let node = publish(&mut catalog, layer(1, None))
        .expect("publishes")
        .node;
    catalog.served(node, run(0, 3), now);
    catalog.served(node, run(0, 4), now);
    assert!(catalog.open(node));
    let usage = catalog.usage(id(1)).expect("known");
    assert_eq!(
        (usage.requests, usage.pages_served, usage.users),
        (2, PageCount(7), 1)
    );
    assert_eq!(usage.data_served, PageCount(0), "the layer is all zero");
}

#[test]
fn draft_whose_parent_was_written_anew_is_built_again_over_that() {
    let mut catalog = Catalog::<u32>::new();
    let parent = publish(&mut catalog, layer(1, None)).expect("publishes");
    let stale = draft(&catalog, layer(2, Some(1))).expect("a draft");
    let anew = Image::new(Arc::new(layer(1, None)), None).expect("an image");
    assert!(catalog.replace(parent.node, &parent.image, anew.clone()));
    assert!(catalog.publish(stale).expect("no refusal").is_none());
    let published = publish(&mut catalog, layer(2, Some(1))).expect("publishes");
    assert!(Arc::ptr_eq(&published.image.layers()[0], &anew.layers()[0]));
}

#[test]
fn draft_is_refused_for_what_happened_while_it_was_built() {
    let mut catalog = Catalog::<u32>::new();
    publish(&mut catalog, layer(1, None)).expect("publishes");
    catalog.promise(id(3), PageCount(1)).expect("promises");
    let mut drafts: Vec<_> = [(2, Some(1)), (3, None), (4, None)]
        .into_iter()
        .map(|(image, parent)| draft(&catalog, layer(image, parent)).expect("a draft"))
        .collect();
    publish(&mut catalog, layer(4, None)).expect("publishes");
    let refusal = catalog.publish(drafts.pop().expect("three")).err();
    assert_eq!(refusal, Some(PagerRefusal::AlreadyExists { image: id(4) }));
    catalog.fail(id(3)).expect("fails");
    let refusal = catalog.publish(drafts.pop().expect("three")).err();
    assert_eq!(refusal, Some(PagerRefusal::HasFailed { image: id(3) }));
    catalog.retire(id(1)).expect("retires");
    let refusal = catalog.publish(drafts.pop().expect("three")).err();
    assert_eq!(refusal, Some(PagerRefusal::ParentUnknown { parent: id(1) }));
    assert!(catalog.find(id(2)).is_none());
}
