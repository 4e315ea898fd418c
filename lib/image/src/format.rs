//! The bytes of a layer's header and of an extent, as the crate's header
//! describes them. Touches no file.

use crate::{Checksum, Flaw};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};

/// Start of every layer file.
const MAGIC: [u8; 8] = *b"FYLAYER\0";
/// The format of a layer that has nothing but slots and zeros.
const PLAIN: u32 = 1;
/// The format of a layer that uses packed or borrowed pages as well.
const RICH: u32 = 2;
/// Flag: there is a parent.
const HAS_PARENT: u32 = 1;
/// Largest image, and most slots: 16 TiB. Keeps all arithmetic on offsets far
/// from overflow, and an index within what can be read at all.
pub(crate) const MAX_PAGES: u64 = 1 << 32;
/// Largest index: enough for 128 GiB of data, and what a file that claims
/// nonsense can at most make us allocate.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 28;
/// Bytes of one extent in the index.
pub(crate) const EXTENT_BYTES: usize = 24;
/// Bytes of one checksum in the index.
pub(crate) const CHECKSUM_BYTES: usize = 8;
/// Bytes of one chunk in the index.
pub(crate) const CHUNK_BYTES: usize = 16;
/// Most pages compressed as one: what one page costs at most to get at.
pub(crate) const CHUNK_PAGES: usize = 16;
/// Place that says: these pages are zero.
const ZERO_PLACE: u64 = u64::MAX;
/// In the top byte of a place: packed.
const PACKED: u64 = 1 << 56;
/// In the top byte of a place: borrowed.
const BORROWED: u64 = 2 << 56;
/// The rest of a place.
const REST: u64 = PACKED - 1;
/// Bytes of the header its checksum covers.
const COVERED: usize = PAGE_SIZE - CHECKSUM_BYTES;

const PAGE: u64 = PAGE_SIZE as u64;

/// A place for one page of data in a layer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl Slot {
    /// Byte of the file at which it starts; `None` past the largest file.
    pub fn offset(self) -> Option<u64> {
        self.0.checked_add(1)?.checked_mul(PAGE)
    }

    /// The slot `pages` further on; `None` where that would overflow.
    pub fn checked_add(self, pages: PageCount) -> Option<Self> {
        self.0.checked_add(pages.0).map(Self)
    }
}

/// Image that a layer makes, and the one that it lies over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    /// The image.
    pub image: ImageId,
    /// The image below; none if the layer stands alone.
    pub parent: Option<ImageId>,
}

/// Pages of one image that follow each other and have the same kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub first: PageNo,
    pub pages: PageCount,
    pub content: Content,
}

/// Content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Data from this slot on.
    Data(Slot),
    /// Data from this page of a chunk on, all in that chunk.
    Packed(Packed),
    /// The parent's pages from this one on.
    Borrowed(PageNo),
    /// Zeros.
    Zero,
    /// None of these: a place no writer makes.
    Unknown(u64),
}

/// A page in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packed {
    pub chunk: u32,
    pub index: u8,
}

/// Pages compressed as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// First byte, counted from the first byte after the slots.
    pub offset: u64,
    pub bytes: u32,
    pub pages: u32,
}

impl Chunk {
    pub fn encode(&self) -> [u8; CHUNK_BYTES] {
        let mut out = [0; CHUNK_BYTES];
        put(&mut out, 0, &self.offset.to_le_bytes());
        put(&mut out, 8, &self.bytes.to_le_bytes());
        put(&mut out, 12, &self.pages.to_le_bytes());
        out
    }

    pub fn decode(raw: &[u8; CHUNK_BYTES]) -> Self {
        Self {
            offset: get_u64(raw, 0),
            bytes: get_u32(raw, 8),
            pages: get_u32(raw, 12),
        }
    }
}

impl Content {
    fn place(self) -> u64 {
        match self {
            Self::Data(slot) => slot.0,
            Self::Packed(at) => PACKED | u64::from(at.chunk) << 8 | u64::from(at.index),
            Self::Borrowed(page) => BORROWED | page.0 & REST,
            Self::Zero => ZERO_PLACE,
            Self::Unknown(place) => place,
        }
    }

    fn at(place: u64) -> Self {
        let rest = place & REST;
        match place & !REST {
            0 => Self::Data(Slot(place)),
            PACKED => match u32::try_from(rest >> 8) {
                Ok(chunk) => Self::Packed(Packed {
                    chunk,
                    index: rest.to_le_bytes()[0],
                }),
                Err(_) => Self::Unknown(place),
            },
            BORROWED => Self::Borrowed(PageNo(rest)),
            _ if place == ZERO_PLACE => Self::Zero,
            _ => Self::Unknown(place),
        }
    }

    /// Tells whether each page of it has a checksum.
    pub fn is_data(self) -> bool {
        match self {
            Self::Data(_) | Self::Packed(_) => true,
            Self::Borrowed(_) | Self::Zero | Self::Unknown(_) => false,
        }
    }
}

impl Extent {
    /// First page after it; `None` where that would overflow.
    pub fn end(&self) -> Option<PageNo> {
        self.first.checked_add(self.pages)
    }

    /// Pages of data in it.
    pub fn data_pages(&self) -> u64 {
        match self.content.is_data() {
            true => self.pages.0,
            false => 0,
        }
    }

    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut out = [0; EXTENT_BYTES];
        put(&mut out, 0, &self.first.0.to_le_bytes());
        put(&mut out, 8, &self.pages.0.to_le_bytes());
        put(&mut out, 16, &self.content.place().to_le_bytes());
        out
    }

    pub fn decode(raw: &[u8; EXTENT_BYTES]) -> Self {
        Self {
            first: PageNo(get_u64(raw, 0)),
            pages: PageCount(get_u64(raw, 8)),
            content: Content::at(get_u64(raw, 16)),
        }
    }
}

