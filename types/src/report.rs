//! Account of the time of a fork.

use crate::{ByteCount, PageCount};
use serde::{Deserialize, Serialize};

/// Account of the time of one fork. Times in microseconds from the request
/// unless said otherwise.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForkReport {
    /// Until every shell was there (0 if all were warm).
    pub shells_us: u64,
    /// Copying memory ahead while the parent ran, a length.
    #[serde(default)]
    pub ahead_us: u64,
    /// Times it was gone over for that.
    #[serde(default)]
    pub ahead_rounds: u16,
    /// Pages copied so.
    #[serde(default)]
    pub pages_ahead: PageCount,
    /// Asking the guest to hold still, a length.
    pub quiesce_us: u64,
    /// The parent's vCPUs stood still for this long.
    pub pause_us: u64,
    /// Part of the pause: freezing the disk.
    pub disk_us: u64,
    /// Part of the pause: saving the device state.
    pub descriptor_us: u64,
    /// Part of the pause: copying private pages.
    pub capture_us: u64,
    /// Size of the device state.
    pub descriptor: ByteCount,
    /// Pages looked at because they were private to the parent.
    pub pages_scanned: PageCount,
    /// Pages of them that hold data and went into the image.
    pub pages_captured: PageCount,
    /// From the publication of the image until the last clone's vCPUs ran, a
    /// length.
    pub load_us: u64,
    /// Until the last clone's vCPUs ran.
    pub running_us: u64,
    /// Until the last clone's user code went on, with its own identity.
    pub ready_us: u64,
    /// Pages of the image read until then, for all clones together: each once.
    pub pages_fetched: PageCount,
}

impl ForkReport {
    /// Converts the report to that of a request that came so much later, in
    /// microseconds. What did not happen, still did not.
    pub fn later_by(mut self, us: u64) -> Self {
        for time in self.until().into_iter().filter(|time| **time > 0) {
            // Another host says so: it may be any number.
            *time = time.saturating_add(us);
        }
        self
    }

    /// Counts clones that another host made for the same request.
    pub fn extend(&mut self, mut there: Self) {
        for (time, there) in self.until().into_iter().zip(there.until()) {
            *time = (*time).max(*there);
        }
    }

    /// Lists the times that are counted from the request on.
    fn until(&mut self) -> [&mut u64; 3] {
        [
            &mut self.shells_us,
            &mut self.running_us,
            &mut self.ready_us,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_another_host_count_from_the_request_on() {
        let mut here = ForkReport {
            shells_us: 10,
            pause_us: 5,
            running_us: 400,
            ready_us: 500,
            ..ForkReport::default()
        };
        // All were warm there.
        let there = ForkReport {
            pause_us: 70,
            running_us: 200,
            ready_us: u64::MAX - 1,
            ..ForkReport::default()
        };
        here.extend(there.later_by(250));
        assert_eq!((here.shells_us, here.pause_us), (10, 5));
        assert_eq!((here.running_us, here.ready_us), (450, u64::MAX));
    }
}
