//! Little-endian fields.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Fields read from the front.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Number of things of at least so many bytes each; `None` if they are not all there.
    pub fn count(&mut self, each: usize) -> Option<usize> {
        let count = usize::try_from(self.u32()?).ok()?;
        (count.checked_mul(each)? <= self.0.len()).then_some(count)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(self.u8()?);
        std::str::from_utf8(self.bytes(length)?).ok()
    }
}

/// Appends a short text with its length. Longer ones than 255 bytes are cut.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(255)];
    out.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(bytes);
}

/// Number of things, as it is stored.
pub fn count(things: usize) -> [u8; 4] {
    u32::try_from(things).unwrap_or(u32::MAX).to_le_bytes()
}

/// Checksum of bytes in a context.
pub fn checksum(seed: u64, bytes: &[u8]) -> [u8; 8] {
    xxh3_64_with_seed(bytes, seed).to_le_bytes()
}
