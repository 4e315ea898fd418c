//! Rate at which a guest may talk.
//!
//! It writes to its channel as it likes, and whatever arrives must be read,
//! checked and understood: a guest that never stops would have a core of the
//! host to itself. So reading stops for as long as it is ahead of its pace; the
//! channel fills, and the guest's own writes wait. Nothing is lost.
//!
//! Reads no clock: the caller passes `now`.

use std::time::{Duration, Instant};

/// A second's worth of bytes, and as many may come at once: more than files
/// and output take on a guest's fast channel.
const BYTES: u32 = 128 << 20;
/// A second's worth of messages, and as many may come at once. Full ones
/// carry four times what the bytes allow; small ones cost their reading.
pub const MESSAGES: u32 = 16 << 10;

/// The pace of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    bytes: Bucket,
    messages: Bucket,
}

/// So many units a second, and as many at once by a guest that was silent before.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u32,
    /// Time at which all that was taken is paid for; in the past for one that has some
    /// to spend.
    paid: Instant,
}

impl Pace {
    /// That of a guest which has been silent.
    pub fn new(now: Instant) -> Self {
        let bucket = |rate| Bucket { rate, paid: now };
        Self {
            bytes: bucket(BYTES),
            messages: bucket(MESSAGES),
        }
    }

    /// Takes note of what was read, and gives the time for which nothing more
    /// should be.
    pub fn spent(&mut self, bytes: usize, messages: u32, now: Instant) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.bytes
            .take(bytes, now)
            .max(self.messages.take(messages, now))
    }
}

impl Bucket {
    /// Debt that may arise before any message waits.
    const CREDIT: Duration = Duration::from_secs(1);

    fn take(&mut self, units: u32, now: Instant) -> Duration {
        let price = Duration::from_secs(1) * units / self.rate;
        self.paid = self.paid.max(now) + price;
        (self.paid - now).saturating_sub(Self::CREDIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_was_silent_has_a_second_in_hand_and_no_more() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.spent(BYTES as usize, 1, now), Duration::ZERO);
        assert!(pace.spent(BYTES as usize / 2, 1, now) >= 499 * MS);
        now += 3600 * Duration::from_secs(1);
        assert_eq!(pace.spent(BYTES as usize, 1, now), Duration::ZERO);
        assert!(pace.spent(BYTES as usize, 1, now) >= 999 * MS);
    }

    #[test]
    fn small_messages_count_by_their_number() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.spent(1, MESSAGES, now), Duration::ZERO);
        assert!(pace.spent(1, MESSAGES, now) >= 999 * MS);
    }

    #[test]
    fn over_time_a_guest_gets_what_it_is_allowed_and_no_more() {
        let begin = Instant::now();
        let (mut now, mut read) = (begin, 0_u64);
        let mut pace = Pace::new(now);
        while now - begin < Duration::from_secs(20) {
            now += pace.spent(64 << 10, 2, now) + MS / 100;
            read += 64 << 10;
        }
        let seconds = read / u64::from(BYTES);
        assert!((20..=22).contains(&seconds), "{seconds}");
    }
}
