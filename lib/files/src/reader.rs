//! Tar streams, read: ustar, GNU's long names and large numbers, and pax by the
//! lengths of its records; files with holes as GNU's old format and pax 0.0, 0.1
//! and 1.0 have them.
//!
//! Every length is bounded before anything is allocated for it.

mod piped;

use crate::{
    BLOCK, Entry, EntryKind, FilesError,
    fields::{decimal, is_header, number, pairs, terminated, time},
};
use std::{
    fs::File,
    io::{self, Read},
};

/// Longest extended headers and long names of a member.
const MOST_EXTENDED: u64 = 1 << 20;
/// Most extents of a file.
const MOST_EXTENTS: u64 = 1 << 18;
/// Most bytes of words of the sender.
const MOST_WORDS: usize = 64 << 10;

/// Prefix of the name of an extended attribute in an extended header.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Reader of a tar stream.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    /// Data bytes of the present member that were not read, and their padding.
    left: u64,
    padding: u64,
    words: usize,
    /// Bytes that may still be in front of the present member.
    room: u64,
    /// True if a stream that breaks off between two members is whole.
    open_ended: bool,
    /// Another descriptor of the stream, if it is a pipe.
    pipe: Option<Pipe<R>>,
    /// Notes of the sender, as they come.
    pub notes: Vec<String>,
}

/// A pipe, and whether nothing was read ahead of it.
type Pipe<R> = (File, fn(&R) -> bool);

/// Content of extended headers for the next member.
#[derive(Debug, Default)]
struct More {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Sparse,
}

/// Description of its holes.
#[derive(Debug, Default)]
struct Sparse {
    version: (Option<u64>, Option<u64>),
    size: Option<u64>,
    name: Option<Vec<u8>>,
    offset: Option<u64>,
    map: Vec<(u64, u64)>,
}

impl<R: Read> Reader<R> {
    /// Starts with a stream.
    pub fn new(from: R) -> Self {
        Self {
            from,
            left: 0,
            padding: 0,
            words: 0,
            room: MOST_EXTENDED,
            open_ended: false,
            pipe: None,
            notes: Vec::new(),
        }
    }

    /// Takes a stream that ends after a member for whole: archives in files may lack
    /// their end, and are held to their digests.
    pub fn open_ended(mut self) -> Self {
        self.open_ended = true;
        self
    }

    /// Returns the stream, which is where its present member goes on.
    pub fn source(&mut self) -> &mut R {
        &mut self.from
    }

    /// Returns the stream, to go on with what follows.
    pub fn into_source(self) -> R {
        self.from
    }

