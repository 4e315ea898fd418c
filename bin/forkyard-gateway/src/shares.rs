//! Tokens that the daemon has given out, and may have taken back since.
//!
//! ```text
//! token --of which VM?--> its list, at most two seconds old --hash there?--> admitted
//!                            ^--- not there: again, if it is older than a tenth of one
//! ```
//!
//! A list is asked for once for all requests that want it, and few at a time: tokens that are made up cost the
//! daemon no more than that.

use crate::guest::Guests;
use forkyard_gateway::{PortPermission, Unreached};
use forkyard_types::{ShareToken, ShareView, VmId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Time for which a list counts: a token that was taken back holds for so long.
const FRESH: Duration = Duration::from_secs(2);
/// Time for which a list counts that lacks a token: it may have been given out since.
const LACKING: Duration = Duration::from_millis(100);
/// Lists that are asked for at once.
const AT_ONCE: usize = 8;

/// A list, and when it was asked for.
type Known = (Instant, Arc<Vec<ShareView>>);

/// Tokens that the daemon has given out.
#[derive(Debug)]
pub struct Shares {
    known: Mutex<HashMap<VmId, Known>>,
    asking: Semaphore,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            asking: Semaphore::new(AT_ONCE),
        }
    }
}

impl Shares {
    /// Finds what a token admits to, if it is one of the daemon's that holds at `now`, in seconds since 1970.
    pub async fn find(
        &self,
        token: &str,
        guests: &Guests,
        until: Instant,
        now: u64,
    ) -> Result<Option<PortPermission>, Unreached> {
        let Some(parts) = ShareToken::parse(token) else {
            return Ok(None);
        };
        let came = Instant::now();
        let all = match self.fresh(&parts) {
            Some(all) => all,
            None => {
                // Closed never.
                let _place = self.asking.acquire().await;
                match self
                    .asked_since(came, &parts)
                    .or_else(|| self.fresh(&parts))
                {
                    Some(all) => all,
                    None => self.ask(parts.vm, guests, until).await?,
                }
            }
        };
        Ok(allowed(token, &parts, &all, now))
    }

    /// A list that was asked for since a request came has all that it can show.
    fn asked_since(&self, came: Instant, token: &ShareToken<'_>) -> Option<Arc<Vec<ShareView>>> {
        let known = self.known();
        let (at, all) = known.get(&token.vm)?;
        (*at >= came).then(|| all.clone())
    }

    fn fresh(&self, token: &ShareToken<'_>) -> Option<Arc<Vec<ShareView>>> {
        let known = self.known();
        let (at, all) = known.get(&token.vm)?;
        let counts = counts(token, all);
        (at.elapsed() < counts).then(|| all.clone())
    }

    async fn ask(
        &self,
        vm: VmId,
        guests: &Guests,
        until: Instant,
    ) -> Result<Arc<Vec<ShareView>>, Unreached> {
        let at = Instant::now();
        let all = Arc::new(guests.shares(vm, until).await?);
        let mut known = self.known();
        known.retain(|_, (at, _)| at.elapsed() < FRESH);
        known.insert(vm, (at, all.clone()));
        Ok(all)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<VmId, Known>> {
        // Whole at every moment.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time for which a list counts for a token.
fn counts(token: &ShareToken<'_>, all: &[ShareView]) -> Duration {
    match all.iter().any(|share| share.id == token.id) {
        true => FRESH,
        false => LACKING,
    }
}

/// Reads a token by the list of its VM.
fn allowed(
    token: &str,
    parts: &ShareToken<'_>,
    all: &[ShareView],
    now: u64,
) -> Option<PortPermission> {
    let share = all.iter().find(|share| share.id == parts.id)?;
    let known = blake3::Hash::from_hex(&share.hash).ok()?;
    // Compared in constant time.
    let is_it = blake3::hash(token.as_bytes()) == known;
    let holds = is_it && share.port == parts.port && now < share.expires;
    holds.then_some(PortPermission {
        vm: parts.vm,
        port: share.port,
        expires: share.expires,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::ShareId;

    #[test]
    fn a_token_holds_that_is_listed_whole_until_it_expires() {
        let parts = |secret| ShareToken {
            vm: VmId::random(),
            port: "80".parse().expect("a port"),
            id: ShareId::random(),
            secret,
        };
        let given = parts("secret");
        let token = given.to_string();
        let view = ShareView {
            id: given.id,
            port: given.port,
            expires: 100,
            note: String::new(),
            hash: blake3::hash(token.as_bytes()).to_hex().to_string(),
        };
        let all = [view];
        assert_eq!(
            (counts(&given, &all), counts(&given, &[])),
            (FRESH, LACKING)
        );
        assert!(allowed(&token, &given, &all, 99).is_some());
        assert_eq!(allowed(&token, &given, &all, 100), None);
        assert_eq!(allowed(&token, &given, &[], 99), None, "taken back");
        let guessed = ShareToken {
            secret: "other",
            ..given
        };
        assert_eq!(allowed(&guessed.to_string(), &guessed, &all, 99), None);
        let port = "81".parse().expect("a port");
        let elsewhere = ShareToken { port, ..given };
        assert_eq!(allowed(&elsewhere.to_string(), &elsewhere, &all, 99), None);
    }
}
