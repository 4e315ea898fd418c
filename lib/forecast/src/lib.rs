//! Number of VMs of a kind that are held ready, by the demand that was seen.
//!
//! ```text
//! arrivals --Demand::arrived--> windows (16) ----.
//!                         `---> hours of a day --+--Demand::wanted(now)--> how many
//! wanted + memory --bound::bounded--> how many have room
//! trace + stock + times --replay--> hits, memory spent, waits
//! ```
//!
//! Performs no I/O and reads no clock: the caller passes the time. [`replay()`] tries a policy on a
//! trace of arrivals; [`trace`] generates such traces.

pub mod bound;
mod demand;
mod profile;
pub mod replay;
pub mod trace;

pub use demand::Demand;
pub use replay::{ForecastOutcome, Stock, Times, replay};

/// Milliseconds since some fixed midnight.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Millis(pub u64);

impl Millis {
    /// So many seconds.
    pub const fn secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// Time from an earlier moment until this one; none if that one is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// A moment so much later.
    #[must_use]
    pub const fn after(self, time: Self) -> Self {
        Self(self.0.saturating_add(time.0))
    }
}
