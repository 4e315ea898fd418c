//! Pages that come in parts.

use crate::codec::Encoding;
use crate::wire::{PagePart, PartSet, part_bytes};
use forkyard_types::PageNo;
use std::collections::HashMap;

/// Most pages of which parts are kept: 4 MiB. Beyond, all are forgotten, and
/// asked for again in time.
const MOST: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Assembly(HashMap<PageNo, Partial>);

#[derive(Debug)]
struct Partial {
    encoding: Encoding,
    total: u16,
    parts: u8,
    /// A bit for each part.
    have: u8,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes a part; answers the page's bytes when it was the last one missing.
    /// Parts of several sendings fit together, because a page is always
    /// packed alike; if not, the newer stays.
    pub fn add(&mut self, part: &PagePart<'_>) -> Option<(Encoding, Vec<u8>)> {
        if self.0.len() >= MOST && !self.0.contains_key(&part.page) {
            self.0.clear();
        }
        let same = |partial: &Partial| {
            (partial.encoding, partial.total, partial.parts)
                == (part.encoding, part.total, part.parts)
        };
        let partial = self.0.entry(part.page).or_insert_with(|| Partial::of(part));
        if !same(partial) {
            *partial = Partial::of(part);
        }
        let place = part_bytes(part.total, part.index, part.parts);
        let part_of = partial.bytes.get_mut(place);
        part_of
            .filter(|place| place.len() == part.bytes.len())?
            .copy_from_slice(part.bytes);
        partial.have |= 1u8.checked_shl(u32::from(part.index))?;
        if partial.have.count_ones() < u32::from(partial.parts) {
            return None;
        }
        let whole = self.0.remove(&part.page)?;
        Some((whole.encoding, whole.bytes))
    }

    /// Returns the missing parts of a page.
    pub fn missing(&self, page: PageNo) -> PartSet {
        let partial = self.0.get(&page);
        partial.map_or(PartSet::ALL, |partial| {
            PartSet::missing(partial.have, partial.parts)
        })
    }

    /// Pages of which there are parts.
    #[cfg(test)]
    pub fn pages(&self) -> usize {
        self.0.len()
    }

    /// A page is there: its parts are not needed.
    pub fn forget(&mut self, page: PageNo) {
        self.0.remove(&page);
    }
}

impl Partial {
    fn of(part: &PagePart<'_>) -> Self {
        Self {
            encoding: part.encoding,
            total: part.total,
            parts: part.parts,
            have: 0,
            bytes: vec![0; usize::from(part.total)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_in_any_order_and_number_make_the_page(
            bytes in prop::collection::vec(any::<u8>(), 8..4096),
            parts in 2..=8u8,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let total = u16::try_from(bytes.len()).expect("short");
            let part = |index| PagePart {
                page: PageNo(3),
                encoding: Encoding::Zstd,
                total,
                index,
                parts,
                bytes: &bytes[part_bytes(total, index, parts)],
            };
            let order = order.iter().map(|index| u8::try_from(index.index(usize::from(parts))).expect("small"));
            let (mut assembly, mut missing) = (Assembly::default(), (0..parts).collect::<std::collections::BTreeSet<_>>());
            for index in order.chain(0..parts) {
                missing.remove(&index);
                let made = assembly.add(&part(index));
                let wanted: std::collections::BTreeSet<_> =
                    (0..parts).filter(|index| assembly.missing(PageNo(3)).next(*index, index + 1).is_some()).collect();
                prop_assert!(made.is_some() || wanted == missing);
                prop_assert_eq!(made.is_some(), missing.is_empty());
                if let Some(made) = made {
                    prop_assert_eq!(made, (Encoding::Zstd, bytes.clone()));
                    break;
                }
            }
            prop_assert!(assembly.0.is_empty());
        }
    }

    #[test]
    fn parts_that_do_not_belong_together_are_not_mixed() {
        let part = |total, index, bytes| PagePart {
            page: PageNo(1),
            encoding: Encoding::Plain,
            total,
            index,
            parts: 2,
            bytes,
        };
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(&part(4, 0, b"ab")), None);
        assert_eq!(assembly.add(&part(6, 1, b"xyz")), None);
        assert_eq!(
            assembly.add(&part(6, 0, b"uvw")),
            Some((Encoding::Plain, b"uvwxyz".to_vec()))
        );
    }
}
