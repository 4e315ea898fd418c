//! Tar streams, written: ustar headers, and pax records for what they cannot
//! hold.

use crate::{BLOCK, Entry, EntryKind, FilesError};
use std::io::Write;

/// Largest number in a header's field of eight digits.
const OCTAL7: u64 = 0o7_777_777;
/// Largest size in a header.
const OCTAL11: u64 = 0o77_777_777_777;

/// Writer of a tar stream.
#[derive(Debug)]
pub struct TarWriter<W> {
    to: W,
}

impl<W: Write> TarWriter<W> {
    /// Starts a stream.
    pub fn new(to: W) -> Self {
        Self { to }
    }

    /// Writes a member's header; returns the number of data bytes that must follow
    /// by [`TarWriter::data`], and then be padded by [`TarWriter::pad`]. The map of a
    /// file with holes is among what has been written.
    pub fn header(&mut self, entry: &Entry) -> Result<u64, FilesError> {
        let mut records = Vec::new();
        let mut path = entry.path.clone();
        let (flag, link, data, map) = match &entry.kind {
            EntryKind::File { size, extents } => match extents {
                None => (b'0', Vec::new(), *size, None),
                Some(extents) => {
                    let map = map_of(extents, *size);
                    record(&mut records, b"GNU.sparse.major", b"1");
                    record(&mut records, b"GNU.sparse.minor", b"0");
                    record(&mut records, b"GNU.sparse.name", &path);
                    record(
                        &mut records,
                        b"GNU.sparse.realsize",
                        size.to_string().as_bytes(),
                    );
                    let data = extents.iter().map(|extent| extent.1).sum::<u64>();
                    (b'0', Vec::new(), data, Some(map))
                }
            },
            EntryKind::Folder => {
                path.push(b'/');
                (b'5', Vec::new(), 0, None)
            }
            EntryKind::Link(to) => (b'2', to.clone(), 0, None),
            EntryKind::Same(to) => (b'1', to.clone(), 0, None),
            EntryKind::Fifo | EntryKind::Device => {
                return Err(FilesError::Format("a kind that is never sent"));
            }
        };
        let stored = data + map.as_ref().map_or(0, |map| map.len() as u64);
        if path.len() > 100 || !path.is_ascii() {
            record(&mut records, b"path", &path);
        }
        if link.len() > 100 || !link.is_ascii() {
            record(&mut records, b"linkpath", &link);
        }
        let (seconds, nanos) = entry.mtime;
        if nanos > 0 || seconds < 0 || seconds.unsigned_abs() > OCTAL11 {
            // As a sum: before 1970 too the fraction counts upwards.
            let time = match (seconds, nanos) {
                (s, n) if s < 0 && n > 0 => {
                    let whole = (s + 1).unsigned_abs();
                    format!("-{whole}.{:09}", 1_000_000_000 - n)
                }
                (s, n) => format!("{s}.{n:09}"),
            };
            record(&mut records, b"mtime", time.as_bytes());
        }
        for (name, number) in [(b"uid", entry.uid), (b"gid", entry.gid)] {
            if u64::from(number) > OCTAL7 {
                record(&mut records, name, number.to_string().as_bytes());
            }
        }
        if stored > OCTAL11 {
            record(&mut records, b"size", stored.to_string().as_bytes());
        }
        if !records.is_empty() {
            self.extended(b'x', &records)?;
        }
        let mut block = block(&path, flag, stored);
        octal(&mut block[100..108], u64::from(entry.mode & 0o7777));
        octal(&mut block[108..116], u64::from(entry.uid).min(OCTAL7));
        octal(&mut block[116..124], u64::from(entry.gid).min(OCTAL7));
        let whole = u64::try_from(seconds).unwrap_or(0).min(OCTAL11);
        octal(&mut block[136..148], whole);
        let short = link.len().min(100);
        block[157..157 + short].copy_from_slice(&link[..short]);
        self.put(&sealed(block))?;
        if let Some(map) = map {
            self.put(&map)?;
        }
        Ok(data)
    }

    /// Writes data of the member whose header came last.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.put(bytes)
    }

    /// Ends a member's data, of which there were so many.
    pub fn pad(&mut self, data: u64) -> Result<(), FilesError> {
        let over = usize::try_from(data % BLOCK as u64).unwrap_or(0);
        match over {
            0 => Ok(()),
            over => self.put(&[0; BLOCK][over..]),
        }
    }

    /// Writes a word for the reader that other tar programs pass over.
    pub fn word(&mut self, name: &str, text: &str) -> Result<(), FilesError> {
        let mut records = Vec::new();
        record(&mut records, name.as_bytes(), text.as_bytes());
        self.extended(b'g', &records)
    }

    /// Ends the stream.
    pub fn finish(mut self) -> Result<(), FilesError> {
        self.put(&[0; 2 * BLOCK])?;
        self.to.flush().map_err(FilesError::Stream)
    }

    fn extended(&mut self, flag: u8, records: &[u8]) -> Result<(), FilesError> {
        let mut block = block(b"././@PaxHeader", flag, records.len() as u64);
        octal(&mut block[100..108], 0o644);
        self.put(&sealed(block))?;
        self.put(records)?;
        self.pad(records.len() as u64)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.to.write_all(bytes).map_err(FilesError::Stream)
    }
}

fn block(path: &[u8], flag: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let short = path.len().min(100);
    block[..short].copy_from_slice(&path[..short]);
    octal(&mut block[124..136], size.min(OCTAL11));
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block
}

fn sealed(mut block: [u8; BLOCK]) -> [u8; BLOCK] {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

fn octal(field: &mut [u8], number: u64) {
    let digits = field.len() - 1;
    let text = format!("{number:0digits$o}");
    field[..digits].copy_from_slice(&text.as_bytes()[..digits]);
}

/// Map of a file with holes, format 1.0 of GNU tar: numbers in lines, padded.
fn map_of(extents: &[(u64, u64)], size: u64) -> Vec<u8> {
    // An empty one at the end has GNU tar set the size.
    let last = [(size, 0)];
    let mut map = format!("{}\n", extents.len() + 1);
    for (offset, length) in extents.iter().chain(&last) {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// A pax record: its own length in digits is part of its length.
fn record(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(name);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}
