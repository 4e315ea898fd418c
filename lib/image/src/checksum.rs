//! The checksum of a page.

use xxhash_rust::xxh3::xxh3_64;

/// XXH3-64 of some bytes. Finds damage, not forgery: a program that can write a layer
/// can write its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }
}
