//! Messages as frames in a stream of bytes.
//!
//! ```text
//! "FyL3" | u32 checksum | u32 length | u32 covered | payload: postcard | u32 checksum, once more
//!          little endian
//! ```
//!
//! The checksum is the low half of the XXH64 of both numbers and of the first `covered` bytes of the payload, which
//! are all but the data of a command: a guest passes data on that it never has in its hands. A frame of which a part
//! is missing is found out by its end.
//!
//! A stream may begin in the middle of a frame: QEMU hands a new connection
//! what is left of the old one. So the decoder skips whatever is no frame until
//! it finds one. It says when there is more noise than an interrupted frame
//! can explain; it never allocates for a length that it was merely told.

use postcard::ser_flavors::Flavor;
use serde::{Serialize, de::DeserializeOwned};
use xxhash_rust::xxh64::xxh64;

/// Longest payload.
pub const MAX_PAYLOAD: usize = 256 << 10;

const MAGIC: [u8; 4] = *b"FyL3";
const HEADER: usize = 16;
const TRAILER: usize = 4;
/// Bytes of a frame beside its payload.
pub const OVERHEAD: usize = HEADER + TRAILER;
/// Beginning of what a checksum is of.
const SUMMED: usize = 8;

/// Bytes that a reader reads at once.
pub(crate) const AT_ONCE: usize = 64 << 10;

/// Noise borne from one peer before it is given up: the rest of any frame,
/// several times over.
const MAX_NOISE: u64 = 4 * MAX_PAYLOAD as u64;
/// Cost of a header and an end of the same checksum that is wrong, besides its bytes: checking it costs
/// as much as hashing the longest payload.
const FALSE_HEADER: u64 = 16 << 10;

/// Reason why a message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The frame is longer than one may be.
    #[error("the message has {bytes} bytes, of which {MAX_PAYLOAD} fit")]
    TooLong {
        /// Length of the frame.
        bytes: usize,
    },
    /// The frame cannot be serialised.
    #[error("the message cannot be written")]
    Serialize(#[source] postcard::Error),
}

/// Fault of a stream. The decoder can go on after either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A whole frame holds no message of the type wanted. It has been skipped.
    #[error("a frame holds an unknown message")]
    Malformed,
    /// Too much of it is no frame at all.
    #[error("{bytes} bytes of the stream are no frame")]
    Noise {
        /// Number of bytes that were skipped.
        bytes: u64,
    },
}

/// A message as one frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, EncodeError> {
    encode_with_data(message, 0)
}

/// A message as one frame, of which the last bytes, so many, are data of a command.
pub fn encode_with_data<T: Serialize>(message: &T, data: usize) -> Result<Vec<u8>, EncodeError> {
    let mut frame = begun(message)?;
    let length = frame.len() - HEADER;
    let end = seal(&mut frame, length, length.saturating_sub(data))?;
    frame.extend_from_slice(&end);
    Ok(frame)
}

/// Bytes around data of which only the length is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Around {
    /// Bytes before it.
    pub before: Vec<u8>,
    /// Bytes after it.
    pub after: [u8; TRAILER],
}

/// The frame of a message whose last field is data, given without it, around so many bytes.
pub fn around<T: Serialize>(message: &T, data: usize) -> Result<Around, EncodeError> {
    let mut before = begun(message)?;
    // The length of no data, of one byte.
    before.pop();
    let length = postcard::serialize_with_flavor(&data, Copied(before));
    let mut before: Vec<u8> = length.map_err(EncodeError::Serialize)?;
    let covered = before.len() - HEADER;
    let after = seal(&mut before, covered + data, covered)?;
    Ok(Around { before, after })
}

fn begun<T: Serialize>(message: &T) -> Result<Vec<u8>, EncodeError> {
    let mut header = Vec::with_capacity(128);
    header.extend_from_slice(&[0; HEADER]);
    let frame = postcard::serialize_with_flavor(message, Copied(header));
    frame.map_err(EncodeError::Serialize)
}

/// Writes the header; returns what ends the frame.
fn seal(frame: &mut [u8], bytes: usize, covered: usize) -> Result<[u8; TRAILER], EncodeError> {
    let (Ok(length), Ok(first)) = (u32::try_from(bytes), u32::try_from(covered)) else {
        return Err(EncodeError::TooLong { bytes });
    };
    if bytes > MAX_PAYLOAD {
        return Err(EncodeError::TooLong { bytes });
    }
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    frame[12..HEADER].copy_from_slice(&first.to_le_bytes());
    let sum = checksum(&frame[SUMMED..HEADER + covered]);
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..SUMMED].copy_from_slice(&sum);
    Ok(sum)
}

/// Appends to a vector, slices as a whole: `postcard::to_extend` takes them byte by byte, which a
/// compiler that optimises for size may leave so: 0.27 s for 64 MiB in an emulated guest.
struct Copied(Vec<u8>);

