//! Tests of layers and images as a whole.

mod changes;
mod damage;
mod fuzz;
mod golden;
mod model;
mod raw_disk;
mod rewriting;
mod speed;

use crate::{Checksum, Image, ImageError, Layer, LayerBuilder, Lineage, Slot};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Entry of one page in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Nothing,
    Zero,
    /// Data, filled with this byte; which may be 0, for data of zeros.
    Data(u8),
}

fn lineage(image: u128, parent: Option<u128>) -> Lineage {
    let id = |n| ImageId(uuid::Uuid::from_u128(n));
    Lineage {
        image: id(image),
        parent: parent.map(id),
    }
}

/// A layer with these pages; `slots` says which slot the nth page of data has.
fn write(lineage: Lineage, pages: &[Says], slots: impl Fn(u64) -> u64) -> File {
    let file = tempfile::tempfile().expect("temporary file");
    let size = PageCount(pages.len() as u64);
    let mut builder = LayerBuilder::new(lineage, size);
    let mut data = 0;
    for (says, number) in pages.iter().zip(0..) {
        match says {
            Says::Nothing => {}
            Says::Zero => builder.zero(PageNo(number)),
            Says::Data(byte) => {
                let (slot, bytes) = (Slot(slots(data)), [*byte; PAGE_SIZE]);
                file.write_all_at(&bytes, slot.offset().expect("fits"))
                    .expect("writes");
                builder.data(PageNo(number), slot, Checksum::of(&bytes));
                data += 1;
            }
        }
    }
    assert_eq!(builder.finish(&file).expect("a layer"), PageCount(data));
    file
}

fn image(file: File, parent: Option<&Image>) -> Result<Image, ImageError> {
    Image::new(Arc::new(Layer::open(file)?), parent)
}

fn read_all(image: &Image) -> Result<Vec<u8>, ImageError> {
    let pages = usize::try_from(image.pages().0).expect("small");
    let mut out = vec![0xee; pages * PAGE_SIZE];
    image.read(PageNo(0), &mut out)?;
    Ok(out)
}

fn bytes_of(file: &File) -> Vec<u8> {
    let len = file.metadata().expect("has").len();
    let mut out = vec![0; usize::try_from(len).expect("small")];
    file.read_exact_at(&mut out, 0).expect("reads");
    out
}

fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().expect("temporary file");
    file.write_all_at(bytes, 0).expect("writes");
    file
}
