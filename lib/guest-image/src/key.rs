//! Names that follow from content.

use std::{fmt, str::FromStr};

/// Digits shown: 128 bits, enough that no two inputs ever share a name.
const DIGITS: usize = 32;

/// Digest of a thing's inputs. Equal inputs have equal keys; inputs
/// that differ anywhere have different ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey([u8; DIGITS / 2]);

/// Collects the inputs of a [`CacheKey`].
#[derive(Debug)]
pub(crate) struct KeyMaker(blake3::Hasher);

impl KeyMaker {
    /// For one kind of thing, built in one way: raise the number in `builder`
    /// whenever the same input is to give a different output.
    pub(crate) fn new(builder: &str) -> Self {
        let mut maker = Self(blake3::Hasher::new());
        maker.add(builder.as_bytes());
        maker
    }

    /// Adds an input. Each is preceded by its length, so that no two lists of
    /// inputs run together into the same bytes.
    pub(crate) fn add(&mut self, input: &[u8]) {
        self.0.update(&input.len().to_le_bytes());
        self.0.update(input);
    }

    pub(crate) fn finish(self) -> CacheKey {
        let mut short = [0; DIGITS / 2];
        short.copy_from_slice(&self.0.finalize().as_bytes()[..DIGITS / 2]);
        CacheKey(short)
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Text that is no [`CacheKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {DIGITS} hexadecimal digits in lower case")]
pub struct NotAKey;

impl FromStr for CacheKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let lower = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
        if text.len() != DIGITS || !text.as_bytes().iter().all(lower) {
            return Err(NotAKey);
        }
        u128::from_str_radix(text, 16)
            .map(|n| Self(n.to_be_bytes()))
            .map_err(|_| NotAKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key_of(inputs: &[Vec<u8>]) -> CacheKey {
        let mut maker = KeyMaker::new("test 1");
        inputs.iter().for_each(|i| maker.add(i));
        maker.finish()
    }

    proptest! {
        #[test]
        fn different_inputs_have_different_keys(
            a in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..4),
            b in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..4),
        ) {
            prop_assert_eq!(a == b, key_of(&a) == key_of(&b));
        }

        #[test]
        fn key_survives_its_own_text(a in prop::collection::vec(any::<u8>(), 0..9)) {
            let key = key_of(&[a]);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn inputs_do_not_run_together() {
        assert_ne!(
            key_of(&[b"ab".to_vec(), b"c".to_vec()]),
            key_of(&[b"a".to_vec(), b"bc".to_vec()])
        );
    }

    #[test]
    fn text_of_another_shape_is_no_key() {
        for text in [
            "",
            "abc",
            &"A".repeat(32),
            &"g".repeat(32),
            &"+1".repeat(16),
        ] {
            assert_eq!(text.parse::<CacheKey>(), Err(NotAKey), "{text}");
        }
    }
}
