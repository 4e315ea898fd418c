//! Streams of Connect: each message in an envelope, the last one with the outcome.
//!
//! ```text
//! flags: 1 byte | length: 4 bytes, big endian | JSON
//! flags: 1 compressed, which is never agreed on here; 2 the last
//! ```

use serde::Serialize;
use serde_json::json;

/// Longest message that is read.
pub const LONGEST: usize = 4 << 20;

const COMPRESSED: u8 = 1;
const LAST: u8 = 2;
const HEAD: usize = 5;

/// A stream that cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// A message is too long.
    #[error("a message of {bytes} bytes: {LONGEST} are allowed")]
    TooLong {
        /// Length that the head gives.
        bytes: u32,
    },
    /// A message is compressed.
    #[error("a message is compressed, which was not agreed on")]
    Compressed,
}

/// A message in its envelope.
pub fn frame(message: &impl Serialize) -> Vec<u8> {
    sealed(0, message)
}

/// The envelope that ends a stream that went well.
pub fn end() -> Vec<u8> {
    sealed(LAST, &json!({}))
}

/// The envelope that ends a stream that failed.
pub fn error_end(code: &str, message: &str) -> Vec<u8> {
    sealed(LAST, &json!({"error": {"code": code, "message": message}}))
}

fn sealed(flags: u8, message: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_vec(message).unwrap_or_default();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut envelope = Vec::with_capacity(HEAD + text.len());
    envelope.push(flags);
    envelope.extend(length.to_be_bytes());
    envelope.extend(text);
    envelope
}

/// Takes messages out of a stream, however it is cut.
#[derive(Debug, Default)]
pub struct EnvelopeDecoder {
    pending: Vec<u8>,
}

impl EnvelopeDecoder {
    /// Adds bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next message that is whole. One that ends the stream is none.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, EnvelopeError> {
        while let [flags, a, b, c, d, rest @ ..] = self.pending.as_slice() {
            let (flags, bytes) = (*flags, u32::from_be_bytes([*a, *b, *c, *d]));
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            if length > LONGEST {
                return Err(EnvelopeError::TooLong { bytes });
            }
            if flags & COMPRESSED != 0 {
                return Err(EnvelopeError::Compressed);
            }
            if rest.len() < length {
                return Ok(None);
            }
            let message = rest[..length].to_vec();
            self.pending.drain(..HEAD + length);
            if flags & LAST == 0 {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_are_as_clients_read_them() {
        assert_eq!(end(), b"\x02\0\0\0\x02{}");
        let failed = error_end("not_found", "no");
        assert_eq!(&failed[..5], b"\x02\0\0\0\x2d");
        assert_eq!(
            &failed[5..],
            br#"{"error":{"code":"not_found","message":"no"}}"#
        );
    }

    #[test]
    fn what_is_too_long_or_compressed_is_refused_before_it_has_come() {
        let mut decoder = EnvelopeDecoder::default();
        decoder.push(b"\0\xff\xff\xff\xff");
        let bytes = u32::MAX;
        assert_eq!(decoder.message(), Err(EnvelopeError::TooLong { bytes }));
        let mut decoder = EnvelopeDecoder::default();
        decoder.push(b"\x01\0\0\0\x01");
        assert_eq!(decoder.message(), Err(EnvelopeError::Compressed));
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            texts in prop::collection::vec("[a-z]{0,40}", 0..8), cut in 1..9usize
        ) {
            let stream: Vec<u8> = texts.iter().flat_map(frame).chain(end()).collect();
            let mut decoder = EnvelopeDecoder::default();
            let mut found = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(message) = decoder.message().expect("well formed") {
                    found.push(serde_json::from_slice::<String>(&message).expect("text"));
                }
            }
            prop_assert_eq!(found, texts);
        }
    }
}
