//! A stream of bytes in parts, so that its end is told apart from its being broken off.
//!
//! ```text
//! part = length (u32, little endian) bytes      end = a length of 0
//! ```
//!
//! Connections to ports of guests are carried so, in both directions, as input and output of a
//! program of the agent's. Nothing is kept but a length that has come in part: whatever a length
//! claims, no memory follows from it.

/// First byte that the program in the guest says: it is connected. Parts follow.
pub const CONNECTED: u8 = b'+';

/// The end of a stream.
pub const END: [u8; 4] = [0; 4];

/// Bytes of a length.
const HEADER: usize = 4;

/// Bytes as one part of a stream. No bytes are no part: that would be the end.
pub fn part(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), bytes].concat()
}

/// Something that came on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPiece {
    /// Bytes, never none.
    Data(Vec<u8>),
    /// The end; nothing follows.
    End,
}

/// The receiving end of a stream.
#[derive(Debug, Default)]
pub struct StreamReceiver {
    header: Vec<u8>,
    left: usize,
    over: bool,
}

impl StreamReceiver {
    /// Takes bytes as they came, however they were cut. What comes after the end is discarded.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Vec<StreamPiece> {
        let mut pieces = Vec::new();
        while !self.over && !bytes.is_empty() {
            if self.left > 0 {
                let (data, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= data.len();
                bytes = rest;
                pieces.push(StreamPiece::Data(data.to_vec()));
                continue;
            }
            let (more, rest) = bytes.split_at((HEADER - self.header.len()).min(bytes.len()));
            self.header.extend_from_slice(more);
            bytes = rest;
            if let Ok(length) = <[u8; HEADER]>::try_from(self.header.as_slice()) {
                self.header.clear();
                self.left = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
                if self.left == 0 {
                    self.over = true;
                    pieces.push(StreamPiece::End);
                }
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_that_promises_more_than_comes_takes_no_memory_and_is_no_end() {
        let mut parts = StreamReceiver::default();
        assert!(parts.feed(&u32::MAX.to_le_bytes()).is_empty());
        assert_eq!(parts.feed(b"ab"), [StreamPiece::Data(b"ab".to_vec())]);
        assert!(parts.header.capacity() <= 8);
    }

    #[test]
    fn what_comes_after_the_end_is_discarded() {
        let bytes = [&END[..], &part(b"late")].concat();
        assert_eq!(StreamReceiver::default().feed(&bytes), [StreamPiece::End]);
    }

    proptest! {
        #[test]
        fn bytes_come_as_they_went_however_they_are_cut(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
            cut in 1..30_usize,
            ends in any::<bool>(),
        ) {
            let mut wire: Vec<u8> = sent.iter().flat_map(|bytes| part(bytes)).collect();
            if ends {
                wire.extend(END);
            }
            let mut parts = StreamReceiver::default();
            let pieces: Vec<_> = wire.chunks(cut).flat_map(|bytes| parts.feed(bytes)).collect();
            let came: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| match piece {
                    StreamPiece::Data(data) => data.clone(),
                    StreamPiece::End => Vec::new(),
                })
                .collect();
            prop_assert_eq!(came, sent.concat());
            prop_assert_eq!(pieces.last() == Some(&StreamPiece::End), ends);
            prop_assert!(!pieces.contains(&StreamPiece::Data(Vec::new())));
        }
    }
}
