//! Snapshot of a volume as a stream of bytes: all of it, or what differs from an earlier one.
//!
//! ```text
//! header   one line of JSON
//! frame    kind u8 | first block u64 | blocks u32 | length u32 | XXH3-64 u64 | content
//! ...
//! frame    of kind 0: first block = number of frames before it
//! ```
//!
//! Frames hold blocks and their contents, or tell that blocks are zero, or that they stay at the host
//! that the stream comes from. Numbers are little-endian. Contents are zstd, of 256 blocks at most; the checksum is over the
//! rest of the frame's header and the content. A stream without its last frame is worth nothing.

use crate::{AtRest, StoreError};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Blocks, VolumeId};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};
use xxhash_rust::xxh3::Xxh3;

/// Version of the format.
const FORMAT: u32 = 1;
/// Blocks of a frame with content.
pub(crate) const MOST: u32 = 256;
/// Bytes of the header's line.
const LINE: u64 = 4096;
/// Bytes of a frame's header, without its checksum.
const HEAD: usize = 17;
/// Pages of disks are packed for a link, not for a shelf.
const LEVEL: i32 = 1;

/// Header of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamHeader {
    format: u32,
    volume: String,
    /// Size of the volume.
    blocks: u64,
    /// Snapshot.
    pub snapshot: String,
    /// Snapshot that it is told by the differences from; none: it is all there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Host that it comes from, if not all of it comes: the rest is in this snapshot there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// True if the volume is encrypted on its host's disk, and is to be where it comes. The stream
    /// is not: it goes over connections that are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Blocks and what they hold.
    Data(BlockNo, Vec<u8>),
    /// Blocks that are zero.
    Zeroes(BlockNo, Blocks),
    /// Blocks that hold something, which stays where the stream comes from.
    Away(BlockNo, Blocks),
    /// All has come.
    End,
}

impl StreamHeader {
    pub(crate) fn new(
        volume: VolumeId,
        blocks: Blocks,
        snapshot: &str,
        since: Option<&str>,
    ) -> Self {
        Self {
            format: FORMAT,
            volume: hex(volume),
            blocks: blocks.0,
            snapshot: snapshot.to_owned(),
            since: since.map(str::to_owned),
            from: None,
            encrypted: false,
        }
    }

    /// Protection of the volume where it comes.
    pub(crate) fn at_rest(&self) -> AtRest {
        match self.encrypted {
            true => AtRest::Encrypted { key: None },
            false => AtRest::Plain,
        }
    }

    /// Size of the volume.
    pub fn blocks(&self) -> Blocks {
        Blocks(self.blocks)
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)
    }

    /// Reads the header of a stream.
    pub fn read(input: &mut dyn BufRead) -> Result<Self, StoreError> {
        let mut line = Vec::new();
        let read = input.take(LINE).read_until(b'\n', &mut line);
        if read.map_err(lost)? == 0 {
            return Err(StoreError::Stream("it was cut off before it began"));
        }
        let header: Self = serde_json::from_slice(&line)
            .map_err(|_| StoreError::Stream("it does not begin as one"))?;
        match header.format {
            FORMAT => Ok(header),
            _ => Err(StoreError::Stream("it is of another version")),
        }
    }

    /// Volume that it is of.
    pub fn volume(&self) -> Result<VolumeId, StoreError> {
        let wrong = StoreError::Stream("it names no volume");
        let text = self.volume.as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if text.len() != 32 {
            return Err(wrong);
        }
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(text.chunks(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(wrong);
            };
            *byte = u8::try_from(high << 4 | low).unwrap_or(0);
        }
        Ok(VolumeId(id))
    }
}

