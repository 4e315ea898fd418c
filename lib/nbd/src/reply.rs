//! Replies to requests.

use crate::{
    ByteRange, Cookie, NbdError, Replies,
    options::ALLOCATION_ID,
    wire::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk},
};

/// Encoder of replies, in the form agreed on. Appends to buffers of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct ReplyEncoder(pub(crate) Replies);

/// Run of bytes with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of bytes.
    pub length: u32,
    /// True if nothing is stored for them, and they read as zero.
    pub hole: bool,
}

impl Extent {
    /// `NBD_STATE_HOLE` and `NBD_STATE_ZERO`.
    const HOLE: u32 = 3;
}

impl ReplyEncoder {
    /// Appends success without data.
    pub fn done(self, out: &mut Vec<u8>, cookie: Cookie) {
        match self.0 {
            Replies::Simple => simple(out, cookie, 0),
            Replies::Structured | Replies::WithBlockStatus => {
                header(out, chunk::NONE, cookie, 0);
            }
        }
    }

    /// Appends a failure.
    pub fn failed(self, out: &mut Vec<u8>, cookie: Cookie, error: NbdError) {
        match self.0 {
            Replies::Simple => simple(out, cookie, error.number()),
            Replies::Structured | Replies::WithBlockStatus => {
                header(out, chunk::ERROR, cookie, 6);
                out.extend_from_slice(&error.number().to_be_bytes());
                out.extend_from_slice(&0u16.to_be_bytes());
            }
        }
    }

    /// Appends what goes before the bytes of a read. As many as `range` has must follow.
    pub fn data(self, out: &mut Vec<u8>, cookie: Cookie, range: ByteRange) {
        match self.0 {
            Replies::Simple => simple(out, cookie, 0),
            // A chunk of data has one byte at least.
            Replies::Structured | Replies::WithBlockStatus if range.length == 0 => {
                header(out, chunk::NONE, cookie, 0);
            }
            Replies::Structured | Replies::WithBlockStatus => {
                header(out, chunk::OFFSET_DATA, cookie, range.length + 8);
                out.extend_from_slice(&range.offset.to_be_bytes());
            }
        }
    }

    /// Appends the whole reply to a read of zeroes, if it can be told without sending them.
    /// False if it cannot, and nothing was appended.
    #[must_use]
    pub fn hole(self, out: &mut Vec<u8>, cookie: Cookie, range: ByteRange) -> bool {
        if self.0 == Replies::Simple || range.length == 0 {
            return false;
        }
        header(out, chunk::OFFSET_HOLE, cookie, 12);
        out.extend_from_slice(&range.offset.to_be_bytes());
        out.extend_from_slice(&range.length.to_be_bytes());
        true
    }

    /// Appends a block status. There must be an extent.
    pub fn status(self, out: &mut Vec<u8>, cookie: Cookie, extents: &[Extent]) {
        let count = u32::try_from(extents.len()).unwrap_or(u32::MAX);
        header(
            out,
            chunk::BLOCK_STATUS,
            cookie,
            count.saturating_mul(8).saturating_add(4),
        );
        out.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
        for extent in extents {
            out.extend_from_slice(&extent.length.to_be_bytes());
            let flags = if extent.hole { Extent::HOLE } else { 0 };
            out.extend_from_slice(&flags.to_be_bytes());
        }
    }
}

fn simple(out: &mut Vec<u8>, cookie: Cookie, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.0.to_be_bytes());
}

/// Appends the header of a chunk that is the last of its reply.
fn header(out: &mut Vec<u8>, kind: u16, cookie: Cookie, length: u32) {
    out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out.extend_from_slice(&chunk::DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.0.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}
