use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

const PAGES: u64 = 200;

type Log = Rc<RefCell<Vec<ReadOutcome<'static, u64>>>>;
type Tell = Box<dyn Fn(ReadOutcome<'_, u64>)>;

fn reader(size: u64) -> (Reader<u64, Tell>, Arc<Arrivals<u64>>, Log) {
    let arrivals = Arrivals::new(ImageId(Default::default()), PageCount(size)).expect("memory");
    let (arrivals, log) = (Arc::new(arrivals), Log::default());
    let its = Rc::clone(&log);
    let tell: Tell = Box::new(move |told| {
        its.borrow_mut().push(match told {
            ReadOutcome::Answer(reads, fresh) => {
                for (page, bytes) in fresh.0 {
                    assert_eq!(fresh.page(*page), Some(&content(page.0)[..]));
                    assert_eq!(*bytes, content(page.0));
                }
                assert_eq!(fresh.page(PageNo(size)), None);
                ReadOutcome::Answer(reads, Fresh(&[]))
            }
            ReadOutcome::Refuse(reads, why) => ReadOutcome::Refuse(reads, why),
            ReadOutcome::Whole => ReadOutcome::Whole,
        });
    });
    let reader = Reader::new(Arc::clone(&arrivals), tell);
    (reader, arrivals, log)
}

fn content(page: u64) -> Page {
    let mut bytes = [u8::try_from(page % 251).expect("small"); PAGE_SIZE];
    bytes[..8].copy_from_slice(&(page + 1).to_le_bytes());
    bytes
}

fn run(first: u64, pages: u64) -> Run {
    Run {
        first: PageNo(first),
        pages: PageCount(pages),
    }
}

fn zeros(reader: &mut impl PageSink, first: u64, pages: u64) {
    reader.zeros(forkyard_transfer::Run {
        first: PageNo(first),
        pages: PageCount(pages),
    });
}

/// Takes out what reads were answered.
fn answered(log: &Log) -> Vec<u64> {
    let told = std::mem::take(&mut *log.borrow_mut());
    let reads = told.into_iter().flat_map(|told| match told {
        ReadOutcome::Answer(reads, _) => reads,
        ReadOutcome::Refuse(..) => panic!("{told:?}"),
        ReadOutcome::Whole => Vec::new(),
    });
    reads.collect()
}

fn is_zero(page: u64) -> bool {
    page.is_multiple_of(5)
}

proptest! {
    /// In whatever order and batches pages come, and whatever waits for them.
    #[test]
    fn every_page_lies_where_it_belongs_and_every_read_is_answered_when_its_last_page_came(
        order in Just((0..PAGES).collect::<Vec<_>>()).prop_shuffle(),
        sorted in 0..200usize,
        flushes in prop::collection::vec(1..40usize, 1..20),
        reads in prop::collection::vec((0..PAGES, 1..30u64, 0..200usize), 0..60),
    ) {
        let mut order = order;
        order[..sorted].sort_unstable();
        let (mut reader, arrivals, log) = reader(PAGES);
        let (mut flushes, mut next) = (flushes.into_iter().cycle(), 0);
        let mut waiting: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut here = BTreeSet::new();
        for (n, page) in order.iter().copied().enumerate() {
            for (name, (first, pages, at)) in (0..).zip(&reads) {
                let missing: Vec<_> = (*first..(first + pages).min(PAGES)).collect();
                let span = run(*first, missing.len() as u64);
                if *at != n {
                    continue;
                }
                match arrivals.read(span, name) {
                    Verdict::Here(_) => prop_assert!(missing.iter().all(|p| here.contains(p))),
                    Verdict::Kept(asked) => {
                        let missing: Vec<_> = missing.into_iter().filter(|p| !here.contains(p)).collect();
                        prop_assert_eq!(asked.iter().map(|p| p.0).collect::<Vec<_>>(), &missing[..]);
                        waiting.push((name, missing));
                    }
                    Verdict::Never(_) => prop_assert!(false),
                }
            }
            match is_zero(page) {
                true => zeros(&mut reader, page, 1),
                false => reader.page(PageNo(page), &content(page)),
            }
            if next == 0 || n + 1 == order.len() {
                reader.flush();
                next = flushes.next().unwrap_or(1);
                here.extend(order[..=n].iter().copied());
                let (done, still): (Vec<_>, Vec<_>) = waiting
                    .into_iter()
                    .partition(|(_, missing)| missing.iter().all(|p| here.contains(p)));
                waiting = still;
                let mut told = answered(&log);
                told.sort_unstable();
                let mut done: Vec<_> = done.into_iter().map(|(name, _)| name).collect();
                done.sort_unstable();
                prop_assert_eq!(told, done);
                let wanted: BTreeSet<_> =
                    waiting.iter().flat_map(|(_, m)| m).filter(|p| !here.contains(p)).collect();
                prop_assert!(arrivals.wanted().iter().map(|p| &p.0).eq(wanted));
            }
            next -= 1;
        }
        for page in 0..PAGES {
            let (mut bytes, zero) = ([1; PAGE_SIZE], [0; PAGE_SIZE]);
            arrivals.copy(PageNo(page), &mut bytes).expect("read");
            prop_assert!(bytes == if is_zero(page) { zero } else { content(page) }, "{}", page);
        }
        prop_assert_eq!(arrivals.progress().have, PageCount(PAGES));
        arrivals.layer().expect("a layer");
    }
}

#[test]
fn reads_of_a_page_that_will_not_come_are_refused_and_others_wait_on() {
    let (mut reader, arrivals, log) = reader(10);
    for (name, (first, pages)) in (0..).zip([(0, 4), (3, 2), (4, 2), (8, 1)]) {
        assert!(matches!(
            arrivals.read(run(first, pages), name),
            Verdict::Kept(_)
        ));
    }
    // What came before is in its place before.
    reader.page(PageNo(8), &content(8));
    reader.gone(PageNo(3));
    let told = std::mem::take(&mut *log.borrow_mut());
    let [
        ReadOutcome::Answer(here, _),
        ReadOutcome::Refuse(refused, _),
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!((&here[..], &refused[..]), (&[3][..], &[0, 1][..]));
    assert_eq!(arrivals.wanted(), [PageNo(4), PageNo(5)]);
    reader.page(PageNo(5), &content(5));
    zeros(&mut reader, 4, 1);
    assert!(answered(&log).is_empty(), "they are kept back");
    reader.flush();
    assert_eq!(answered(&log), [2]);
    assert_eq!(arrivals.wanted(), []);
}

#[test]
fn who_waits_for_one_page_has_it_before_it_is_in_its_place_and_others_after() {
    let arrivals = Arrivals::new(ImageId(Default::default()), PageCount(4)).expect("memory");
    let (arrivals, log) = (Arc::new(arrivals), RefCell::new(Vec::new()));
    let mut reader = Reader::new(Arc::clone(&arrivals), |told| {
        if let ReadOutcome::Answer(reads, fresh) = told {
            let here = arrivals.away(run(1, 1)).is_empty();
            let given = fresh.page(PageNo(1)) == Some(&content(1)[..]);
            log.borrow_mut().push((reads, given, here));
        }
    });
    for (name, (first, pages)) in (0..).zip([(1, 1), (0, 2), (1, 1), (2, 1)]) {
        assert!(matches!(
            arrivals.read(run(first, pages), name),
            Verdict::Kept(_)
        ));
    }
    zeros(&mut reader, 0, 1);
    reader.page(PageNo(1), &content(1));
    reader.flush();
    assert_eq!(
        *log.borrow(),
        [(vec![0, 2], true, false), (vec![1], true, true)]
    );
    assert_eq!(arrivals.progress().have, PageCount(2));
    assert_eq!(arrivals.wanted(), [PageNo(2)]);
}

#[test]
fn what_comes_first_of_a_page_holds() {
    let (mut reader, arrivals, _) = reader(4);
    reader.page(PageNo(1), &content(1));
    zeros(&mut reader, 0, 4);
    reader.flush();
    let mut bytes = [0; PAGE_SIZE];
    arrivals.copy(PageNo(1), &mut bytes).expect("read");
    assert!(bytes == content(1));
}

/// `cargo test --release -p forkyard-pager --lib -- --ignored --nocapture what_it_takes`
#[test]
#[ignore = "prints figures"]
fn what_it_takes_to_install_pages() {
    const MANY: u64 = 32_768;
    let took = |batch: u64, waiters: u64| {
        let (mut reader, arrivals, _) = reader(MANY);
        for name in 0..waiters {
            let _ = arrivals.read(run(MANY - 1 - name, 1), name);
        }
        let bytes = content(7);
        let begun = Instant::now();
        for page in 0..MANY - waiters {
            reader.page(PageNo(page), &bytes);
            if page % batch == batch - 1 {
                reader.flush();
            }
        }
        begun.elapsed().as_secs_f64() * 1e6 / (MANY - waiters) as f64
    };
    for round in 0..5 {
        for (batch, waiters) in [(1, 0), (8, 0), (32, 0), (64, 0), (1, 1000), (32, 1000)] {
            let took = took(batch, waiters);
            println!("{round}: {batch} at a time, {waiters} reads wait: {took:.2} us a page");
        }
    }
}
