//! One layer file, opened and checked.

use crate::format::{CHUNK_PAGES, Chunk, Header};
use crate::index::{Bounds, Index, Nth, Place};
use crate::{Checksum, Flaw, ImageError, Lineage, Slot};
use forkyard_types::{ByteCount, PAGE_SIZE, PageCount, PageNo};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// A layer: its index in memory, its data in its file.
#[derive(Debug)]
pub struct Layer {
    file: File,
    header: Header,
    index: Index,
    holdings: OnceLock<Holdings>,
}

/// Holdings of a layer's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pages of data in slots, as they are.
    pub plain: PageCount,
    /// Pages of data that are compressed.
    pub packed: PageCount,
    /// Bytes these take.
    pub packed_bytes: ByteCount,
    /// Pages of data left out because they are elsewhere already: in the
    /// layers below, or in this one for another page.
    pub shared: PageCount,
}

/// Bytes of the index read at once, so that a header that promises more than
/// there is cannot make us allocate it.
const INDEX_CHUNK: usize = 1 << 20;

thread_local! {
    /// A chunk as it is in the file and as it was, kept between reads.
    static UNPACKING: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Layer {
    /// Opens a layer and checks its header and its index. The data is checked
    /// when it is read.
    pub fn open(file: File) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Read { source };
        let have = file.metadata().map_err(failed)?.len();
        let short = |want| Flaw::Truncated { have, want };
        if have < PAGE_SIZE as u64 {
            return Err(short(PAGE_SIZE as u64).into());
        }
        let mut raw = [0; PAGE_SIZE];
        file.read_exact_at(&mut raw, 0).map_err(failed)?;
        let header = Header::decode(&raw)?;
        if header.file_bytes() > have {
            return Err(short(header.file_bytes()).into());
        }
        let raw = read_index(&file, &header)?;
        let found = Checksum::of(&raw);
        if found != header.index {
            return Err(Flaw::Index {
                have: found,
                want: header.index,
            }
            .into());
        }
        let extents = usize::try_from(header.extents).map_err(|_| Flaw::Field("extents"))?;
        let sums = usize::try_from(header.data_pages).map_err(|_| Flaw::Field("data pages"))?;
        let index = Index::decode(&raw, extents, sums, bounds(&header))?;
        if index.borrowed().0 != header.borrowed {
            return Err(Flaw::Field("borrowed").into());
        }
        Ok(Self {
            file,
            header,
            index,
            holdings: OnceLock::new(),
        })
    }

    /// Returns the image that it makes.
    pub fn lineage(&self) -> Lineage {
        self.header.lineage
    }

    /// Size of the image it makes.
    pub fn pages(&self) -> PageCount {
        self.header.pages
    }

    /// Pages of the image whose data it holds itself.
    pub fn data_pages(&self) -> PageCount {
        self.index.data_pages()
    }

    /// Returns the place of its data.
    pub fn holdings(&self) -> Holdings {
        *self.holdings.get_or_init(|| self.count())
    }

    fn count(&self) -> Holdings {
        let places = self.index.places();
        let packed = places.iter().filter(|place| match place {
            Place::Packed(_) => true,
            Place::Slot(_) => false,
        });
        let packed = packed.count() as u64;
        let alike = self.index.data_pages().0 - places.len() as u64;
        let shared = alike + self.header.borrowed + self.header.dropped;
        Holdings {
            plain: PageCount(places.len() as u64 - packed),
            packed: PageCount(packed),
            packed_bytes: ByteCount(self.header.packed_bytes),
            shared: PageCount(shared),
        }
    }

    /// Pages left out because the layers below have the same there.
    pub(crate) fn dropped(&self) -> PageCount {
        PageCount(self.header.dropped)
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Reads the pages of data from `nth` on into `out`, as many as fit and lie
    /// behind each other in the file, at least one; answers how many. Each is
    /// checked; `page` is the first of them, for the error.
    pub(crate) fn read(
        &self,
        page: PageNo,
        nth: Nth,
        out: &mut [[u8; PAGE_SIZE]],
    ) -> Result<usize, ImageError> {
        let lost = || ImageError::Format(Flaw::Extent { first: page });
        let (place, left) = self.index.place(nth).ok_or_else(lost)?;
        let run = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..run];
        match place {
            Place::Slot(slot) => self.read_slots(page, slot, out)?,
            Place::Packed(at) => {
                let chunk = self.index.chunk(at.chunk).ok_or_else(lost)?;
                self.unpack(page, chunk, usize::from(at.index), out)?;
            }
        }
        for (i, bytes) in (0u32..).zip(out.iter()) {
            let want = nth.checked_add(i).and_then(|nth| self.index.checksum(nth));
            if Some(Checksum::of(bytes)) != want {
                return Err(self.damaged(PageNo(page.0 + u64::from(i))));
            }
        }
        Ok(run)
    }

    fn read_slots(
        &self,
        page: PageNo,
        slot: Slot,
        out: &mut [[u8; PAGE_SIZE]],
    ) -> Result<(), ImageError> {
        let offset = slot.offset().ok_or(Flaw::Slot { first: page, slot })?;
        let failed = |source| ImageError::Read { source };
        self.file
            .read_exact_at(out.as_flattened_mut(), offset)
            .map_err(failed)
    }

    fn unpack(
        &self,
        page: PageNo,
        chunk: Chunk,
        index: usize,
        out: &mut [[u8; PAGE_SIZE]],
    ) -> Result<(), ImageError> {
        UNPACKING.with_borrow_mut(|(packed, plain)| {
            // Both are bounded by what was checked when the layer was opened.
            packed.resize(usize::try_from(chunk.bytes).unwrap_or(usize::MAX), 0);
            plain.resize(CHUNK_PAGES * PAGE_SIZE, 0);
            let offset = self.header.packed_offset() + chunk.offset;
            let failed = |source| ImageError::Read { source };
            self.file.read_exact_at(packed, offset).map_err(failed)?;
            let got = zstd::bulk::decompress_to_buffer(packed, plain);
            let start = index * PAGE_SIZE;
            let want = start..start + out.len() * PAGE_SIZE;
            match got {
                Ok(got) if got >= want.end => {
                    out.as_flattened_mut().copy_from_slice(&plain[want]);
                    Ok(())
                }
                Ok(_) | Err(_) => Err(self.damaged(page)),
            }
        })
    }

    fn damaged(&self, page: PageNo) -> ImageError {
        let image = self.header.lineage.image;
        ImageError::Damaged { image, page }
    }
}

pub(crate) fn bounds(header: &Header) -> Bounds {
    Bounds {
        pages: header.pages,
        slots: header.slots,
        packed_bytes: header.packed_bytes,
        has_parent: header.lineage.parent.is_some(),
    }
}

fn read_index(file: &File, header: &Header) -> Result<Vec<u8>, ImageError> {
    let bytes = header.index_bytes();
    let bytes = usize::try_from(bytes).map_err(|_| Flaw::Field("extents"))?;
    let mut raw = Vec::new();
    let mut offset = header.index_offset();
    while raw.len() < bytes {
        let start = raw.len();
        let chunk = INDEX_CHUNK.min(bytes - start);
        raw.resize(start + chunk, 0);
        let failed = |source| ImageError::Read { source };
        file.read_exact_at(&mut raw[start..], offset)
            .map_err(failed)?;
        offset += chunk as u64;
    }
    Ok(raw)
}
