//! Signatures of substrates that are carried from host to host: Ed25519 (RFC 8032).
//!
//! What is signed begins with a line of its own, so that a signature is worth nothing elsewhere.

use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use std::{fmt, str::FromStr};

const CONTEXT: &[u8] = b"forkyard substrate 1\n";

/// A host's key.
#[derive(Debug)]
pub struct Signer(Ed25519KeyPair);

/// The public half of a host's key. As text: 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// A signature. As text: 128 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature([u8; 64]);

/// Reason why there is no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The system gives no random numbers.
    #[error("no key can be drawn: the system gives no random numbers")]
    NoRandom,
    /// A key's file holds none.
    #[error("it holds no key")]
    NoKey,
}

/// A text that is no key and no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wanted {0} hexadecimal digits")]
pub struct NoHex(usize);

/// A signature that is not of this text by this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not that key's, or what was signed was changed")]
pub struct Forged;

impl Signer {
    /// Draws a new key, as PKCS#8 to be kept.
    pub fn draw() -> Result<Vec<u8>, SignError> {
        let drawn = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        drawn
            .map(|it| it.as_ref().to_vec())
            .map_err(|_| SignError::NoRandom)
    }

    /// Reads a key that was kept.
    pub fn read(pkcs8: &[u8]) -> Result<Self, SignError> {
        let read = Ed25519KeyPair::from_pkcs8(pkcs8);
        read.map(Self).map_err(|_| SignError::NoKey)
    }

    /// Returns the public half of the key.
    pub fn public(&self) -> Result<PublicKey, SignError> {
        let bytes = self.0.public_key().as_ref().try_into();
        bytes.map(PublicKey).map_err(|_| SignError::NoKey)
    }

    /// Signs a text.
    pub fn sign(&self, text: &[u8]) -> Result<Signature, SignError> {
        let signature = self.0.sign(&[CONTEXT, text].concat());
        let bytes = signature.as_ref().try_into();
        bytes.map(Signature).map_err(|_| SignError::NoKey)
    }
}

impl PublicKey {
    /// Checks that a text was signed by this key.
    pub fn check(&self, text: &[u8], signature: &Signature) -> Result<(), Forged> {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        let signed = [CONTEXT, text].concat();
        key.verify(&signed, &signature.0).map_err(|_| Forged)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PublicKey {
    type Err = NoHex;

    fn from_str(text: &str) -> Result<Self, NoHex> {
        bytes(text).map(Self)
    }
}

impl FromStr for Signature {
    type Err = NoHex;

    fn from_str(text: &str) -> Result<Self, NoHex> {
        bytes(text).map(Self)
    }
}

fn bytes<const N: usize>(text: &str) -> Result<[u8; N], NoHex> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(NoHex(2 * N));
    }
    let digit = |at: u8| {
        char::from(at)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        let halves = (digit(pair[0]), digit(pair[1]));
        let (Some(high), Some(low)) = halves else {
            return Err(NoHex(2 * N));
        };
        *byte = high << 4 | low;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer() -> Signer {
        Signer::read(&Signer::draw().expect("drawn")).expect("a key")
    }

    #[test]
    fn what_was_signed_is_told_from_what_was_not() {
        let (signer, other) = (signer(), signer());
        let signature = signer.sign(b"text").expect("signed");
        let key = signer.public().expect("a key");
        assert_eq!(key.check(b"text", &signature), Ok(()));
        assert_eq!(key.check(b"texu", &signature), Err(Forged));
        let others = other.public().expect("a key");
        assert_eq!(others.check(b"text", &signature), Err(Forged));
        let mut bent = signature;
        bent.0[3] ^= 1;
        assert_eq!(key.check(b"text", &bent), Err(Forged));
        // Of another thing of the same key.
        let bare = Signature(
            signer
                .0
                .sign(b"text")
                .as_ref()
                .try_into()
                .expect("64 bytes"),
        );
        assert_eq!(key.check(b"text", &bare), Err(Forged));
    }

    #[test]
    fn keys_and_signatures_survive_their_texts() {
        let signer = signer();
        let key = signer.public().expect("a key");
        assert_eq!(key.to_string().parse(), Ok(key));
        let signature = signer.sign(b"").expect("signed");
        assert_eq!(signature.to_string().parse(), Ok(signature));
        for bad in ["", "0", &"g".repeat(64), &"é".repeat(32), &"00".repeat(33)] {
            assert_eq!(bad.parse::<PublicKey>(), Err(NoHex(64)), "{bad}");
        }
        assert_eq!(
            Signer::read(b"no key").expect_err("refused"),
            SignError::NoKey
        );
    }
}
