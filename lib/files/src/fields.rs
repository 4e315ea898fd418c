//! Fields of headers.

use crate::{BLOCK, FilesError};

/// Returns true if a block has the checksum of a header.
pub(crate) fn is_header(block: &[u8; BLOCK]) -> bool {
    let spaces = 8 * u64::from(b' ');
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let real = sum(&block[..148]) + spaces + sum(&block[156..]);
    number(&block[148..156]).is_ok_and(|told| told == real)
}

/// Number of a header: octal digits, or GNU's base 256. A negative one is 0.
pub(crate) fn number(field: &[u8]) -> Result<u64, FilesError> {
    let bad = || FilesError::Format("a header has no number");
    match field[0] {
        0x80 => field[1..]
            .iter()
            .try_fold(0_u64, |n, byte| {
                n.checked_mul(256)?.checked_add(u64::from(*byte))
            })
            .ok_or_else(bad),
        0xff => Ok(0),
        _ => {
            let text = terminated(field).trim_ascii();
            text.iter()
                .try_fold(0_u64, |n, byte| match byte {
                    b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                    _ => None,
                })
                .ok_or_else(bad)
        }
    }
}

/// Number of an extended header.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Time of an extended header: seconds and nanoseconds.
pub(crate) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos: u32 = digits.parse().ok()?;
    match (negative, nanos) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((seconds, nanos)),
    }
}

/// Text of a field, up to its zero byte if it has one.
pub(crate) fn terminated(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Reads the map of format 0.1.
pub(crate) fn pairs(text: &[u8]) -> Result<Vec<(u64, u64)>, FilesError> {
    let bad = FilesError::Format("a map of holes is no list of numbers");
    let numbers: Option<Vec<u64>> = text.split(|byte| *byte == b',').map(decimal).collect();
    match numbers {
        Some(numbers) if numbers.len() % 2 == 0 => Ok(numbers
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect()),
        Some(_) | None => Err(bad),
    }
}
