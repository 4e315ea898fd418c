//! Fingerprint of a certificate, which tells it from every other.

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr};

const PREFIX: &str = "sha256:";

/// SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// Text that is no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fingerprint: wanted sha256: and 64 hexadecimal digits")]
pub struct InvalidFingerprint(String);

impl Fingerprint {
    /// Of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    /// Colons between the digits, as openssl writes them, are passed over.
    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let invalid = || InvalidFingerprint(text.to_owned());
        let digits = text.strip_prefix(PREFIX).ok_or_else(invalid)?;
        let digits: Option<Vec<_>> = digits
            .chars()
            .filter(|letter| *letter != ':')
            .map(|letter| {
                letter
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect();
        let digits = digits.ok_or_else(invalid)?;
        let bytes: Vec<_> = digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[pair.len() - 1])
            .collect();
        match bytes.try_into() {
            Ok(bytes) if digits.len() == 64 => Ok(Self(bytes)),
            Ok(_) | Err(_) => Err(invalid()),
        }
    }
}
