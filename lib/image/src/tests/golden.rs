//! The bytes on disk, as documented: a change here is a new version.

use super::{Says, bytes_of, lineage, write};
use forkyard_types::PAGE_SIZE;

/// Says where `found` differs from the parts, each a place and its bytes.
fn check(found: &[u8], parts: &[(usize, &[u8])]) {
    for (at, want) in parts {
        assert_eq!(&found[*at..at + want.len()], *want, "at byte {at}");
    }
}

#[test]
fn layer_has_the_bytes_that_are_documented() {
    let id = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    let pages = [
        Says::Nothing,
        Says::Data(1),
        Says::Data(2),
        Says::Zero,
        Says::Zero,
    ];
    let file = bytes_of(&write(lineage(id, Some(7)), &pages, |n| n));
    assert_eq!(file.len(), 3 * PAGE_SIZE + 2 * 24 + 2 * 8);
    check(
        &file,
        &[
            (0, b"FYLAYER\0\x01\0\0\0\x01\0\0\0"),
            (
                16,
                b"\0\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff",
            ),
            (32, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07"),
            (48, b"\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"),
            (64, b"\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"),
            (80, &INDEX_SUM.to_le_bytes()),
            (88, &[0; 4000]),
            (4088, &HEADER_SUM.to_le_bytes()),
            (4096, &[1; 4096]),
            (8192, &[2; 4096]),
        ],
    );
    check(
        &file[3 * PAGE_SIZE..],
        &[
            (0, b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            (
                24,
                b"\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
            ),
            (48, &PAGE_1_SUM.to_le_bytes()),
            (56, &PAGE_2_SUM.to_le_bytes()),
        ],
    );
}

#[test]
fn layer_that_stands_alone_has_no_parent_and_no_zeros() {
    let pages = [Says::Zero, Says::Data(1), Says::Zero];
    let file = bytes_of(&write(lineage(5, None), &pages, |n| n));
    check(
        &file,
        &[
            (12, &[0; 4]),
            (32, &[0; 16]),
            (64, &[1, 0, 0, 0, 0, 0, 0, 0]),
        ],
    );
    assert_eq!(file.len(), 2 * PAGE_SIZE + 24 + 8);
}

// From the reference implementation, of the bytes as documented.
const INDEX_SUM: u64 = 0x5b20_16e2_4656_e9b1;
const HEADER_SUM: u64 = 0x9850_e071_013b_8b40;
const PAGE_1_SUM: u64 = 0x40d4_d8a9_314d_fcd8;
const PAGE_2_SUM: u64 = 0xaf32_f4e3_5087_f18e;
