//! Waiting, in a guest, for a test that has neither agent nor daemon to say so through: both may
//! stand still, and a port that is published leads to the guest all the same.

use super::Host;
use crate::waiting::eventually;

/// Port of the host, and of the guest, by which it is knocked.
const KNOCKED: u16 = 7979;

impl Host {
    /// Option of `run`, with its value, for a VM that is to hear a knock. The host has to reach
    /// itself: see [`Host::with_loopback`].
    pub const DOOR: [&str; 2] = ["--publish", "127.0.0.1:7979:7979"];

    /// Starts a VM `p` as [`Host::with_p`] does, that can hear a knock.
    pub fn running_p_behind_a_door(self, options: &[&str]) -> Self {
        self.with_loopback();
        self.running_p(&[&Self::DOOR[..], options].concat())
    }

    /// Command that waits, in the guest of that VM, for one knock.
    pub const UNTIL_KNOCKED: &str = "nc -l -p 7979 </dev/null >/dev/null 2>&1 || true";

    /// Knocks, once the guest waits for it.
    #[track_caller]
    pub fn knock(&self) {
        eventually("the guest to wait for a knock", || {
            self.connect(KNOCKED).is_ok()
        });
    }
}
