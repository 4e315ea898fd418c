//! An invitation as text: the address of a node, its fingerprint, and a secret.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use forkyard_tls::Fingerprint;
use serde::{Deserialize, Serialize};
use std::{fmt, net::SocketAddr, str::FromStr};

const PREFIX: &str = "fyn_";
/// Random bytes of a secret.
const SECRET: usize = 32;

/// Text that is no invitation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("that is no invitation: wanted what `forkyard node invite` printed, fyn_ and more")]
pub struct InvalidInvitation;

/// An invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The node that gave it.
    pub api: SocketAddr,
    /// Fingerprint of the cluster's certificate.
    pub certificate: Fingerprint,
    /// Id of the invitation.
    pub id: String,
    /// Secret that proves the invitation.
    pub secret: String,
}

#[derive(Serialize, Deserialize)]
struct Written {
    api: SocketAddr,
    cert: String,
    id: String,
    secret: String,
}

impl Token {
    /// Makes a secret that cannot be guessed, and the hash of it that is kept.
    pub(crate) fn secret() -> Result<String, getrandom::Error> {
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret)?;
        Ok(BASE64_URL_SAFE_NO_PAD.encode(secret))
    }

    /// Hashes a secret to the form that is kept. It is random: no dictionary
    /// helps against a fast hash.
    pub(crate) fn hash(secret: &str) -> blake3::Hash {
        blake3::hash(secret.as_bytes())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = Written {
            api: self.api,
            cert: self.certificate.to_string(),
            id: self.id.clone(),
            secret: self.secret.clone(),
        };
        let text = serde_json::to_vec(&written).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(text))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("api", &self.api)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = InvalidInvitation;

    fn from_str(text: &str) -> Result<Self, InvalidInvitation> {
        let parse = || {
            let text = text.trim().strip_prefix(PREFIX)?;
            let text = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
            let written: Written = serde_json::from_slice(&text).ok()?;
            Some(Self {
                api: written.api,
                certificate: written.cert.parse().ok()?,
                id: written.id,
                secret: written.secret,
            })
        };
        parse().ok_or(InvalidInvitation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_survives_its_text_and_keeps_its_secret_to_itself() {
        let token = Token {
            api: "192.0.2.1:7433".parse().expect("an address"),
            certificate: format!("sha256:{}", "ab".repeat(32)).parse().expect("one"),
            id: "x".into(),
            secret: Token::secret().expect("random"),
        };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&token.secret));
        for wrong in ["", "fyn_", &text[1..], &text[..text.len() - 3], "fyn_e30"] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
        assert_ne!(Token::secret(), Token::secret());
    }
}
