//! Keys by which other hosts get pages of this one.

use crate::HostError;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_pager::PeerKey;
use forkyard_types::PageSecret;

/// Makes a key that was never used before.
pub(crate) fn draw() -> Result<PeerKey, HostError> {
    let mut key = [0; 32];
    match getrandom::fill(&mut key) {
        Ok(()) => Ok(PeerKey(key)),
        Err(error) => Err(HostError::Broken(format!(
            "the host has no random numbers: {error}"
        ))),
    }
}

/// The key that was sent.
pub(crate) fn key_of(secret: &PageSecret) -> Result<PeerKey, HostError> {
    let bytes = BASE64_STANDARD.decode(&secret.0).ok();
    let key = bytes.and_then(|bytes| bytes.try_into().ok());
    key.map(PeerKey)
        .ok_or_else(|| HostError::Invalid("the key of its pages is no key".into()))
}

/// A key, as it is told to another host.
pub(crate) fn secret_of(key: PeerKey) -> PageSecret {
    PageSecret(BASE64_STANDARD.encode(key.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_nonsense_is_refused() {
        let key = draw().expect("random");
        let text = PageSecret(BASE64_STANDARD.encode(key.0));
        assert_eq!(key_of(&text).expect("a key"), key);
        assert_ne!(draw().expect("random"), key);
        for text in ["", "?", "AAAA"] {
            key_of(&PageSecret(text.into())).expect_err(text);
        }
    }
}
