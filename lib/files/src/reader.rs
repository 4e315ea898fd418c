//! Tar streams, read: ustar, GNU's long names and large numbers, and pax by the
//! lengths of its records, with files with holes of format 1.0.
//!
//! Every length is bounded before anything is allocated for it.

use crate::{BLOCK, Entry, FilesError, Kind};
use std::io::Read;

/// Longest extended header or long name.
const MOST_EXTENDED: u64 = 1 << 20;
/// Most extents of a file.
const MOST_EXTENTS: u64 = 1 << 18;
/// Most bytes of words of the sender.
const MOST_WORDS: usize = 64 << 10;

/// Reader of a tar stream.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    /// Data bytes of the present member that were not read, and their padding.
    left: u64,
    padding: u64,
    words: usize,
    /// What the sender has to say, as it comes.
    pub notes: Vec<String>,
}

/// What extended headers say of the next member.
#[derive(Debug, Default)]
struct More {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    sparse: [Option<u64>; 3],
    sparse_name: Option<Vec<u8>>,
    sparse_old: bool,
}

impl<R: Read> Reader<R> {
    /// Starts with a stream.
    pub fn new(from: R) -> Self {
        Self {
            from,
            left: 0,
            padding: 0,
            words: 0,
            notes: Vec::new(),
        }
    }

    /// Returns the next member; none at the end, which must be there. What was not
    /// read of the member before is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, FilesError> {
        self.pass(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut more = More::default();
        loop {
            let mut block = [0; BLOCK];
            self.exact(&mut block)?;
            if block == [0; BLOCK] {
                // All there is: a sender that writes more is heard to its end.
                return Ok(None);
            }
            if !is_header(&block) {
                return Err(FilesError::Format("a header has a wrong checksum"));
            }
            let size = number(&block[124..136])?;
            match block[156] {
                b'x' => self.extended(size, |name, value| more.take(name, value))?,
                b'g' => self.global(size)?,
                b'L' => more.path = Some(self.text(size)?),
                b'K' => more.link = Some(self.text(size)?),
                flag => return self.member(&block, flag, size, more).map(Some),
            }
        }
    }

