//! The group: what keeps its members in it.

use super::{FIRST_BEACON, Sender};
use crate::flow::Rate;
use crate::pace::Verdict;
use crate::wire::MemberId;
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

    /// Returns the destination of a sign that there is a group, if one is due.
    pub(super) fn beacon_due(&mut self, now: Instant) -> Option<SocketAddrV4> {
        let group = self.group_address()?;
        if self.members.len() == 0 || now < self.room.beacon {
            return None;
        }
        let deaf: Vec<_> = self
            .members
            .iter()
            .filter(|(_, m)| !m.report.hears && !m.pace.is_alone())
            .map(|(id, m)| (id, m.pace.has_returned()))
            .collect();
        let pause = if deaf.is_empty() {
            SLOW_BEACON
        } else {
            self.room.pause
        };
        self.room.shown = now;
        self.room.beacon = now + pause;
        self.room.pause = (self.room.pause * 2).min(BEACON);
        // Perhaps they listen to the group there was before, or to none.
        for (id, returned) in deaf {
            if returned || self.room.attempt > 0 {
                self.welcome(id);
            }
        }
        Some(group)
    }

    /// Mean of the rates at which the group reaches those whose pace counts.
    pub(super) fn group_mean(&self) -> Rate {
        let counting = self.members.in_group().filter(|(_, m)| m.pace.counts());
        let (sum, count) = counting.fold((0u64, 0), |(sum, count), (_, member)| {
            (sum.saturating_add(member.report.group.rate), count + 1)
        });
        Rate(sum.checked_div(count).unwrap_or(0))
    }

    /// A member that hears the group reports what of it came since its last report,
    /// if it heard it then: so many packets were sent, and so many lost.
    pub(super) fn came_by_group(&mut self, id: MemberId, since: Option<(u64, u64)>, now: Instant) {
        let newest = self.group.newest();
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let came = member.report.group.packets;
        let mut counts = (0, 0);
        match since {
            None => member.pace.starts(came, newest, now),
            Some(since) if member.pace.hears(since, newest, now) => {
                let others = self.members.shares_of_others(id);
                let Some(member) = self.members.get_mut(id) else {
                    return;
                };
                match member.pace.judge(came, newest, others, now) {
                    Verdict::Counts { sent, lost } => counts = (sent, lost),
                    Verdict::Excused => {}
                    Verdict::LeftOut => return self.welcome(id),
                }
            }
            Some(_) => {}
        }
        let mean = self.group_mean();
        if let Some(member) = self.members.get_mut(id)
            && member.pace.counts()
        {
            let round_trip = member.round_trip();
            self.group.report(mean, counts, round_trip, now);
        }
    }

    /// A member that is left out of the group reports.
    pub(super) fn came_alone(&mut self, id: MemberId, now: Instant) {
        let Rate(others) = self.group_mean();
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let as_fast = others > 0 && member.report.alone.rate >= others / 2;
        if member.pace.returns(as_fast || !member.lane.is_asked(), now) {
            self.room.beacon = now;
            self.room.pause = FIRST_BEACON;
            self.welcome(id);
        } else if member.report.hears && member.pace.is_to_be_told(now) {
            self.welcome(id);
        }
    }
}
