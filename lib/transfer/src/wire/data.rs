//! Pages inside a packet.

use super::fields::Fields;
use super::{HEAD, TAIL, put_page, put_run};
use crate::codec::Encoding;
use crate::pages::Run;
use forkyard_types::{PAGE_SIZE, PageNo};

/// Bytes of a packet of pages that are no items.
pub(crate) const DATA_HEAD: usize = HEAD + 8 + 4 + TAIL;
/// Bytes of an item that says zero.
pub(crate) const ZERO_BYTES: usize = 1 + 12;
/// Bytes of a page's item before its own.
pub(crate) const WHOLE_HEAD: usize = 1 + 8 + 1 + 2;
/// Bytes of a part's item before its own.
pub(crate) const PART_HEAD: usize = 1 + 8 + 1 + 2 + 1 + 1;
/// Most parts a page may come in.
pub(crate) const MAX_PARTS: u8 = 8;

/// Items of a packet, checked and not yet taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items<'a>(&'a [u8]);

/// One statement about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// These are zero.
    Zero(Run),
    /// This is the page.
    Page(PageNo, Encoding, &'a [u8]),
    /// This is a part of it.
    Part(PagePart<'a>),
    /// The server cannot read it.
    Gone(PageNo),
}

/// A part of a page's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePart<'a> {
    /// The page.
    pub page: PageNo,
    /// Encoding of its bytes, once all are there.
    pub encoding: Encoding,
    /// Length of all parts together, at most a page.
    pub total: u16,
    /// Number of the part.
    pub index: u8,
    /// Number of parts, 2 to 8.
    pub parts: u8,
    /// Bytes of the part.
    pub bytes: &'a [u8],
}

impl<'a> Items<'a> {
    /// Items that are all intact.
    pub(super) fn check(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            item(&mut fields)?;
        }
        Some(Self(bytes))
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Each item.
    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let mut fields = Fields(self.0);
        // All were found intact.
        std::iter::from_fn(move || item(&mut fields))
    }
}

/// Returns the range of the part `index` of `total` bytes in `parts` parts.
pub(crate) fn part_bytes(total: u16, index: u8, parts: u8) -> std::ops::Range<usize> {
    let (total, index) = (usize::from(total), usize::from(index));
    let each = total.div_ceil(usize::from(parts.max(1)));
    (each * index).min(total)..(each * (index + 1)).min(total)
}

fn item<'a>(fields: &mut Fields<'a>) -> Option<Item<'a>> {
    match fields.u8()? {
        0 => fields.run().map(Item::Zero),
        1 => {
            let (page, encoding, length) = page(fields)?;
            let bytes = fields.bytes(usize::from(length))?;
            Some(Item::Page(page, encoding, bytes))
        }
        2 => {
            let (page, encoding, total) = page(fields)?;
            let (index, parts) = (fields.u8()?, fields.u8()?);
            if index >= parts || !(2..=MAX_PARTS).contains(&parts) {
                return None;
            }
            let bytes = fields.bytes(part_bytes(total, index, parts).len())?;
            (!bytes.is_empty()).then_some(Item::Part(PagePart {
                page,
                encoding,
                total,
                index,
                parts,
                bytes,
            }))
        }
        3 => fields.u64().map(PageNo).map(Item::Gone),
        _ => None,
    }
}

fn page(fields: &mut Fields<'_>) -> Option<(PageNo, Encoding, u16)> {
    let page = PageNo(fields.u64()?);
    let encoding = Encoding::of(fields.u8()?)?;
    let length = fields.u16()?;
    let fits = (1..=PAGE_SIZE).contains(&usize::from(length));
    fits.then_some((page, encoding, length))
}

/// Appends an item. A page or part has at most [`PAGE_SIZE`] bytes.
pub(crate) fn put_item(item: &Item<'_>, out: &mut Vec<u8>) {
    match item {
        Item::Zero(run) => {
            out.push(0);
            put_run(*run, out);
        }
        Item::Page(page, encoding, bytes) => {
            out.push(1);
            put_page(*page, out);
            out.push(encoding.code());
            let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
            out.extend(length.to_le_bytes());
            out.extend_from_slice(bytes);
        }
        Item::Part(part) => {
            out.push(2);
            put_page(part.page, out);
            out.push(part.encoding.code());
            out.extend(part.total.to_le_bytes());
            out.extend([part.index, part.parts]);
            out.extend_from_slice(part.bytes);
        }
        Item::Gone(page) => {
            out.push(3);
            put_page(*page, out);
        }
    }
}