    /// Reads data of the present member; 0 at its end.
    pub fn data(&mut self, buffer: &mut [u8]) -> Result<usize, FilesError> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let read = self
            .from
            .read(&mut buffer[..most])
            .map_err(FilesError::stream)?;
        if read == 0 {
            return Err(FilesError::Short);
        }
        self.left -= read as u64;
        Ok(read)
    }

    /// Reads to the end of the stream, whatever follows.
    pub fn drain(&mut self) -> Result<(), FilesError> {
        let copied = std::io::copy(&mut self.from, &mut std::io::sink());
        copied.map(drop).map_err(FilesError::stream)
    }

    fn member(
        &mut self,
        block: &[u8; BLOCK],
        flag: u8,
        size: u64,
        more: More,
    ) -> Result<Entry, FilesError> {
        let stored = more.size.unwrap_or(size);
        if stored > i64::MAX as u64 {
            return Err(FilesError::Format("a size that no file has"));
        }
        let plain = matches!(flag, b'0' | 0 | b'7');
        let name = match (&block[257..263], terminated(&block[345..500])) {
            (b"ustar\0", prefix) if !prefix.is_empty() => {
                [prefix, b"/", terminated(&block[..100])].concat()
            }
            _ => terminated(&block[..100]).to_vec(),
        };
        let mut path = more.path.unwrap_or(name);
        let old_folder = plain && path.ends_with(b"/");
        let link = more
            .link
            .unwrap_or_else(|| terminated(&block[157..257]).to_vec());
        let has_data = plain && !old_folder;
        let (left, padding) = match has_data {
            true => (stored, stored.next_multiple_of(BLOCK as u64) - stored),
            // A link's size, if it says one, is that of the file.
            false if matches!(flag, b'1' | b'2' | b'3' | b'4' | b'5' | b'6') || old_folder => {
                (0, 0)
            }
            false => {
                return Err(FilesError::Format(
                    "a member of an unknown type, perhaps of `tar --sparse` without `--format=posix`",
                ));
            }
        };
        (self.left, self.padding) = (left, padding);
        let kind = match flag {
            b'5' => Kind::Folder,
            _ if old_folder => Kind::Folder,
            b'2' => Kind::Link(link),
            b'1' => Kind::Same(link),
            b'3' | b'4' | b'6' => Kind::Other,
            _ => match more.sparse {
                [Some(1), Some(0), Some(size)] => {
                    path = more.sparse_name.unwrap_or(path);
                    let extents = Some(self.map(size)?);
                    Kind::File { size, extents }
                }
                [None, None, None] if !more.sparse_old => Kind::File {
                    size: stored,
                    extents: None,
                },
                _ => {
                    return Err(FilesError::Format(
                        "a file with holes of another format than 1.0",
                    ));
                }
            },
        };
        let id = |pax: Option<u64>, field: &[u8]| {
            let id = pax.map_or_else(|| number(field), Ok)?;
            Ok(u32::try_from(id).unwrap_or(u32::MAX))
        };
        let seconds = i64::try_from(number(&block[136..148])?).unwrap_or(i64::MAX);
        while path.ends_with(b"/") {
            path.pop();
        }
        Ok(Entry {
            path,
            kind,
            mode: u32::try_from(number(&block[100..108])? & 0o7777).unwrap_or(0),
            uid: id(more.uid, &block[108..116])?,
            gid: id(more.gid, &block[116..124])?,
            mtime: more.mtime.unwrap_or((seconds, 0)),
        })
    }

    /// Reads the map that a file with holes begins with.
    fn map(&mut self, size: u64) -> Result<Vec<(u64, u64)>, FilesError> {
        let bad = FilesError::Format("a map of holes makes no sense");
        let mut block = Vec::new();
        let mut at = 0;
        let mut line = || -> Result<u64, FilesError> {
            let mut value: u64 = 0;
            let mut digits = 0;
            loop {
                if at == block.len() {
                    block.resize(BLOCK, 0);
                    at = 0;
                    if self.left < BLOCK as u64 {
                        return Err(FilesError::Format("a map of holes ends early"));
                    }
                    self.from
                        .read_exact(&mut block)
                        .map_err(FilesError::stream)?;
                    self.left -= BLOCK as u64;
                }
                let byte = block[at];
                at += 1;
                match byte {
                    b'\n' if digits > 0 => return Ok(value),
                    b'0'..=b'9' if digits < 19 => {
                        value = value * 10 + u64::from(byte - b'0');
                        digits += 1;
                    }
                    _ => return Err(FilesError::Format("a map of holes is no list of numbers")),
                }
            }
        };
        let count = line()?;
        if count > MOST_EXTENTS + 1 {
            return Err(FilesError::Format("a file with too many holes"));
        }
        let (mut extents, mut end, mut data) = (Vec::new(), 0, 0_u64);
        for _ in 0..count {
            let (offset, length) = (line()?, line()?);
            match offset.checked_add(length) {
                Some(next) if offset >= end && next <= size => end = next,
                _ => return Err(bad),
            }
            data += length;
            if length > 0 {
                extents.push((offset, length));
            }
        }
        match data == self.left {
            true => Ok(extents),
            false => Err(bad),
        }
    }

    fn global(&mut self, size: u64) -> Result<(), FilesError> {
        let mut failed = None;
        let mut words = self.words;
        let mut notes = Vec::new();
        self.extended(size, |name, value| {
            words += value.len();
            let text = || String::from_utf8_lossy(value).into_owned();
            match name {
                NOTE if words <= MOST_WORDS => notes.push(text()),
                FAILURE => failed = Some(text()),
                _ => {}
            }
            Ok(())
        })?;
        self.words = words.min(MOST_WORDS + 1);
        self.notes.append(&mut notes);
        match failed {
            Some(mut why) => {
                let end = (0..=1024).rev().find(|at| why.is_char_boundary(*at));
                why.truncate(end.unwrap_or(0));
                Err(FilesError::Sender(why))
            }
            None => Ok(()),
        }
    }

    fn extended(
        &mut self,
        size: u64,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<(), FilesError>,
    ) -> Result<(), FilesError> {
        let all = self.whole(size)?;
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            let bad = || FilesError::Format("an extended header makes no sense");
            let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length = decimal(&rest[..space]).and_then(|n| usize::try_from(n).ok());
            let length = length
                .filter(|n| *n > space + 2 && *n <= rest.len())
                .ok_or_else(bad)?;
            let (record, next) = rest.split_at(length);
            let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(bad)?;
            take(&record[..equals], &record[equals + 1..])?;
            rest = next;
        }
        Ok(())
    }

    fn text(&mut self, size: u64) -> Result<Vec<u8>, FilesError> {
        Ok(terminated(&self.whole(size)?).to_vec())
    }

    fn whole(&mut self, size: u64) -> Result<Vec<u8>, FilesError> {
        let length = match usize::try_from(size) {
            Ok(length) if size <= MOST_EXTENDED => length,
            _ => return Err(FilesError::Format("an extended header is too long")),
        };
        let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
        self.exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), FilesError> {
        self.from.read_exact(bytes).map_err(FilesError::stream)
    }

    fn pass(&mut self, bytes: u64) -> Result<(), FilesError> {
        let mut rest = self.from.by_ref().take(bytes);
        match std::io::copy(&mut rest, &mut std::io::sink()) {
            Ok(passed) if passed == bytes => Ok(()),
            Ok(_) => Err(FilesError::Short),
            Err(error) => Err(FilesError::stream(error)),
        }
    }
}

