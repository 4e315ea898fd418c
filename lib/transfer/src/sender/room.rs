//! The group: what keeps its members in it.

use super::{FIRST_BEACON, Sender};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// Between two signs to the group while not all hear it, at most.
const BEACON: Duration = Duration::from_millis(100);
/// And while all do.
const SLOW_BEACON: Duration = Duration::from_secs(1);

impl Sender {
    /// Others use the same group: takes the next one.
    pub(super) fn regroup(&mut self, now: Instant) {
        self.room.attempt += 1;
        self.room.foreign = 0;
        self.room.regrouped = now;
        self.room.beacon = now;
        self.room.pause = FIRST_BEACON;
        let ids: Vec<_> = self.members.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(member) = self.members.get_mut(id) {
                member.report.hears = false;
            }
            self.welcome(id);
        }
    }

    /// Where a sign that there is a group goes, if one is due.
    pub(super) fn beacon_due(&mut self, now: Instant) -> Option<SocketAddrV4> {
        let group = self.group_address()?;
        if self.members.len() == 0 || now < self.room.beacon {
            return None;
        }
        let deaf: Vec<_> = self
            .members
            .iter()
            .filter(|(_, m)| !m.report.hears)
            .collect();
        let deaf: Vec<_> = deaf.into_iter().map(|(id, _)| id).collect();
        let pause = if deaf.is_empty() {
            SLOW_BEACON
        } else {
            self.room.pause
        };
        self.room.shown = now;
        self.room.beacon = now + pause;
        self.room.pause = (self.room.pause * 2).min(BEACON);
        // Perhaps they listen to the group there was before.
        if self.room.attempt > 0 {
            deaf.into_iter().for_each(|id| self.welcome(id));
        }
        Some(group)
    }
}
