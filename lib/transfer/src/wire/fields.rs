//! Reading fields off the front of bytes.

use super::{ClientId, Knock, MemberId};
use crate::pages::Run;
use forkyard_types::{PageCount, PageNo};

/// Rest of the packet to read. A read that fails leaves it as it was.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
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

    pub fn member(&mut self) -> Option<MemberId> {
        self.u32().filter(|member| *member != 0).map(MemberId)
    }

    pub fn knock(&mut self) -> Option<Knock> {
        let client = ClientId(self.u64()?);
        let nonce = self.u64()?;
        Some(Knock { client, nonce })
    }

    /// A run of at least one page that does not wrap around.
    pub fn run(&mut self) -> Option<Run> {
        let first = PageNo(self.u64()?);
        let pages = PageCount(u64::from(self.u32()?));
        first.checked_add(pages).filter(|_| pages.0 > 0)?;
        Some(Run { first, pages })
    }
}
