//! Place of the root file system on a disk.
//!
//! The guest's kernel has the whole disk as its root, on ext4 (which reads
//! ext2 and ext3, too). A disk may be just that, or have a partition table,
//! MBR or GPT, in sectors of 512 bytes.

use super::DiskImportError;
use forkyard_types::ByteCount;
use std::{
    fs::File,
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::FileExt,
};

const SECTOR: u64 = 512;
/// Of an MBR: the partition that says that there is a GPT.
const PROTECTIVE: u8 = 0xee;
/// Of an MBR: partitions that hold others.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Most entries of a GPT that are looked at; there are 128 as a rule.
const ENTRIES: u32 = 1024;
/// Magic numbers of other things that a disk may hold, their offsets and names.
const OTHERS: [(u64, &[u8], &str); 8] = [
    (0, b"XFSB", "XFS"),
    (0, b"hsqs", "squashfs"),
    (0, b"LUKS", "an encrypted volume"),
    (SECTOR, b"LABELONE", "a volume of LVM"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (54, b"FAT", "FAT"),
    (82, b"FAT32", "FAT"),
    (3, b"NTFS", "NTFS"),
];

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Partition {
    number: u32,
    bytes: Range<u64>,
}

/// The bytes of the root file system: all of it, or of the partition wanted.
pub fn find(disk: &File, wanted: Option<u32>) -> io::Result<Result<Range<u64>, DiskImportError>> {
    let size = disk.metadata()?.len();
    let Some(wanted) = wanted else {
        return whole(disk, size);
    };
    let there = partitions(disk, size)?;
    let Some(found) = there.iter().find(|partition| partition.number == wanted) else {
        let there = told(disk, &there)?;
        return Ok(Err(DiskImportError::NoPartition { wanted, there }));
    };
    let place = format!("partition {wanted}");
    check(disk, found.bytes.clone(), &place, size)
}

fn whole(disk: &File, size: u64) -> io::Result<Result<Range<u64>, DiskImportError>> {
    if file_system(disk, 0)?.is_none() {
        let partitions = partitions(disk, size)?;
        if !partitions.is_empty() {
            return Ok(Err(DiskImportError::Partitioned(told(disk, &partitions)?)));
        }
    }
    check(disk, 0..size, "disk", size)
}

fn check(
    disk: &File,
    bytes: Range<u64>,
    place: &str,
    size: u64,
) -> io::Result<Result<Range<u64>, DiskImportError>> {
    let cut_off = |what, wants, has| {
        let (wants, has) = (ByteCount(wants), ByteCount(has));
        Ok(Err(DiskImportError::CutOff { what, wants, has }))
    };
    if bytes.end > size {
        return cut_off("partition", bytes.end, size);
    }
    let length = bytes.end - bytes.start;
    match file_system(disk, bytes.start)? {
        None => Ok(Err(DiskImportError::NoFileSystem {
            place: place.to_owned(),
            found: other(disk, bytes.start)?.unwrap_or("nothing that is known"),
        })),
        Some(wants) if wants > length => cut_off("file system", wants, length),
        Some(_) => Ok(Ok(bytes)),
    }
}

/// Bytes of the ext2, ext3 or ext4 file system at `start`, if there is one.
fn file_system(disk: &File, start: u64) -> io::Result<Option<u64>> {
    let superblock: [u8; 1024] = read(disk, start.saturating_add(1024))?;
    if superblock[56..58] != [0x53, 0xef] {
        return Ok(None);
    }
    let has_high = word(&superblock, 96) & 0x80 != 0;
    let high = if has_high { word(&superblock, 336) } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(word(&superblock, 4));
    // A size that makes no sense is more than there can be.
    let block = 1024_u64.checked_shl(word(&superblock, 24)).unwrap_or(0);
    Ok(Some(
        blocks
            .checked_mul(block)
            .filter(|_| block > 0)
            .unwrap_or(u64::MAX),
    ))
}

fn other(disk: &File, start: u64) -> io::Result<Option<&'static str>> {
    for (at, magic, name) in OTHERS {
        let bytes: [u8; 8] = read(disk, start.saturating_add(at))?;
        if bytes.starts_with(magic) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Describes partitions for a message.
fn told(disk: &File, partitions: &[Partition]) -> io::Result<Vec<String>> {
    partitions
        .iter()
        .map(|partition| {
            let start = partition.bytes.start;
            let content = match file_system(disk, start)? {
                Some(_) => "ext4",
                None => other(disk, start)?.unwrap_or("something else"),
            };
            let size = ByteCount(partition.bytes.end - start);
            Ok(format!("{} ({content}, {size})", partition.number))
        })
        .collect()
}

/// The partitions of a disk; none if it has no table.
fn partitions(disk: &File, size: u64) -> io::Result<Vec<Partition>> {
    let mbr: [u8; 512] = read(disk, 0)?;
    if mbr[510..] != [0x55, 0xaa] {
        return Ok(Vec::new());
    }
    let entries: Vec<&[u8]> = mbr[446..510].chunks(16).collect();
    if entries.iter().any(|entry| entry[4] == PROTECTIVE) {
        return guid_partitions(disk, size);
    }
    let partitions = entries.iter().zip(1..).filter_map(|(entry, number)| {
        let (first, count) = (u64::from(word(entry, 8)), u64::from(word(entry, 12)));
        let used = entry[4] != 0 && !EXTENDED.contains(&entry[4]) && count > 0;
        let bytes = first * SECTOR..(first + count) * SECTOR;
        used.then_some(Partition { number, bytes })
    });
    Ok(partitions.collect())
}

fn guid_partitions(disk: &File, size: u64) -> io::Result<Vec<Partition>> {
    let header: [u8; 512] = read(disk, SECTOR)?;
    let (count, length) = (word(&header, 80).min(ENTRIES), u64::from(word(&header, 84)));
    let Some(table) = long(&header, 72).checked_mul(SECTOR) else {
        return Ok(Vec::new());
    };
    if &header[..8] != b"EFI PART" || !(128..=4096).contains(&length) || table >= size {
        return Ok(Vec::new());
    }
    let mut partitions = Vec::new();
    for number in 1..=count {
        let entry: [u8; 128] = read(disk, table.saturating_add(u64::from(number - 1) * length))?;
        let (first, last) = (long(&entry, 32), long(&entry, 40));
        let end = last.checked_add(1).and_then(|end| end.checked_mul(SECTOR));
        if let Some(end) = end
            && entry[..16] != [0; 16]
            && first <= last
        {
            let bytes = first * SECTOR..end;
            partitions.push(Partition { number, bytes });
        }
    }
    Ok(partitions)
}

/// Bytes of the disk; zeros behind its end.
fn read<const N: usize>(disk: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut there = 0;
    while there < N {
        match disk.read_at(&mut bytes[there..], at.saturating_add(there as u64)) {
            Ok(0) => break,
            Ok(read) => there += read,
            // A place that no file can have.
            Err(error) if error.kind() == ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

#[cfg(test)]
mod tests;
