//! Random histories with crashes, against a single copy.

mod world;

use forkyard_volume::{
    BlockNo, Change, ChangeRefusal, Cipher, Damage, KEY_BYTES, Lsn, Sequence, SlotIndex, Takeover,
    WriterEpoch,
};
use world::World;

/// Loses what a power cut loses: the end of what was not flushed, at any byte, and pages of it.
fn lose_power(world: &mut World) {
    let torn_pages = world.rng.u8(0..3) == 0;
    let files: Vec<_> = world.files.keys().copied().collect();
    let mut lost = false;
    for sequence in files {
        let kept = world.durable.get(&sequence).copied();
        let file = world.files.get_mut(&sequence).expect("listed");
        let start = kept.unwrap_or(0);
        if torn_pages {
            for page in file[start..].chunks_mut(4096) {
                if world.rng.u8(0..4) == 0 {
                    page.fill(0);
                }
            }
            continue;
        }
        // Appends in order: what is behind a loss is lost, too.
        let end = match lost {
            true => start,
            false => world.rng.usize(start..=file.len()),
        };
        lost |= end < file.len();
        file.truncate(end);
        if kept.is_none() && end == 0 {
            world.files.remove(&sequence);
        }
    }
}

#[test]
fn crashes_at_any_byte_lose_no_flushed_record_and_revive_none() {
    let (mut crashes, mut cuts, mut fetched) = (0, 0, 0);
    for seed in 0..3000 {
        let mut world = World::new(seed);
        for _ in 0..4 {
            for _ in 0..world.rng.u32(5..40) {
                world.something();
            }
            assert_eq!(world.told().expect("whole"), world.truth, "seed {seed}");
            let (flushed, next) = (world.volume.flushed(), world.volume.next_lsn());
            lose_power(&mut world);
            if let Err(damage) = world.recover() {
                panic!("seed {seed}: {damage}");
            }
            let now = world.volume.next_lsn();
            assert!(
                now >= flushed && now <= next,
                "seed {seed}: {now}, {flushed}"
            );
            assert_eq!(world.told().expect("whole"), world.truth, "seed {seed}");
            crashes += 1;
            cuts += u32::from(now < next);
        }
        fetched += world.fetched;
    }
    assert!(fetched > crashes / 10, "{fetched} fetched");
    assert!(cuts > crashes / 10, "{cuts} of {crashes} lost anything");
}

#[test]
fn a_log_cut_at_every_byte_is_a_prefix_of_it() {
    let mut world = World::new(1);
    while world.files.len() < 3 {
        world.something();
    }
    let last = *world.files.keys().next_back().expect("three");
    for _ in 0..2 {
        let length = world.files[&last].len();
        for end in (0..length)
            .step_by(97)
            .chain(length.saturating_sub(300)..length)
        {
            let mut copy = World::new(1);
            copy.volume = world.volume.clone();
            copy.files = world.files.clone();
            copy.checkpoint = world.checkpoint.clone();
            copy.truth = world.truth.clone();
            copy.past = world.past.clone();
            copy.files.get_mut(&last).expect("last").truncate(end);
            if copy.recover().is_ok() {
                assert_eq!(copy.told().expect("whole"), copy.truth, "cut at {end}");
            }
        }
        world.something();
    }
}

#[test]
fn a_changed_byte_is_refused_or_costs_what_nothing_later_vouches_for() {
    let (mut refused, mut unread) = (0, 0);
    for seed in 0..3000 {
        let mut world = World::new(seed);
        while world.files.is_empty() || world.rng.u8(0..40) > 0 {
            world.something();
        }
        let files: Vec<_> = world.files.keys().copied().collect();
        let sequence: Sequence = world.rng.choice(files).expect("one");
        let file = world.files.get_mut(&sequence).expect("listed");
        let at = world.rng.usize(..file.len());
        file[at] ^= 1 << world.rng.u8(0..8);
        match world.recover() {
            Err(_) => refused += 1,
            Ok(()) => match world.told() {
                Ok(told) => assert_eq!(told, world.truth, "seed {seed}"),
                Err(Damage::Block { .. }) => unread += 1,
                Err(other) => panic!("seed {seed}: {other}"),
            },
        }
    }
    assert!(
        refused > 100 && unread > 100,
        "{refused} refused, {unread} unread"
    );
}

