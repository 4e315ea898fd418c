//! One layer file, opened and checked.

use crate::format::Header;
use crate::index::{Answer, Index};
use crate::{Checksum, Flaw, ImageError, Lineage, Slot};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A layer: its index in memory, its data in its file.
#[derive(Debug)]
pub struct Layer {
    file: File,
    header: Header,
    index: Index,
}

/// Bytes of the index read at once, so that a header that promises more than
/// there is cannot make us allocate it.
const INDEX_CHUNK: usize = 1 << 20;

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
        let index = Index::decode(&raw, extents, header.pages, header.slots)?;
        Ok(Self {
            file,
            header,
            index,
        })
    }

    /// Which image it makes.
    pub fn lineage(&self) -> Lineage {
        self.header.lineage
    }

    /// Size of the image it makes.
    pub fn pages(&self) -> PageCount {
        self.header.pages
    }

    /// Pages of data it holds itself.
    pub fn data_pages(&self) -> PageCount {
        self.index.data_pages()
    }

    /// As [`Index::answer`], and zero past the end of the image: what a parent
    /// may have there was cut off.
    pub(crate) fn answer(&self, page: PageNo, max: PageCount) -> (Answer<'_>, PageCount) {
        match self.header.pages.0.checked_sub(page.0) {
            Some(left) if left > 0 => self.index.answer(page, PageCount(max.0.min(left))),
            Some(_) | None => (Answer::Zero, max),
        }
    }

    /// Reads the slots from `slot` on into `out`, one for each checksum, and
    /// checks them. `page` is the first of them, for the error.
    pub(crate) fn read(
        &self,
        page: PageNo,
        slot: Slot,
        checksums: &[Checksum],
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let image = self.header.lineage.image;
        let offset = slot.offset().ok_or(Flaw::Slot { first: page, slot })?;
        let failed = |source| ImageError::Read { source };
        self.file.read_exact_at(out, offset).map_err(failed)?;
        let pages = out.as_chunks::<PAGE_SIZE>().0.iter().zip(checksums);
        for ((bytes, want), number) in pages.zip(page.0..) {
            if Checksum::of(bytes) != *want {
                return Err(ImageError::Damaged {
                    image,
                    page: PageNo(number),
                });
            }
        }
        Ok(())
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
