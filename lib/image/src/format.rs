//! The bytes of a layer's header and of an extent, as the crate's header
//! describes them. Touches no file.

use crate::{Checksum, Flaw};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};

/// Start of every layer file.
const MAGIC: [u8; 8] = *b"FYLAYER\0";
/// The format this program writes, and the only one it reads.
const VERSION: u32 = 1;
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
/// Slot number that says: these pages are zero.
const ZERO_SLOT: u64 = u64::MAX;
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

/// Which image a layer makes, and over which one it lies.
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

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Data from this slot on.
    Data(Slot),
    /// Zeros.
    Zero,
}

impl Extent {
    /// First page after it; `None` where that would overflow.
    pub fn end(&self) -> Option<PageNo> {
        self.first.checked_add(self.pages)
    }

    /// Pages of data in it.
    pub fn data_pages(&self) -> u64 {
        match self.content {
            Content::Data(_) => self.pages.0,
            Content::Zero => 0,
        }
    }

    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let slot = match self.content {
            Content::Data(slot) => slot.0,
            Content::Zero => ZERO_SLOT,
        };
        let mut out = [0; EXTENT_BYTES];
        put(&mut out, 0, &self.first.0.to_le_bytes());
        put(&mut out, 8, &self.pages.0.to_le_bytes());
        put(&mut out, 16, &slot.to_le_bytes());
        out
    }

    pub fn decode(raw: &[u8; EXTENT_BYTES]) -> Self {
        let slot = get_u64(raw, 16);
        Self {
            first: PageNo(get_u64(raw, 0)),
            pages: PageCount(get_u64(raw, 8)),
            content: if slot == ZERO_SLOT {
                Content::Zero
            } else {
                Content::Data(Slot(slot))
            },
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
        put(&mut out, 8, &VERSION.to_le_bytes());
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
        let checksum = Checksum::of(&out[..COVERED]);
        put(&mut out, COVERED, &checksum.0.to_le_bytes());
        out
    }

    /// Reads a header back and checks all that can be checked without the file.
    pub fn decode(raw: &[u8; PAGE_SIZE]) -> Result<Self, Flaw> {
        if raw[..8] != MAGIC {
            return Err(Flaw::Magic);
        }
        // Before the checksum: another version may keep its checksum elsewhere.
        let version = get_u32(raw, 8);
        if version != VERSION {
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
        };
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
        ];
        match bounds.into_iter().find(|(_, value, max)| value > max) {
            Some((field, _, _)) => Err(Flaw::Field(field)),
            None if self.index_bytes() > MAX_INDEX_BYTES => Err(Flaw::Field("index")),
            None => Ok(()),
        }
    }

    /// Byte at which the index starts.
    pub fn index_offset(&self) -> u64 {
        (self.slots + 1) * PAGE
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> u64 {
        self.extents * EXTENT_BYTES as u64 + self.data_pages * CHECKSUM_BYTES as u64
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
