//! Archives and layers that are compressed, known by how they begin: names and
//! media types say it wrongly too often.
//!
//! Streams may unpack to any size: the caller bounds it. What a format lets
//! its reader keep in memory is bounded here.

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use std::{
    fmt,
    io::{self, BufReader, Read},
};

/// KiB of memory for the window of an xz stream: `xz -9` takes half of it. That of
/// a zstd stream is bounded by its library to as much.
const WINDOW: u32 = 128 << 10;
/// A block of a tar, and where one says that it is one.
const BLOCK: u64 = 512;
const USTAR: std::ops::Range<usize> = 257..262;
/// Magic numbers of other formats, and their names.
const OTHERS: [(&[u8], &str); 8] = [
    (b"BZh", "compressed by bzip2"),
    (b"LZIP", "compressed by lzip"),
    (&[0x04, 0x22, 0x4d, 0x18], "compressed by lz4"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"QFI\xfb", "a qcow2 disk"),
    (b"hsqs", "a squashfs file system"),
    (b"\x7fELF", "a program"),
];

/// A way of compressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Gzip,
    Xz,
    Zstd,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// A known format that is no tar.
#[derive(Debug, thiserror::Error)]
#[error("it is {0}: wanted a tar archive, as it is or compressed by gzip, xz or zstd")]
struct Other(&'static str);

/// A stream, unpacked as it is read, and what it was compressed by.
pub(super) struct Unpacked<'a> {
    pub from: Box<dyn Read + 'a>,
    pub by: Option<By>,
}

/// Unpacks a stream of a tar, if it is compressed in a way that is known.
pub(super) fn unpacked<'a>(mut from: impl Read + 'a) -> io::Result<Unpacked<'a>> {
    // Enough to know it by, however little comes at once.
    let mut head = Vec::new();
    from.by_ref().take(BLOCK).read_to_end(&mut head)?;
    let by = by(&head);
    let is_tar = head.get(USTAR) == Some(b"ustar");
    let other = OTHERS.iter().find(|(begins, _)| head.starts_with(begins));
    if let (None, false, Some((_, what))) = (by, is_tar, other) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, Other(what)));
    }
    let from = BufReader::new(io::Cursor::new(head).chain(from));
    let from: Box<dyn Read + 'a> = match by {
        None => Box::new(from),
        Some(By::Gzip) => Box::new(MultiGzDecoder::new(from)),
        Some(By::Xz) => Box::new(XzReader::new_mem_limit(from, true, WINDOW)),
        Some(By::Zstd) => Box::new(zstd::stream::read::Decoder::with_buffer(from)?),
    };
    Ok(Unpacked { from, by })
}

fn by(head: &[u8]) -> Option<By> {
    match head {
        [0x1f, 0x8b, ..] => Some(By::Gzip),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(By::Xz),
        // The second begins a frame to be skipped, which pzstd writes first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(By::Zstd),
        _ => None,
    }
}
