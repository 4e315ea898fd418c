//! Reasons for which blocks are sent or left, as they are told afterwards.

use forkyard_replicate::{BlockRun, Knobs, Purpose};
use forkyard_volume::{BlockNo, Geometry, Takeover, View};
use forkyard_volume_store::{
    Ahead, AtRest, BlockLocation, Library, Patience, Scratch, Store, StoreError, Why,
};
use std::{io::Cursor, path::Path};

const BLOCK: u64 = 4096;

fn library(folder: &Path) -> Library {
    let geometry = Geometry::new(5).expect("32 slots");
    Library::with_geometry(folder, geometry).expect("a folder")
}

fn read(store: &Store, block: u64, times: usize) {
    let (mut out, mut scratch) = ([0; 4096], Scratch::default());
    for _ in 0..times {
        let (view, at) = (View::Current, block * BLOCK);
        let read = store.read(view, at, &mut out, &mut scratch, Patience::Disk);
        read.expect("reads");
    }
}

fn why(store: &Store, block: u64) -> Why {
    store.why(BlockNo(block)).expect("told")
}

#[test]
fn each_block_is_told_with_the_counts_and_the_law_by_which_it_went_or_stayed() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", 40 * BLOCK, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    for block in 0..30 {
        store
            .write(epoch, block * BLOCK, &[7; 4096])
            .expect("writes");
    }
    // Counting begins anew: most blocks are cold.
    drop((store, here));
    let here = library(folders[0].path());
    let store = here.open("v").expect("opens");
    for (block, reads, writes) in [(3, 6, 2), (4, 2, 2), (5, 1, 4), (6, 3, 0)] {
        read(&store, block, reads);
        for _ in 0..writes {
            store
                .write(epoch, block * BLOCK, &[8; 4096])
                .expect("writes");
        }
    }
    store.tune(Knobs { k: 10.0, s: 1.0 }).expect("tuned");
    store.snapshot("one").expect("kept");
    let mut stream = Vec::new();
    let (most, from) = (2, "a".to_owned());
    let ahead = Ahead::Hot { most, from };
    let sent = store.send_to(Some("b"), ("one", None), &ahead, &mut stream);
    assert_eq!(sent.expect("sent").0, 2);
    // What was counted then is told, whatever comes later.
    read(&store, 4, 100);
    store.tune(Knobs { k: 1.0, s: 0.1 }).expect("tuned");
    let told = |block, is_sent, words: &str, priority: Option<f64>| {
        let why = why(&store, block);
        let [one] = &why.transfers[..] else {
            panic!("{why:?}");
        };
        assert_eq!(one.host.as_deref(), Some("b"));
        assert_eq!(one.is_sent, is_sent, "{one:?}");
        assert!(one.why.contains(words), "{one:?}");
        let law = one.law.as_ref().expect("counts are kept");
        assert_eq!((law.k, law.priority), (10.0, priority), "{law:?}");
    };
    told(3, true, "one of the 2 blocks", Some(36.0));
    told(6, true, "one of the 2 blocks", Some(33.0));
    told(
        4,
        false,
        "2 blocks are worth more, the last of them 33",
        Some(12.0),
    );
    told(5, false, "too often for its reads", Some(0.0));
    told(20, false, "not used since", None);
    let now = why(&store, 4);
    assert_eq!((now.law.k, now.law.s), (1.0, 0.1));
    assert!(now.law.reads > 90, "{now:?}");
    let unwritten = why(&store, 35);
    assert_eq!(unwritten.holding, BlockLocation::Unwritten);
    assert!(unwritten.transfers.is_empty());
    let beyond = store.why(BlockNo(40));
    assert!(matches!(beyond, Err(StoreError::Refused(_))), "{beyond:?}");

    // At the other host what is lacking is known, and what was fetched, and for what.
    there
        .receive("v", None, &mut Cursor::new(stream))
        .expect("received");
    let arrived = there.open("v").expect("opens");
    assert_eq!(why(&arrived, 4).holding, BlockLocation::Elsewhere);
    let asking = arrived.ask("one", Purpose::Demand).expect("lacking");
    let mut answer = Vec::new();
    let asked = [BlockRun {
        first: BlockNo(4),
        count: 2,
    }];
    let of = (Some("b"), Purpose::Demand);
    store
        .send_blocks("one", &asked, of, &mut answer)
        .expect("sent");
    asking.take(&asked, &mut Cursor::new(answer)).expect("came");
    let came = why(&arrived, 4);
    assert_eq!(came.holding, BlockLocation::Here);
    assert_eq!(came.transfers[0].host.as_deref(), Some("a"));
    assert!(came.transfers[0].why.contains("a read here waited"));
    let asked = why(&store, 4).transfers;
    assert_eq!(asked.len(), 2);
    assert!(
        asked
            .iter()
            .any(|it| it.why.contains("a read at the other host"))
    );
    // The parameters are the volume's, and survive.
    drop((store, here));
    let store = library(folders[0].path()).open("v").expect("opens");
    assert_eq!(store.knobs(), Knobs { k: 1.0, s: 0.1 });
    let refused = store.tune(Knobs {
        k: f64::NAN,
        s: 1.0,
    });
    assert!(matches!(refused, Err(StoreError::Knobs)));
}

#[test]
fn memory_for_reasons_is_bounded_and_what_is_not_kept_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library
        .create("v", 20_000 * BLOCK, &AtRest::Plain)
        .expect("made");
    store.snapshot("one").expect("kept");
    let run = |first| BlockRun {
        first: BlockNo(first),
        count: 1,
    };
    // Every other block, so that runs do not join.
    for block in (0..20_000).step_by(2) {
        let of = (Some("b"), Purpose::Fill);
        let sent = store.send_blocks("one", &[run(block)], of, &mut Vec::new());
        sent.expect("sent");
    }
    let (early, late) = (why(&store, 0), why(&store, 19_998));
    assert!(early.transfers.is_empty() && early.is_cut, "{early:?}");
    assert_eq!(late.transfers.len(), 1);
}
