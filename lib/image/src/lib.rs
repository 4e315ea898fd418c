//! Page images: what a VM's memory or disk was at one instant, for good.
//!
//! A *layer* is one file holding the pages that changed since its parent; an
//! *image* is a layer over its parent's image. For each page a layer has one
//! of three answers: *data*, *zero* (which hides what the parent has), or
//! *absent*: ask the parent, and with no parent left the page is zero. An image
//! can be [written anew](rewrite()) over another base, and reads the same.
//!
//! # Layer files, versions 1 and 2
//!
//! All numbers are little-endian; a page and a slot are 4096 bytes; checksums
//! are XXH3-64 with seed 0. The file is the header, `slots` slots, the chunks, the
//! index. What follows the index is ignored. Version 1 has no chunks and borrows
//! nothing: its fields from byte 88 on are zero. A layer has the lowest version
//! that can say what it says.
//!
//! | header byte | size | |
//! |---|---|---|
//! | 0 | 8 | `FYLAYER` and a zero byte |
//! | 8 | 4 | version: 1 or 2 |
//! | 12 | 4 | flags: 1 if there is a parent, else 0 |
//! | 16 | 16 | image id, bytes of the UUID in their usual order |
//! | 32 | 16 | parent's image id, zero if none |
//! | 48 | 8 | pages in the image, at most 2³² |
//! | 56 | 8 | slots in the file, at most 2³² |
//! | 64 | 8 | extents in the index |
//! | 72 | 8 | pages of data: checksums in the index |
//! | 80 | 8 | checksum of the index |
//! | 88 | 8 | chunks in the index |
//! | 96 | 8 | bytes of all chunks |
//! | 104 | 8 | pages borrowed |
//! | 112 | 8 | pages left out because the parent has the same there; for the record |
//! | 120 | 3968 | zero |
//! | 4088 | 8 | checksum of the 4088 bytes before |
//!
//! Slot `n` is at byte 4096 × (n + 1). A slot no extent names is never read
//! and may be a hole. The chunks follow the slots: each is up to 16 pages
//! compressed as one by zstd. Then the index: first its extents, in order of their pages, none empty and no two
//! overlapping; then one checksum (8 bytes) for each page of data, as it is when
//! unpacked, in the same order; then the chunks. It is at most 2²⁸ bytes long.
//!
//! | extent byte | size | |
//! |---|---|---|
//! | 0 | 8 | first page |
//! | 8 | 8 | pages |
//! | 16 | 8 | place of the first page, the others following |
//!
//! | place | |
//! |---|---|
//! | less than 2⁵⁶ | data: this slot |
//! | 2⁵⁶ + 2⁸ × c + i | data: page i of chunk c |
//! | 2 × 2⁵⁶ + p | borrowed: what the parent has at page p |
//! | 2⁶⁴ − 1 | zero |
//!
//! | chunk byte | size | |
//! |---|---|---|
//! | 0 | 8 | where it starts, counted from the end of the slots |
//! | 8 | 4 | bytes |
//! | 12 | 4 | pages, at most 16 |
//!
//! Two extents may name the same place: their pages are alike.
//!
//! A layer file is input that may be damaged in any way: opening it checks the
//! header and the index, reading it checks each page, and neither trusts a
//! length it has not checked. Files are read with `pread`, not mapped, so that
//! one cut short under us is an error and not a signal.

mod builder;
mod changes;
mod checksum;
mod error;
mod format;
mod image;
mod import;
mod index;
mod layer;
mod rewrite;
mod table;
#[cfg(test)]
mod tests;

pub use builder::LayerBuilder;
pub use checksum::Checksum;
pub use error::{Flaw, ImageError};
pub use format::{Lineage, Slot};
pub use image::Image;
pub use import::{WriteSummary, write_file};
pub use layer::{Holdings, Layer};
pub use rewrite::{Temper, rewrite};