    /// Returns the next member; none at the end, which must be there. What was not
    /// read of the member before is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, FilesError> {
        self.pass(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        self.room = MOST_EXTENDED;
        let mut more = More::default();
        let mut block = [0; BLOCK];
        if !self.begins(&mut block)? {
            return Ok(None);
        }
        loop {
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
            self.exact(&mut block)?;
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
        let copied = io::copy(&mut self.from, &mut io::sink());
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
        let plain = matches!(flag, b'0' | 0 | b'7' | b'S');
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
                return Err(FilesError::Format("a member of an unknown type"));
            }
        };
        (self.left, self.padding) = (left, padding);
        let kind = match flag {
            b'5' => EntryKind::Folder,
            _ if old_folder => EntryKind::Folder,
            b'2' => EntryKind::Link(link),
            b'1' => EntryKind::Same(link),
            b'3' | b'4' => EntryKind::Device,
            b'6' => EntryKind::Fifo,
            b'S' => {
                let size = number(&block[483..495])?;
                let map = self.old_map(block)?;
                self.with_holes(size, &map)?
            }
            _ => {
                let Sparse {
                    version,
                    size,
                    name,
                    map,
                    offset: _,
                } = more.sparse;
                path = name.unwrap_or(path);
                match (version, size) {
                    ((Some(1), Some(0)), Some(size)) => {
                        let map = self.map()?;
                        self.with_holes(size, &map)?
                    }
                    ((None | Some(0), None | Some(0 | 1)), Some(size)) => {
                        self.with_holes(size, &map)?
                    }
                    ((None, None), None) => EntryKind::File {
                        size: stored,
                        extents: None,
                    },
                    _ => return Err(FilesError::Format("a file with holes of another format")),
                }
            }
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
            attributes: more.attributes,
        })
    }

    /// Returns a file with holes, whose map makes sense.
    fn with_holes(&self, size: u64, map: &[(u64, u64)]) -> Result<EntryKind, FilesError> {
        let bad = || FilesError::Format("a map of holes is malformed");
        if size > i64::MAX as u64 {
            return Err(FilesError::Format("a size that no file has"));
        }
        let (mut extents, mut end, mut data) = (Vec::new(), 0, 0_u64);
        for (offset, length) in map {
            match offset.checked_add(*length) {
                Some(next) if *offset >= end && next <= size => end = next,
                _ => return Err(bad()),
            }
            data += length;
            if *length > 0 {
                extents.push((*offset, *length));
            }
        }
        match data == self.left {
            true => Ok(EntryKind::File {
                size,
                extents: Some(extents),
            }),
            false => Err(bad()),
        }
    }

    /// Reads the map in a header of GNU's old format, and in the blocks that go on
    /// with it.
    fn old_map(&mut self, header: &[u8; BLOCK]) -> Result<Vec<(u64, u64)>, FilesError> {
        let mut map = Vec::new();
        let mut take = |fields: &[u8]| -> Result<(), FilesError> {
            for field in fields.chunks_exact(24) {
                if field[0] != 0 {
                    map.push((number(&field[..12])?, number(&field[12..])?));
                }
            }
            match map.len() as u64 > MOST_EXTENTS {
                true => Err(TOO_MANY),
                false => Ok(()),
            }
        };
        take(&header[386..482])?;
        let mut goes_on = header[482] != 0;
        while goes_on {
            let mut block = [0; BLOCK];
            self.exact(&mut block)?;
            take(&block[..504])?;
            goes_on = block[504] != 0;
        }
        Ok(map)
    }

    /// Reads the map that a file with holes begins with.
    fn map(&mut self) -> Result<Vec<(u64, u64)>, FilesError> {
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
            return Err(TOO_MANY);
        }
        (0..count).map(|_| Ok((line()?, line()?))).collect()
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
            let bad = || FilesError::Format("an extended header is malformed");
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
            Ok(length) if size <= self.room => length,
            _ => return Err(FilesError::Format("extended headers are too long")),
        };
        self.room -= size;
        let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
        self.exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Reads a first block; false if the stream ends in front of it, and may.
    fn begins(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, FilesError> {
        let mut filled = 0;
        while filled < BLOCK {
            match self.from.read(&mut block[filled..]) {
                Ok(0) if filled == 0 && self.open_ended => return Ok(false),
                Ok(0) => return Err(FilesError::Short),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FilesError::stream(error)),
            }
        }
        Ok(true)
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), FilesError> {
        self.from.read_exact(bytes).map_err(FilesError::stream)
    }

    fn pass(&mut self, bytes: u64) -> Result<(), FilesError> {
        let mut rest = self.from.by_ref().take(bytes);
        match io::copy(&mut rest, &mut io::sink()) {
            Ok(passed) if passed == bytes => Ok(()),
            Ok(_) => Err(FilesError::Short),
            Err(error) => Err(FilesError::stream(error)),
        }
    }
}

const TOO_MANY: FilesError = FilesError::Format("a file with too many holes");

/// Name of the record with something that was left out.
pub(crate) const NOTE: &[u8] = b"FORKYARD.note";
/// Name of the record with the reason for which a stream ends early.
pub(crate) const FAILURE: &[u8] = b"FORKYARD.failure";

impl More {
    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), FilesError> {
        let count = || decimal(value).ok_or(FilesError::Format("an extended header has no number"));
        match name {
            // Nothing at all has the header's own count.
            b"path" => self.path = Some(value.to_vec()).filter(|path| !path.is_empty()),
            b"linkpath" => self.link = Some(value.to_vec()).filter(|link| !link.is_empty()),
            b"size" | b"uid" | b"gid" | b"mtime" if value.is_empty() => {}
            b"size" => self.size = Some(count()?),
            b"uid" => self.uid = Some(count()?),
            b"gid" => self.gid = Some(count()?),
            b"mtime" => {
                self.mtime = Some(time(value).ok_or(FilesError::Format("a time is malformed"))?)
            }
            b"GNU.sparse.major" => self.sparse.version.0 = Some(count()?),
            b"GNU.sparse.minor" => self.sparse.version.1 = Some(count()?),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.size = Some(count()?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.offset" => self.sparse.offset = Some(count()?),
            b"GNU.sparse.numbytes" => {
                let offset = self.sparse.offset.take();
                let offset = offset.ok_or(FilesError::Format("a map of holes is malformed"))?;
                self.sparse.map.push((offset, count()?));
            }
            b"GNU.sparse.map" => self.sparse.map = pairs(value)?,
            _ => {
                if let Some(name) = name.strip_prefix(ATTRIBUTE) {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}
