//! Runs of pages as a short text.

use crate::{PageCount, PageNo, PageRun};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

/// Stretches of pages in order, as a text that is a tenth as long as a list of them: the distance
/// from the last one and the length of each in LEB128, base64.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PackedRuns(String);

/// Text that is no stretches of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of page runs cannot be decoded")]
pub struct BadRuns;

impl PackedRuns {
    /// Most stretches in one: more than a guest of 16 GiB can have.
    pub const MOST: usize = 1 << 21;

    /// Packs stretches, which are in order.
    pub fn pack(runs: &[PageRun]) -> Self {
        let mut bytes = Vec::new();
        let mut end = 0;
        for run in runs {
            put(&mut bytes, run.first.0.saturating_sub(end));
            put(&mut bytes, run.pages.0);
            end = run.first.0.saturating_add(run.pages.0);
        }
        Self(BASE64_STANDARD.encode(bytes))
    }

    /// Unpacks them.
    pub fn unpack(&self) -> Result<Vec<PageRun>, BadRuns> {
        let bytes = BASE64_STANDARD.decode(&self.0).map_err(|_| BadRuns)?;
        let (mut bytes, mut runs, mut end) = (&bytes[..], Vec::new(), 0u64);
        while !bytes.is_empty() {
            let (gap, pages) = (take(&mut bytes)?, take(&mut bytes)?);
            let first = end.checked_add(gap).ok_or(BadRuns)?;
            end = first.checked_add(pages).ok_or(BadRuns)?;
            if runs.len() == Self::MOST {
                return Err(BadRuns);
            }
            runs.push(PageRun {
                first: PageNo(first),
                pages: PageCount(pages),
            });
        }
        Ok(runs)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(0x80 | u8::try_from(number & 0x7f).unwrap_or(0));
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

fn take(bytes: &mut &[u8]) -> Result<u64, BadRuns> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(BadRuns)?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(BadRuns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_survive_their_text(
            parts in prop::collection::vec((0..1u64 << 40, 0..1u64 << 30), 0..50)
        ) {
            let mut end = 0;
            let runs: Vec<_> = parts
                .into_iter()
                .map(|(gap, pages)| {
                    let first = end + gap;
                    end = first + pages;
                    PageRun { first: PageNo(first), pages: PageCount(pages) }
                })
                .collect();
            prop_assert_eq!(PackedRuns::pack(&runs).unpack(), Ok(runs));
        }

        #[test]
        fn any_text_is_stretches_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = PackedRuns(BASE64_STANDARD.encode(bytes)).unpack();
        }
    }

    #[test]
    fn text_that_was_cut_or_overflows_is_refused() {
        for bytes in [&[0x80][..], &[1], &[0xff; 10], &[0, 1, 0x80]] {
            let text = PackedRuns(BASE64_STANDARD.encode(bytes));
            assert_eq!(text.unpack(), Err(BadRuns), "{bytes:?}");
        }
        assert_eq!(PackedRuns("?".into()).unpack(), Err(BadRuns));
    }
}