#[test]
fn a_changed_checkpoint_is_refused() {
    let mut world = World::new(5);
    for _ in 0..60 {
        world.something();
    }
    world.store_checkpoint(&forkyard_volume::CompactionPlan::default());
    let whole = world.checkpoint.clone();
    for at in (0..whole.len()).step_by(13) {
        world.checkpoint = whole.clone();
        world.checkpoint[at] ^= 4;
        assert!(
            matches!(world.recover(), Err(Damage::Checkpoint(_))),
            "byte {at}"
        );
        world.checkpoint = whole[..at].to_vec();
        assert!(
            matches!(world.recover(), Err(Damage::Checkpoint(_))),
            "cut {at}"
        );
    }
}

#[test]
fn a_flushed_record_that_is_missing_is_told_from_a_torn_tail() {
    for flushed in [true, false] {
        let mut world = World::new(9);
        let epoch = WriterEpoch(1);
        let takeover = Takeover::Refused;
        let write = |block| Change::Write {
            epoch,
            block: BlockNo(block),
            data: &[0; 4096],
        };
        let open = Change::Open { epoch, takeover };
        world.change(&[open], |_, _| {}).expect("opens");
        for block in 0..20 {
            world.change(&[write(block)], |_, _| {}).expect("writes");
        }
        if flushed {
            world.flush();
        }
        world.change(&[write(20)], |_, _| {}).expect("writes");
        let file = world.files.get_mut(&Sequence(1)).expect("there");
        let slot = world.volume.geometry().offset(SlotIndex(3));
        file[usize::try_from(slot).expect("small") + 99] ^= 1;
        let outcome = world.recover();
        match flushed {
            true => {
                let expected = Damage::FlushedRecord {
                    lost: Lsn(4),
                    segment: Sequence(1),
                    witness: Lsn(22),
                };
                assert_eq!(outcome, Err(expected));
            }
            false => {
                assert_eq!(outcome, Ok(()));
                assert_eq!(world.volume.next_lsn(), Lsn(4));
            }
        }
    }
}

#[test]
fn encrypted_contents_are_in_no_file_and_are_read_with_their_key_alone() {
    let told = b"in the clear, in the clear, in t";
    let mut data = [0; 4096];
    for part in data.chunks_mut(told.len()) {
        part.copy_from_slice(told);
    }
    for (seed, is_sealed) in [(1, true), (2, false)] {
        let mut world = World::new(seed);
        let (epoch, takeover) = (WriterEpoch(1), Takeover::Refused);
        let open = Change::Open { epoch, takeover };
        world.change(&[open], |_, _| {}).expect("opens");
        for block in [3, 4] {
            let (block, data) = (BlockNo(block), &data);
            let write = Change::Write { epoch, block, data };
            world.change(&[write], |_, _| {}).expect("writes");
        }
        let mut files = world.files.values();
        let is_there = files.any(|it| it.windows(told.len()).any(|it| it == told));
        assert_eq!(is_there, !is_sealed);
        assert_eq!(world.volume.geometry().is_sealed(), is_sealed);
        if !is_sealed {
            continue;
        }
        // Recovery needs no key. Reads and writes do, and refuse a wrong one.
        world.key = None;
        world.recover().expect("without a key");
        let map = world.volume.map(forkyard_volume::View::Current);
        let map = map.expect("there").clone();
        let refused = world.read(&map, BlockNo(3));
        assert!(matches!(refused, Err(Damage::Block { .. })), "{refused:?}");
        let (block, data) = (BlockNo(5), &data);
        let write = Change::Write { epoch, block, data };
        let refused = world.change(&[write], |_, _| {});
        assert_eq!(refused, Err(ChangeRefusal::Locked));
        world.volume.unlock(Cipher::new(&[8; KEY_BYTES]));
        let refused = world.read(&map, BlockNo(3));
        assert!(matches!(refused, Err(Damage::Block { .. })), "{refused:?}");
        world.volume.unlock(Cipher::new(&[7; KEY_BYTES]));
        assert_eq!(world.content(&map, BlockNo(3)), Ok(data.to_vec()));
    }
}
