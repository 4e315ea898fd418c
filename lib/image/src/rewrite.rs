//! An image written anew over another base, without what it need not hold.
//!
//! One operation for all of a pager's housekeeping, which differ in the base
//! alone:
//!
//! | over | is |
//! |---|---|
//! | its base, as before | compression of what has gone cold |
//! | an image further down its own layers | folding the layers between into one |
//! | another image with much the same pages | deduplication |
//!
//! Whatever the base, the result reads as the image did. A page is left out
//! only after its bytes were compared with those that stand for it: a checksum
//! is a hint and not a proof.

use crate::format::{CHUNK_PAGES, Packed};
use crate::index::Place;
use crate::table::Entry;
use crate::{Checksum, Image, ImageError, LayerBuilder, Lineage, Slot};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Known;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Level of zstd: fast.
const FAST: i32 = 1;
/// And well: a sixth smaller than fast, at a second for 64 MiB. The next sixth would take 20.
const WELL: i32 = 9;

type Page = [u8; PAGE_SIZE];
static ZERO_PAGE: Page = [0; PAGE_SIZE];

/// Manner in which a page is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    /// As it is: it will be asked for soon.
    Hot,
    /// Compressed.
    Cold,
    /// Compressed well: it will be kept for long.
    Kept,
}

/// Writes all that `image` has and `over` does not into the empty file `dest`:
/// a layer that makes the same image over `over`, or alone. Damage found on the
/// way is an error: it must not be given a new checksum.
pub fn rewrite(
    image: &Image,
    over: Option<&Image>,
    temper: impl Fn(PageNo) -> Temper,
    dest: &File,
) -> Result<(), ImageError> {
    let lineage = Lineage {
        image: image.lineage().image,
        parent: over.map(|over| over.lineage().image),
    };
    let own = (0..image.pages().0)
        .map(|page| (PageNo(page), image.table().get(PageNo(page))))
        .filter(|(page, entry)| !same(image, *entry, over, *page));
    // Asked once of each page: a cold one may become hot meanwhile, and then there
    // would be fewer slots than pages.
    let own: Vec<(PageNo, Entry, Temper)> = own
        .map(|(page, entry)| (page, entry, temper(page)))
        .collect();
    let is_hot = |(_, entry, temper): &&(PageNo, Entry, Temper)| {
        *entry != Entry::Zero && *temper == Temper::Hot
    };
    let hot = own.iter().filter(is_hot).count();
    let mut builder = LayerBuilder::new(lineage, image.pages());
    builder.reserve(PageCount(hot as u64));
    let replaced = replaced(image, over);
    builder.dropped(PageCount(replaced));
    let mut writer = Writer {
        image,
        over,
        lenders: lenders(over),
        written: HashMap::new(),
        builder,
        next: Slot(0),
        cold: Vec::new(),
        level: FAST,
        dest,
    };
    for (page, entry, temper) in own {
        match entry {
            Entry::Zero => writer.builder.zero(page),
            Entry::Data { .. } => writer.page(page, temper)?,
        }
    }
    writer.flush()?;
    writer.builder.finish(dest)?;
    Ok(())
}

/// Tells whether `over` has the very same thing there.
fn same(image: &Image, entry: Entry, over: Option<&Image>, page: PageNo) -> bool {
    let below = over.filter(|over| page.0 < over.pages().0);
    match (entry, below.map(|over| (over, over.table().get(page)))) {
        (Entry::Zero, None | Some((_, Entry::Zero))) => true,
        (Entry::Zero, Some((_, Entry::Data { .. }))) | (Entry::Data { .. }, None) => false,
        (Entry::Data { .. }, Some((_, Entry::Zero))) => false,
        (Entry::Data { layer, nth }, Some((over, Entry::Data { layer: l, nth: n }))) => {
            let same = image.layer(layer).zip(over.layer(l));
            nth == n && same.is_some_and(|(a, b)| Arc::ptr_eq(a, b))
        }
    }
}

/// Pages that the layers to be replaced have dropped before.
fn replaced(image: &Image, over: Option<&Image>) -> u64 {
    let kept = over.map_or(&[][..], Image::layers);
    let gone = image
        .layers()
        .iter()
        .filter(|layer| !kept.iter().any(|kept| Arc::ptr_eq(kept, layer)));
    gone.map(|layer| layer.dropped().0).sum()
}

