//! Pieces of files, named by their content.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{
    fmt,
    io::{self, Read},
    str::FromStr,
};

/// Bytes of each piece of a file but the last one.
pub const PIECE: u32 = 4 << 20;

/// BLAKE3 digest of a piece's bytes. As text: 64 hexadecimal digits, in small letters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wanted a digest: 64 hexadecimal digits")]
pub struct NoDigest;

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Number of its bytes: 1 to [`PIECE`].
    pub bytes: u32,
}

impl Digest {
    /// Digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl Piece {
    /// Piece with these bytes; none if they are none, or too many.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let length = u32::try_from(bytes.len()).ok();
        let length = length.filter(|it| (1..=PIECE).contains(it))?;
        Some(Self {
            digest: Digest::of(bytes),
            bytes: length,
        })
    }
}

/// Cuts a file into pieces. Blocks; holds one piece in memory.
pub fn pieces_of(mut file: impl Read) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut held = Vec::new();
    loop {
        held.clear();
        file.by_ref()
            .take(u64::from(PIECE))
            .read_to_end(&mut held)?;
        match Piece::of(&held) {
            Some(piece) => pieces.push(piece),
            None => return Ok(pieces),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        // One digest has one name.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(NoDigest);
        }
        let hash = blake3::Hash::from_hex(text).map_err(|_| NoDigest)?;
        Ok(Self(*hash.as_bytes()))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_a_files_bytes_in_order_and_none_is_empty() {
        let long = usize::try_from(PIECE).expect("fits") + 3;
        let file: Vec<u8> = (0..long)
            .map(|at| u8::try_from(at % 251).expect("fits"))
            .collect();
        let pieces = pieces_of(&*file).expect("read");
        let (first, last) = file.split_at(long - 3);
        let wanted = [first, last].map(|part| Piece::of(part).expect("a piece"));
        assert_eq!(pieces, wanted);
        assert_eq!(pieces_of(first).expect("read"), wanted[..1]);
        assert_eq!(pieces_of(&[][..]).expect("read"), []);
        assert_eq!(Piece::of(&file), None);
    }

    #[test]
    fn a_digest_has_one_text() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in [
            String::new(),
            digest.to_string().to_uppercase(),
            format!("{digest}0"),
            format!("../{}", &digest.to_string()[3..]),
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(NoDigest), "{bad}");
        }
    }
}