impl Flavor for Copied {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Computed without vector instructions: in an emulated guest those of XXH3 take 1.3 ms for a chunk right
/// after the C library has copied it by wider ones, and these 0.1 ms.
fn checksum(bytes: &[u8]) -> [u8; TRAILER] {
    let [a, b, c, d, ..] = xxh64(bytes, 0).to_le_bytes();
    [a, b, c, d]
}

/// Finds the frames in a stream. Holds one frame at most, and what was fed
/// since it was last asked.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Bytes that were fed, from `done` to `end`, and room.
    bytes: Vec<u8>,
    done: usize,
    end: usize,
    skipped: u64,
    noise: u64,
}

/// Beginning of a stream.
enum Start {
    /// So many bytes of no frame.
    Noise { bytes: usize, worth: u64 },
    /// A frame that is not all there yet, or nothing.
    Incomplete,
    /// A frame of this many bytes.
    Frame(usize),
}

impl Decoder {
    /// Appends what was read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.fed(bytes.len());
    }

    /// Room for so many bytes, to read into; [`fed`](Self::fed) appends them.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.done == self.end {
            (self.done, self.end) = (0, 0);
        }
        if self.bytes.len() - self.end < bytes {
            let held = self.done..self.end;
            (self.done, self.end) = (0, held.len());
            // For several: what there is of a frame is seldom moved then.
            let enough = (held.len() + bytes).max(4 * bytes);
            if enough <= self.bytes.len() {
                self.bytes.copy_within(held, 0);
            } else {
                // Memory of zeros costs nothing until it is written to.
                let mut more = vec![0; enough];
                more[..held.len()].copy_from_slice(&self.bytes[held]);
                self.bytes = more;
            }
        }
        &mut self.bytes[self.end..self.end + bytes]
    }

    /// Appends the first of what was read into the [`room`](Self::room), so many bytes.
    pub fn fed(&mut self, bytes: usize) {
        self.end = self.bytes.len().min(self.end + bytes);
    }

    /// The next message, or none until more is fed.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Option<Result<T, FrameError>> {
        loop {
            match look(&self.bytes[self.done..self.end]) {
                Start::Incomplete => return None,
                Start::Noise { bytes, worth } => {
                    self.done += bytes;
                    self.skipped += bytes as u64;
                    self.noise += worth;
                    if self.noise > MAX_NOISE {
                        self.noise = 0;
                        let bytes = self.skipped;
                        return Some(Err(FrameError::Noise { bytes }));
                    }
                }
                Start::Frame(length) => {
                    let payload = &self.bytes[self.done + HEADER..self.done + length - TRAILER];
                    let message = match postcard::take_from_bytes(payload) {
                        Ok((message, [])) => Ok(message),
                        Ok(_) | Err(_) => Err(FrameError::Malformed),
                    };
                    self.done += length;
                    return Some(message);
                }
            }
        }
    }

    /// Tells whether a frame has begun and not ended.
    pub fn is_midway(&self) -> bool {
        self.end > self.done
    }

    /// Gives up the frame that has begun, if one has: the rest of it will never
    /// come. What was fed after it may have been taken for its payload, and is
    /// looked through again.
    pub fn abandon(&mut self) {
        if self.is_midway() {
            self.done += 1;
            self.skipped += 1;
        }
    }

    /// Bytes skipped so far because they were no frame.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

fn look(stream: &[u8]) -> Start {
    let begin = find_magic(stream);
    if begin > 0 {
        let worth = begin as u64;
        return Start::Noise {
            bytes: begin,
            worth,
        };
    }
    let Some(header) = stream.first_chunk::<HEADER>() else {
        return Start::Incomplete;
    };
    let [_, _, _, _, sum @ .., l0, l1, l2, l3, c0, c1, c2, c3] = *header;
    let number = |bytes| usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
    let (length, covered) = (number([l0, l1, l2, l3]), number([c0, c1, c2, c3]));
    if length > MAX_PAYLOAD || covered > length {
        return Start::Noise { bytes: 1, worth: 1 };
    }
    let Some(frame) = stream.get(..HEADER + length + TRAILER) else {
        return Start::Incomplete;
    };
    // Only its first byte is noise: a frame may begin inside what it claimed.
    match frame.ends_with(&sum) {
        false => Start::Noise { bytes: 1, worth: 1 },
        true if checksum(&frame[SUMMED..HEADER + covered]) == sum => Start::Frame(frame.len()),
        true => Start::Noise {
            bytes: 1,
            worth: FALSE_HEADER,
        },
    }
}

/// Finds where a header, or what there is of one, begins; the end if nowhere.
fn find_magic(stream: &[u8]) -> usize {
    let mut from = 0;
    while let Some(offset) = stream[from..].iter().position(|byte| *byte == MAGIC[0]) {
        let here = from + offset;
        let there = (stream.len() - here).min(MAGIC.len());
        if stream[here..here + there] == MAGIC[..there] {
            return here;
        }
        from = here + 1;
    }
    stream.len()
}

#[cfg(test)]
mod tests;
