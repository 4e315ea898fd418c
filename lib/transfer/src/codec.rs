//! A page as it travels: as it is, or compressed if that is shorter.

use forkyard_types::PAGE_SIZE;
use std::io;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// The level that packs fastest.
const LEVEL: i32 = 1;
/// Compression that saves less is not worth undoing.
const WORTH: usize = PAGE_SIZE - PAGE_SIZE / 8;

/// Every so many bytes of a page one is looked at.
const SAMPLED: usize = 4;
/// Limit for the occurrences of each byte among these, squared and summed: of noise n +
/// n·(n−1)/256 = 5,116 is to be expected, give or take 90; of data that can be packed
/// at least 9,208, twice n·(n−1)/256 being for seven bits in eight.
const NOISE: u32 = 7000;

/// Encoding of the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As they are.
    Plain,
    /// Compressed by zstd.
    Zstd,
}

impl Encoding {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Zstd => 1,
        }
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Plain),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Packs pages; keeps what packing needs from one to the next.
pub(crate) struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// Unpacks pages.
pub(crate) struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Packer {
    /// Sends pages as they are if the host has no memory for zstd.
    pub fn new() -> Self {
        let zstd = zstd::bulk::Compressor::new(LEVEL).ok();
        Self { zstd }
    }

    /// Appends `page` to `out`, in the shorter form.
    pub fn pack(&mut self, page: &Page, out: &mut Vec<u8>) -> Encoding {
        let start = out.len();
        // A read may wait for it, and zstd takes ten times as long to find out.
        let zstd = self.zstd.as_mut().filter(|_| !is_noise(page));
        let packed = zstd.and_then(|zstd| {
            out.resize(start + WORTH, 0);
            zstd.compress_to_buffer(page, &mut out[start..]).ok()
        });
        match packed {
            Some(bytes) => {
                out.truncate(start + bytes);
                Encoding::Zstd
            }
            // It does not fit, so it is not worth it.
            None => {
                out.truncate(start);
                out.extend_from_slice(page);
                Encoding::Plain
            }
        }
    }
}

/// Returns true if a page is as if drawn: encrypted, or compressed already. Looks at a part
/// of it.
pub fn is_noise(page: &Page) -> bool {
    let mut counts = [0u32; 256];
    for byte in page.iter().step_by(SAMPLED) {
        counts[usize::from(*byte)] += 1;
    }
    counts.iter().map(|count| count * count).sum::<u32>() < NOISE
}

impl Unpacker {
    pub fn new() -> io::Result<Self> {
        let zstd = Some(zstd::bulk::Decompressor::new()?);
        Ok(Self { zstd })
    }

    /// The page that `bytes` are; `None` if they are none.
    pub fn unpack(&mut self, encoding: Encoding, bytes: &[u8], page: &mut Page) -> Option<()> {
        match encoding {
            Encoding::Plain => {
                page.copy_from_slice(
                    bytes
                        .get(..PAGE_SIZE)
                        .filter(|all| all.len() == bytes.len())?,
                );
                Some(())
            }
            Encoding::Zstd => {
                let got = self
                    .zstd
                    .as_mut()?
                    .decompress_to_buffer(bytes, &mut page[..]);
                got.ok().filter(|got| *got == PAGE_SIZE).map(|_| ())
            }
        }
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn page_comes_back_and_is_never_longer(seed in any::<[u8; 32]>(), random in 0..=PAGE_SIZE) {
            let mut page = [7; PAGE_SIZE];
            blake3::Hasher::new_keyed(&seed).finalize_xof().fill(&mut page[..random]);
            let mut packed = Vec::new();
            let encoding = Packer::new().pack(&page, &mut packed);
            prop_assert!(packed.len() <= PAGE_SIZE);
            let mut back = [0; PAGE_SIZE];
            Unpacker::new().expect("memory").unpack(encoding, &packed, &mut back).expect("unpacks");
            prop_assert_eq!(back, page);
        }

        #[test]
        fn noise_is_told_from_what_can_be_packed(seed in any::<[u8; 32]>()) {
            let mut page = [0; PAGE_SIZE];
            blake3::Hasher::new_keyed(&seed).finalize_xof().fill(&mut page);
            prop_assert!(is_noise(&page));
            // An eighth of it can be saved from 7 bits in 8 on.
            page.iter_mut().for_each(|byte| *byte &= 0x7f);
            prop_assert!(!is_noise(&page));
        }

        #[test]
        fn bytes_of_anything_are_refused_or_a_page(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut page = [0; PAGE_SIZE];
            let _ = Unpacker::new().expect("memory").unpack(Encoding::Zstd, &bytes, &mut page);
            prop_assert_eq!(Unpacker::new().expect("memory").unpack(Encoding::Plain, &bytes, &mut page), None);
        }
    }
}