/// Name of the record with something that was left out.
pub(crate) const NOTE: &[u8] = b"FORKYARD.note";
/// Name of the record with the reason for which a stream ends early.
pub(crate) const FAILURE: &[u8] = b"FORKYARD.failure";

impl More {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), FilesError> {
        let count = || decimal(value).ok_or(FilesError::Format("an extended header has no number"));
        match name {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(count()?),
            b"uid" => self.uid = Some(count()?),
            b"gid" => self.gid = Some(count()?),
            b"mtime" => {
                self.mtime = Some(time(value).ok_or(FilesError::Format("a time makes no sense"))?)
            }
            b"GNU.sparse.major" => self.sparse[0] = Some(count()?),
            b"GNU.sparse.minor" => self.sparse[1] = Some(count()?),
            b"GNU.sparse.realsize" => self.sparse[2] = Some(count()?),
            b"GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
            _ if name.starts_with(b"GNU.sparse.") => self.sparse_old = true,
            _ => {}
        }
        Ok(())
    }
}

fn is_header(block: &[u8; BLOCK]) -> bool {
    let spaces = 8 * u64::from(b' ');
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let real = sum(&block[..148]) + spaces + sum(&block[156..]);
    number(&block[148..156]).is_ok_and(|told| told == real)
}

/// Number of a header: octal digits, or GNU's base 256. A negative one is 0.
fn number(field: &[u8]) -> Result<u64, FilesError> {
    let bad = || FilesError::Format("a header has no number");
    match field[0] {
        0x80 => field[1..]
            .iter()
            .try_fold(0_u64, |n, byte| {
                n.checked_mul(256)?.checked_add(u64::from(*byte))
            })
            .ok_or_else(bad),
        0xff => Ok(0),
        _ => {
            let text = terminated(field).trim_ascii();
            text.iter()
                .try_fold(0_u64, |n, byte| match byte {
                    b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                    _ => None,
                })
                .ok_or_else(bad)
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos: u32 = digits.parse().ok()?;
    match (negative, nanos) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((seconds, nanos)),
    }
}

fn terminated(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}