/// A layer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub lineage: Lineage,
    pub pages: PageCount,
    pub slots: u64,
    pub extents: u64,
    pub data_pages: u64,
    pub index: Checksum,
    /// Chunks in the index.
    pub chunks: u64,
    /// Bytes they take after the slots.
    pub packed_bytes: u64,
    /// Pages borrowed from the parent.
    pub borrowed: u64,
    /// Pages that were left out because the parent has the same there.
    pub dropped: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut out = [0; PAGE_SIZE];
        let flags = if self.lineage.parent.is_some() {
            HAS_PARENT
        } else {
            0
        };
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &self.version().to_le_bytes());
        put(&mut out, 12, &flags.to_le_bytes());
        put(&mut out, 16, self.lineage.image.0.as_bytes());
        if let Some(parent) = self.lineage.parent {
            put(&mut out, 32, parent.0.as_bytes());
        }
        put(&mut out, 48, &self.pages.0.to_le_bytes());
        put(&mut out, 56, &self.slots.to_le_bytes());
        put(&mut out, 64, &self.extents.to_le_bytes());
        put(&mut out, 72, &self.data_pages.to_le_bytes());
        put(&mut out, 80, &self.index.0.to_le_bytes());
        put(&mut out, 88, &self.chunks.to_le_bytes());
        put(&mut out, 96, &self.packed_bytes.to_le_bytes());
        put(&mut out, 104, &self.borrowed.to_le_bytes());
        put(&mut out, 112, &self.dropped.to_le_bytes());
        let checksum = Checksum::of(&out[..COVERED]);
        put(&mut out, COVERED, &checksum.0.to_le_bytes());
        out
    }

    /// The lowest version that can say it: a program that reads version 1 alone reads
    /// all it can understand.
    fn version(&self) -> u32 {
        let rich = [self.chunks, self.packed_bytes, self.borrowed, self.dropped];
        match rich {
            [0, 0, 0, 0] => PLAIN,
            [_, _, _, _] => RICH,
        }
    }

    /// Reads a header back and checks all that can be checked without the file.
    pub fn decode(raw: &[u8; PAGE_SIZE]) -> Result<Self, Flaw> {
        if raw[..8] != MAGIC {
            return Err(Flaw::Magic);
        }
        // Before the checksum: another version may keep its checksum elsewhere.
        let version = get_u32(raw, 8);
        if version != PLAIN && version != RICH {
            return Err(Flaw::Version(version));
        }
        if get_u64(raw, COVERED) != Checksum::of(&raw[..COVERED]).0 {
            return Err(Flaw::Header);
        }
        let parent = get_id(raw, 32);
        let parent = match get_u32(raw, 12) {
            0 if parent.0.is_nil() => None,
            0 => return Err(Flaw::Field("parent")),
            HAS_PARENT => Some(parent),
            _ => return Err(Flaw::Field("flags")),
        };
        let header = Self {
            lineage: Lineage {
                image: get_id(raw, 16),
                parent,
            },
            pages: PageCount(get_u64(raw, 48)),
            slots: get_u64(raw, 56),
            extents: get_u64(raw, 64),
            data_pages: get_u64(raw, 72),
            index: Checksum(get_u64(raw, 80)),
            chunks: get_u64(raw, 88),
            packed_bytes: get_u64(raw, 96),
            borrowed: get_u64(raw, 104),
            dropped: get_u64(raw, 112),
        };
        if version != header.version() {
            return Err(Flaw::Field("version"));
        }
        header.check()?;
        Ok(header)
    }

    /// Bounds on all counts: what is computed from them afterwards cannot overflow.
    pub fn check(&self) -> Result<(), Flaw> {
        let bounds = [
            ("pages", self.pages.0, MAX_PAGES),
            ("slots", self.slots, MAX_PAGES),
            ("extents", self.extents, self.pages.0),
            ("data pages", self.data_pages, self.pages.0),
            ("chunks", self.chunks, self.pages.0),
            ("packed bytes", self.packed_bytes, MAX_PAGES * PAGE),
            ("borrowed", self.borrowed, self.pages.0),
            ("dropped", self.dropped, MAX_PAGES),
        ];
        match bounds.into_iter().find(|(_, value, max)| value > max) {
            Some((field, _, _)) => Err(Flaw::Field(field)),
            None if self.index_bytes() > MAX_INDEX_BYTES => Err(Flaw::Field("index")),
            None => Ok(()),
        }
    }

    /// Byte at which the chunks start.
    pub fn packed_offset(&self) -> u64 {
        (self.slots + 1) * PAGE
    }

    /// Byte at which the index starts.
    pub fn index_offset(&self) -> u64 {
        self.packed_offset() + self.packed_bytes
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> u64 {
        self.extents * EXTENT_BYTES as u64
            + self.data_pages * CHECKSUM_BYTES as u64
            + self.chunks * CHUNK_BYTES as u64
    }

    /// Byte at which the layer ends.
    pub fn file_bytes(&self) -> u64 {
        self.index_offset() + self.index_bytes()
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&raw[at..at + N]);
    out
}

fn get_u32(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(raw, at))
}

fn get_u64(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(raw, at))
}

fn get_id(raw: &[u8], at: usize) -> ImageId {
    ImageId(uuid::Uuid::from_bytes(get(raw, at)))
}
