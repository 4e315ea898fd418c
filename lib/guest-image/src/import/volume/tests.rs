use super::*;
use proptest::prelude::*;
use std::process::Command;
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;

/// A disk of so many MiB with ext4 at the offsets given, each of 4 MiB.
fn disk(mib: u64, systems: &[u64]) -> NamedTempFile {
    let disk = NamedTempFile::new().expect("a file");
    disk.as_file().set_len(mib * MIB).expect("sparse");
    for offset in systems {
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^has_journal"])
            .arg(format!("-Eoffset={offset}"))
            .arg(disk.path())
            .arg("4M")
            .output()
            .expect("installed");
        assert!(made.status.success(), "{made:?}");
    }
    disk
}

/// Gives it an MBR with these partitions: number, kind, first sector, sectors.
fn partition(disk: &NamedTempFile, partitions: &[(u64, u8, u32, u32)]) {
    let file = disk.as_file();
    file.write_all_at(&[0x55, 0xaa], 510).expect("written");
    for (number, kind, first, count) in partitions {
        let mut entry = [0; 16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
        file.write_all_at(&entry, 446 + (number - 1) * 16)
            .expect("written");
    }
}

/// Partitions a disk with a GPT.
fn partition_by_guid(disk: &NamedTempFile, partitions: &[(u64, u64, u64)]) {
    partition(disk, &[(1, PROTECTIVE, 1, u32::MAX)]);
    let mut header = [0; 512];
    header[..8].copy_from_slice(b"EFI PART");
    header[72] = 2;
    header[80] = 128;
    header[84] = 128;
    disk.as_file().write_all_at(&header, 512).expect("written");
    for (number, first, last) in partitions {
        let mut entry = [0; 128];
        entry[..16].fill(7);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        let place = 1024 + (number - 1) * 128;
        disk.as_file().write_all_at(&entry, place).expect("written");
    }
}

fn found(disk: &NamedTempFile, wanted: Option<u32>) -> Result<Range<u64>, DiskImportError> {
    find(disk.as_file(), wanted).expect("read")
}

#[test]
fn a_disk_that_is_a_file_system_is_taken_whole() {
    assert_eq!(found(&disk(5, &[0]), None), Ok(0..5 * MIB));
}

#[test]
fn the_partition_that_is_wanted_is_taken_whatever_the_table() {
    let old = disk(10, &[MIB]);
    partition(&old, &[(2, 0x83, 2048, 8192), (3, 0x0c, 16384, 64)]);
    let new = disk(10, &[MIB]);
    partition_by_guid(&new, &[(2, 2048, 2048 + 8191), (15, 16384, 16447)]);
    for disk in [old, new] {
        assert_eq!(found(&disk, Some(2)), Ok(MIB..5 * MIB));
        let Err(DiskImportError::Partitioned(there)) = found(&disk, None) else {
            panic!("it was not said which");
        };
        assert!(
            there.len() == 2 && there[0].starts_with("2 (ext4, "),
            "{there:?}"
        );
        let none = found(&disk, Some(1));
        assert!(
            matches!(none, Err(DiskImportError::NoPartition { wanted: 1, .. })),
            "{none:?}"
        );
    }
}

#[test]
fn what_is_no_file_system_for_a_guest_is_called_by_its_name() {
    let empty = disk(2, &[]);
    let found_in = |disk| match found(disk, None) {
        Err(DiskImportError::NoFileSystem { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found_in(&empty), "nothing that is known");
    empty.as_file().write_all_at(b"XFSB", 0).expect("written");
    assert_eq!(found_in(&empty), "XFS");
    let none = found(&empty, Some(1));
    assert!(
        matches!(none, Err(DiskImportError::NoPartition { .. })),
        "{none:?}"
    );
}

#[test]
fn what_was_cut_off_is_refused() {
    let short = disk(4, &[0]);
    short.as_file().set_len(3 * MIB).expect("cut");
    let refused = found(&short, None);
    assert!(
        matches!(
            refused,
            Err(DiskImportError::CutOff {
                what: "file system",
                ..
            })
        ),
        "{refused:?}"
    );
    let beyond = disk(5, &[MIB]);
    partition(&beyond, &[(1, 0x83, 2048, 16384)]);
    let refused = found(&beyond, Some(1));
    assert!(
        matches!(
            refused,
            Err(DiskImportError::CutOff {
                what: "partition",
                ..
            })
        ),
        "{refused:?}"
    );
}

proptest! {
    #[test]
    fn no_table_leads_outside_of_the_disk(
        head in prop::collection::vec(any::<u8>(), 4096),
        entry in any::<[u8; 64]>(),
        wanted in prop::option::of(0_u32..6),
        guid in any::<bool>(),
    ) {
        let disk = NamedTempFile::new().expect("a file");
        let file = disk.as_file();
        file.write_all_at(&head, 0).expect("written");
        file.write_all_at(&entry, 446).expect("written");
        file.write_all_at(&[0x55, 0xaa], 510).expect("written");
        if guid {
            file.write_all_at(&[PROTECTIVE], 450).expect("written");
            file.write_all_at(b"EFI PART", 512).expect("written");
        }
        if let Ok(bytes) = found(&disk, wanted) {
            prop_assert!(bytes.start < bytes.end && bytes.end <= 4096);
        }
    }
}