/// Text of a volume's identity.
pub(crate) fn hex(VolumeId(id): VolumeId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes frames.
#[derive(Debug)]
pub(crate) struct Frames<W> {
    out: W,
    written: u64,
}

impl<W: Write> Frames<W> {
    pub fn new(out: W) -> Self {
        Self { out, written: 0 }
    }

    pub fn write(&mut self, frame: &Frame) -> std::io::Result<()> {
        let (kind, first, blocks, content) = match frame {
            Frame::Data(first, data) => {
                let packed = zstd::bulk::compress(data, LEVEL)?;
                (1, first.0, data.len() / BLOCK_BYTES, packed)
            }
            Frame::Zeroes(first, count) => {
                let count = usize::try_from(count.0).unwrap_or(usize::MAX);
                (2, first.0, count, Vec::new())
            }
            Frame::Away(first, count) => {
                let count = usize::try_from(count.0).unwrap_or(usize::MAX);
                (3, first.0, count, Vec::new())
            }
            Frame::End => (0, self.written, 0, Vec::new()),
        };
        let few = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
        let mut head = [0; HEAD];
        head[0] = kind;
        head[1..9].copy_from_slice(&first.to_le_bytes());
        head[9..13].copy_from_slice(&few(blocks));
        head[13..].copy_from_slice(&few(content.len()));
        self.out.write_all(&head)?;
        self.out
            .write_all(&checksum(&head, &content).to_le_bytes())?;
        self.out.write_all(&content)?;
        self.written += 1;
        match frame {
            Frame::End => self.out.flush(),
            Frame::Data(..) | Frame::Zeroes(..) | Frame::Away(..) => Ok(()),
        }
    }
}

/// Reads the next frame, the one after `read` others.
pub(crate) fn next(input: &mut dyn Read, read: u64) -> Result<Frame, StoreError> {
    let mut head = [0; HEAD + 8];
    input.read_exact(&mut head).map_err(lost)?;
    let (head, check) = head.split_at(HEAD);
    let number = |range: std::ops::Range<usize>| {
        let bytes = head[range].iter().rev();
        bytes.fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (first, blocks, length) = (number(1..9), number(9..13), number(13..17));
    let most = zstd::zstd_safe::compress_bound(MOST as usize * BLOCK_BYTES) as u64;
    if length > most {
        return Err(StoreError::Stream("a part of it is too long"));
    }
    let mut content = vec![0; usize::try_from(length).unwrap_or(0)];
    input.read_exact(&mut content).map_err(lost)?;
    if checksum(head, &content).to_le_bytes() != check {
        return Err(StoreError::Stream("it was changed on the way"));
    }
    match head[0] {
        0 if first == read => Ok(Frame::End),
        1 if blocks > 0 && blocks <= u64::from(MOST) => {
            let size = usize::try_from(blocks).unwrap_or(0) * BLOCK_BYTES;
            match zstd::bulk::decompress(&content, size) {
                Ok(data) if data.len() == size => Ok(Frame::Data(BlockNo(first), data)),
                Ok(_) | Err(_) => Err(StoreError::Stream("a part of it cannot be unpacked")),
            }
        }
        2 if blocks > 0 => Ok(Frame::Zeroes(BlockNo(first), Blocks(blocks))),
        3 if blocks > 0 => Ok(Frame::Away(BlockNo(first), Blocks(blocks))),
        _ => Err(StoreError::Stream("a part of it is malformed")),
    }
}

/// Amount of a stream that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// Bytes of its parts.
    pub bytes: u64,
    /// Blocks that it leaves where it comes from.
    pub left: Blocks,
}

/// Copies a stream up to its end, whatever follows it. Its contents are looked at by the function
/// that takes it.
pub fn relay(from: &mut dyn BufRead, to: &mut dyn Write) -> Result<Relayed, StoreError> {
    let failed = |error| StoreError::io("write", "the stream", error);
    let (mut bytes, mut left) = (0, Blocks(0));
    StreamHeader::read(from)?.write(to).map_err(failed)?;
    loop {
        let mut head = [0; HEAD + 8];
        from.read_exact(&mut head).map_err(lost)?;
        to.write_all(&head).map_err(failed)?;
        let length = u32::from_le_bytes([head[13], head[14], head[15], head[16]]);
        let mut content = from.take(length.into());
        let copied = std::io::copy(&mut content, to).map_err(failed)?;
        if copied < u64::from(length) {
            return Err(StoreError::Stream("it was cut off"));
        }
        bytes += head.len() as u64 + copied;
        if head[0] == 3 {
            left.0 += u64::from(u32::from_le_bytes([head[9], head[10], head[11], head[12]]));
        }
        if head[0] == 0 {
            let relayed = Relayed { bytes, left };
            return to.flush().map(|()| relayed).map_err(failed);
        }
    }
}

fn checksum(head: &[u8], content: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(head);
    hash.update(content);
    hash.digest()
}

fn lost(error: std::io::Error) -> StoreError {
    match error.kind() == std::io::ErrorKind::UnexpectedEof {
        true => StoreError::Stream("it was cut off"),
        false => StoreError::io("read", "the stream", error),
    }
}
