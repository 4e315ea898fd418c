//! Pages and bytes, kept apart by type.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes in one page: of memory, of disk and of every page image.
pub const PAGE_SIZE: usize = 4096;

/// Index of a page inside one image. Never a byte offset.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageNo(pub u64);

/// A number of pages.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageCount(pub u64);

/// A number of bytes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteCount(pub u64);

/// Position of a byte inside one image.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteOff(pub u64);

const PAGE: u64 = PAGE_SIZE as u64;

impl PageNo {
    /// First byte of this page, or `None` where that would overflow.
    pub fn start(self) -> Option<ByteOff> {
        self.0.checked_mul(PAGE).map(ByteOff)
    }

    /// The page `count` further on, or `None` where that would overflow.
    pub fn checked_add(self, count: PageCount) -> Option<Self> {
        self.0.checked_add(count.0).map(Self)
    }
}

impl PageCount {
    /// Returns the length in bytes, or `None` where that would overflow.
    pub fn bytes(self) -> Option<ByteCount> {
        self.0.checked_mul(PAGE).map(ByteCount)
    }
}

impl ByteCount {
    /// `n` mebibytes, or `None` where that would overflow.
    pub fn from_mib(n: u64) -> Option<Self> {
        n.checked_mul(1 << 20).map(Self)
    }

    /// Pages needed to hold this many bytes: the last one may be partly used.
    pub fn pages(self) -> PageCount {
        PageCount(self.0.div_ceil(PAGE))
    }

    /// Tells whether these bytes fill whole pages.
    pub fn is_page_aligned(self) -> bool {
        self.0.is_multiple_of(PAGE)
    }
}

impl ByteOff {
    /// The page this byte lies in.
    pub fn page(self) -> PageNo {
        PageNo(self.0 / PAGE)
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

impl fmt::Display for PageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}

impl fmt::Display for ByteCount {
    /// In the largest binary unit that keeps one digit before the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) if self.0.is_multiple_of(*size) => {
                write!(f, "{} {unit}", self.0 / size)
            }
            Some((size, unit)) => {
                let tenths = u128::from(self.0) * 10 / u128::from(*size);
                write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_of_a_page_maps_back_to_it(page in 0..1u64 << 40, within in 0..PAGE) {
            let start = PageNo(page).start().expect("2^52 fits");
            prop_assert_eq!(ByteOff(start.0 + within).page(), PageNo(page));
        }

        #[test]
        fn pages_cover_their_bytes_and_no_page_more(bytes in 0..1u64 << 50) {
            let covered = ByteCount(bytes).pages().bytes().expect("fits").0;
            prop_assert!(covered >= bytes && covered < bytes + PAGE);
        }
    }

    #[test]
    fn page_past_the_address_space_has_no_start() {
        assert_eq!(PageNo(u64::MAX).start(), None);
    }

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        let shown = [0, 4096, 512 << 20, 3 << 29].map(|n| ByteCount(n).to_string());
        assert_eq!(shown, ["0 B", "4 KiB", "512 MiB", "1.5 GiB"]);
    }
}