/// A page of the base for each content it has.
fn lenders(over: Option<&Image>) -> HashMap<Checksum, PageNo> {
    let pages = over.into_iter().flat_map(|over| {
        let data = over.table().data();
        data.filter_map(|(page, _)| Some((over.checksum(page)?, page)))
    });
    pages.collect()
}

struct Writer<'a> {
    image: &'a Image,
    over: Option<&'a Image>,
    lenders: HashMap<Checksum, PageNo>,
    /// The first page with each content, and where it went.
    written: HashMap<Checksum, (PageNo, Place)>,
    builder: LayerBuilder,
    next: Slot,
    /// Pages of the chunk to come.
    cold: Vec<Page>,
    /// Level of its compression: that of the page that asks for most.
    level: i32,
    dest: &'a File,
}

impl Writer<'_> {
    fn page(&mut self, page: PageNo, temper: Temper) -> Result<(), ImageError> {
        let bytes = read(self.image, page)?;
        let checksum = Checksum::of(&bytes);
        if bytes == ZERO_PAGE {
            self.builder.zero(page);
            return Ok(());
        }
        if let Some(over) = self.over {
            if over.checksum(page) == Some(checksum) && read(over, page)? == bytes {
                self.builder.dropped(PageCount(1));
                return Ok(());
            }
            if let Some(from) = self.lenders.get(&checksum)
                && read(over, *from)? == bytes
            {
                self.builder.borrowed(page, *from);
                return Ok(());
            }
        }
        if let Some((twin, place)) = self.written.get(&checksum)
            && read(self.image, *twin)? == bytes
        {
            self.builder.at(page, *place, checksum);
            return Ok(());
        }
        let place = match temper {
            Temper::Hot => self.store(&bytes)?,
            Temper::Cold => self.pack(bytes, FAST)?,
            Temper::Kept => self.pack(bytes, WELL)?,
        };
        self.builder.at(page, place, checksum);
        if let Known::Vacant(free) = self.written.entry(checksum) {
            free.insert((page, place));
        }
        Ok(())
    }

    fn store(&mut self, bytes: &Page) -> Result<Place, ImageError> {
        let slot = self.next;
        let offset = slot.offset().ok_or_else(too_large)?;
        let failed = |source| ImageError::Write { source };
        self.dest.write_all_at(bytes, offset).map_err(failed)?;
        self.next.0 += 1;
        Ok(Place::Slot(slot))
    }

    fn pack(&mut self, bytes: Page, level: i32) -> Result<Place, ImageError> {
        if self.cold.len() == CHUNK_PAGES {
            self.flush()?;
        }
        self.level = self.level.max(level);
        let chunk = self.builder.next_chunk().ok_or_else(too_large)?;
        let index = u8::try_from(self.cold.len()).map_err(|_| too_large())?;
        self.cold.push(bytes);
        Ok(Place::Packed(Packed { chunk, index }))
    }

    /// Compresses and writes the pages of the chunk to come.
    fn flush(&mut self) -> Result<(), ImageError> {
        if self.cold.is_empty() {
            return Ok(());
        }
        let failed = |source| ImageError::Write { source };
        let packed = zstd::bulk::compress(self.cold.as_flattened(), self.level).map_err(failed)?;
        let bytes = u32::try_from(packed.len()).map_err(|_| too_large())?;
        let pages = u32::try_from(self.cold.len()).map_err(|_| too_large())?;
        let offset = self.builder.chunk(bytes, pages).ok_or_else(too_large)?;
        self.dest.write_all_at(&packed, offset).map_err(failed)?;
        self.cold.clear();
        self.level = FAST;
        Ok(())
    }
}

fn read(image: &Image, page: PageNo) -> Result<Page, ImageError> {
    let mut bytes = ZERO_PAGE;
    image.read(page, &mut bytes)?;
    Ok(bytes)
}

fn too_large() -> ImageError {
    ImageError::Write {
        source: io::ErrorKind::FileTooLarge.into(),
    }
}
