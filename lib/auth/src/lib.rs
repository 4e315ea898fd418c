//! Tokens that grant use of the API over the network.
//!
//! ```text
//! request --> token known, unexpired, its secret the right one? --> admitted
//!                |no
//!             refused; the address is charged, and its next refusals come late
//! ```
//!
//! A valid token is never refused or delayed for what its address sent before: many
//! users share one behind a NAT. There is nothing to guess in 256 random bits; the
//! delay bounds the work that failures cost.
//!
//! A token is `fy_ID_SECRET`. The host keeps a hash of the secret alone, which
//! is 256 random bits: no dictionary helps against it, so a fast hash does.
//! Reads no clock and opens no socket.

mod failures;

pub use failures::{Failures, network};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use forkyard_records::{Records, RecordsError, TokenRecord};
use forkyard_types::{TokenId, TokenRequest, TokenSecret, TokenView};
use std::{
    net::IpAddr,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const PREFIX: &str = "fy";
/// Bytes of a secret.
const SECRET: usize = 32;
/// Characters of a token's name.
const NAME: usize = 64;

/// Returns the token in a header `Authorization`; the scheme's name is in any case (RFC 9110, section 11.1).
pub fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Reason why a request is not admitted. What a stranger is told does not say which
/// part of a token was wrong.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No token came with the request.
    #[error("the request carries no token")]
    NoToken,
    /// No such token, or not its secret.
    #[error("the token is not one of this host's")]
    Unknown,
    /// The token has expired.
    #[error("the token {name:?} has expired")]
    Expired {
        /// Name of the token.
        name: String,
    },
    /// The records cannot be read.
    #[error(transparent)]
    Store(#[from] RecordsError),
}

/// Reason why a token cannot be given out or taken back.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Not a name for a token.
    #[error("{name:?} is no name for a token: wanted 1 to {NAME} printable characters")]
    Name {
        /// Requested name.
        name: String,
    },
    /// Not a time for a token to hold.
    #[error("a token holds for a second to a hundred years, or for ever: not for {seconds} s")]
    Lifetime {
        /// Requested time.
        seconds: u64,
    },
    /// No token of that name or id.
    #[error("there is no token {word:?}")]
    NoSuchToken {
        /// Requested word.
        word: String,
    },
    /// The kernel gives no random bytes.
    #[error("the kernel gave no random bytes")]
    Random(#[from] getrandom::Error),
    /// The records cannot be used.
    #[error(transparent)]
    Store(#[from] RecordsError),
}

/// Seconds that a token can hold: to a hundred years.
const LIFETIME: std::ops::RangeInclusive<u64> = 1..=100 * 365 * 24 * 3600;

/// The tokens of a host.
#[derive(Debug)]
pub struct Access {
    store: Records,
    failures: Mutex<Failures>,
}

impl Access {
    /// Opens the records; with a connection of its own, so that no request
    /// waits for what a fork writes down.
    pub fn open(database: &Path) -> Result<Self, RecordsError> {
        Ok(Self {
            store: Records::open(database)?,
            failures: Mutex::default(),
        })
    }

    /// Gives out a token. `now` is in seconds since 1970.
    pub fn grant(
        &self,
        request: TokenRequest,
        now: u64,
    ) -> Result<(TokenView, TokenSecret), TokenError> {
        let length = request.name.chars().count();
        if !(1..=NAME).contains(&length) || request.name.contains(forkyard_types::acts) {
            return Err(TokenError::Name { name: request.name });
        }
        if let Some(seconds) = request.expires_s.filter(|it| !LIFETIME.contains(it)) {
            return Err(TokenError::Lifetime { seconds });
        }
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret)?;
        let view = TokenView {
            id: TokenId::random(),
            name: request.name,
            created: now,
            expires: request.expires_s.map(|length| now.saturating_add(length)),
        };
        self.store.put_token(&TokenRecord {
            view: view.clone(),
            hash: *blake3::hash(&secret).as_bytes(),
        })?;
        self.store.flush()?;
        let secret = BASE64_URL_SAFE_NO_PAD.encode(secret);
        let token = TokenSecret(format!("{PREFIX}_{}_{secret}", view.id));
        Ok((view, token))
    }

    /// Every token, the oldest first, expired ones included.
    pub fn list(&self) -> Result<Vec<TokenView>, TokenError> {
        let tokens = self.store.tokens()?;
        Ok(tokens.into_iter().map(|token| token.view).collect())
    }

    /// Takes back a token by name or id: from the next request on it is unknown, also after
    /// a power cut.
    pub fn revoke(&self, word: &str) -> Result<TokenView, TokenError> {
        let found = self
            .list()?
            .into_iter()
            .find(|token| token.name == word || token.id.as_str() == word);
        let token = found.ok_or_else(|| TokenError::NoSuchToken { word: word.into() })?;
        self.store.remove_token(token.id)?;
        self.store.flush()?;
        Ok(token)
    }

    /// Delay of the next refusal to an address, which failed too often lately.
    pub fn delay(&self, from: IpAddr, instant: Instant) -> Duration {
        self.failures().delay(from, instant)
    }

    /// Counts a failure of an address: credentials that did not hold.
    pub fn charge(&self, from: IpAddr, instant: Instant) {
        self.failures().charge(from, instant);
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides on a request from `from` that carries `token`, and counts a failure.
    /// Blocks for as long as one row is read.
    pub fn admit(
        &self,
        from: IpAddr,
        token: Option<&str>,
        now: u64,
        instant: Instant,
    ) -> Result<TokenView, Refused> {
        let outcome = match token {
            Some(token) => self.judge(token, now),
            None => Err(Refused::NoToken),
        };
        match &outcome {
            Ok(_) | Err(Refused::Store(_)) => {}
            Err(_) => self.charge(from, instant),
        }
        outcome
    }

    fn judge(&self, token: &str, now: u64) -> Result<TokenView, Refused> {
        let (id, secret) = parse(token).ok_or(Refused::Unknown)?;
        let known = self.store.token(id)?.ok_or(Refused::Unknown)?;
        // blake3 compares its hashes in constant time.
        if blake3::hash(&secret) != blake3::Hash::from(known.hash) {
            return Err(Refused::Unknown);
        }
        if known.view.expires.is_some_and(|end| end <= now) {
            return Err(Refused::Expired {
                name: known.view.name,
            });
        }
        Ok(known.view)
    }
}

fn parse(token: &str) -> Option<(TokenId, [u8; SECRET])> {
    let mut parts = token.splitn(3, '_');
    if parts.next()? != PREFIX {
        return None;
    }
    let id = parts.next()?.parse().ok()?;
    let secret = BASE64_URL_SAFE_NO_PAD.decode(parts.next()?).ok()?;
    Some((id, secret.try_into().ok()?))
}

#[cfg(test)]
mod tests;
