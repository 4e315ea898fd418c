//! Digests, which tell one part of a container image from every other.

use serde::{Deserialize, Deserializer, de::Error};
use sha2::{Digest as _, Sha256};
use std::{
    fmt,
    io::{self, Read},
    str::FromStr,
};

const PREFIX: &str = "sha256:";

/// SHA-256 of a part.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// Text that is no [`Digest`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no digest: wanted sha256: and 64 hexadecimal digits in lower case")]
pub struct InvalidDigest(String);

impl Digest {
    /// Of all that can be read.
    pub fn of(from: impl Read) -> io::Result<Self> {
        let mut hashing = Hashing::new(from);
        io::copy(&mut hashing, &mut io::sink())?;
        Ok(hashing.digest())
    }

    /// Hexadecimal digits of it.
    pub fn hex(&self) -> String {
        self.to_string()[PREFIX.len()..].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest(text.chars().take(100).collect());
        let digits = text.strip_prefix(PREFIX).ok_or_else(invalid)?.as_bytes();
        let lower = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
        if digits.len() != 64 || !digits.iter().all(lower) {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Passes on what it reads and remembers its digest.
pub(super) struct Hashing<R> {
    from: R,
    hasher: Sha256,
}

impl<R: Read> Hashing<R> {
    pub fn new(from: R) -> Self {
        let hasher = Sha256::new();
        Self { from, hasher }
    }

    /// Of all that was read so far.
    pub fn digest(self) -> Digest {
        Digest(self.hasher.finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_that_of_the_standard_and_survives_its_text() {
        let digest = Digest::of(&b"abc"[..]).expect("read");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
    }

    #[test]
    fn text_of_another_shape_is_no_digest() {
        let digits = "0".repeat(64);
        for text in [
            digits.clone(),
            format!("sha512:{digits}"),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{}", "A".repeat(64)),
            format!("sha256:{}", "/".repeat(64)),
            "sha256:../../etc/passwd".into(),
        ] {
            text.parse::<Digest>().expect_err(&text);
        }
    }
}
