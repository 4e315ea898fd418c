//! Cost of a map.

use forkyard_volume::{
    Batch, BlockNo, Blocks, Change, ChangeRefusal, Geometry, Takeover, View, Volume, VolumeId,
    WriterEpoch,
};

fn push(volume: &mut Volume, changes: &[Change<'_>]) {
    for change in changes {
        loop {
            let mut batch = Batch::begin(volume, Vec::new());
            match batch.push(*change) {
                Ok(()) => {
                    let staged = batch.finish().expect("one");
                    volume.commit(staged).expect("in order");
                    break;
                }
                Err(ChangeRefusal::SegmentFull) => {
                    let header = volume.next_segment().expect("room");
                    volume.begin_segment(&header);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

fn full(blocks: u64) -> Volume {
    let mut volume = Volume::create(VolumeId([1; 16]), Blocks(blocks), Geometry::USUAL);
    let epoch = WriterEpoch(1);
    let takeover = Takeover::Refused;
    push(&mut volume, &[Change::Open { epoch, takeover }]);
    let data = &[3; 4096];
    for block in (0..blocks).map(BlockNo) {
        push(&mut volume, &[Change::Write { epoch, block, data }]);
    }
    volume
}

#[test]
fn a_block_takes_ten_bytes_of_memory_at_most() {
    let blocks = 100_000;
    let volume = full(blocks);
    let map = volume.map(View::Current).expect("always");
    assert_eq!(map.entries().count() as u64, blocks);
    let each = map.resident_bytes() as f64 / blocks as f64;
    assert!(each <= 10.0, "{each} bytes a block");
    let checkpoint = volume.checkpoint(&[]).len() as f64 / blocks as f64;
    assert!(
        checkpoint <= 10.0,
        "{checkpoint} bytes a block in a checkpoint"
    );
}

#[test]
fn a_snapshot_shares_all_it_can() {
    let mut volume = full(10_000);
    let before = volume.checkpoint(&[]).len();
    push(&mut volume, &[Change::Snapshot { name: "s" }]);
    let pointers = 10_000 / 512 * 4 + 200;
    let after = volume.checkpoint(&[]).len();
    assert!(after < before + pointers, "{before} bytes, then {after}");
    let data = &[9; 4096];
    let epoch = WriterEpoch(1);
    let block = BlockNo(700);
    push(&mut volume, &[Change::Write { epoch, block, data }]);
    let chunk = 512 * 9;
    let parted = volume.checkpoint(&[]).len();
    assert!(
        parted < after + chunk + 100,
        "one chunk is no longer shared"
    );
    let (_, snapshot) = volume.snapshots().next().expect("one");
    let current = volume.map(View::Current).expect("always");
    assert_ne!(snapshot.map.get(block), current.get(block));
    assert_eq!(snapshot.map.get(BlockNo(0)), current.get(BlockNo(0)));
}
