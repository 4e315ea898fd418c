//! Messages of a member: its reception, and its wishes.

use super::{Answers, FOREIGN, MOST_ASKED, REGROUP, SHOWN, Sender, TOLD};
use crate::flow::Rate;
use crate::lane::Taken;
use crate::lockstep::Asking;
use crate::members::Member;
use crate::pages::Run;
use crate::stats::CountedLink;
use crate::wire::{self, MemberId, PageRequest, Report, Request, Seq, ToClient, Urgency};
use forkyard_types::PageCount;
use std::time::{Duration, Instant};

impl Sender {
    pub(super) fn request(&mut self, request: &Request, seq: Seq, now: Instant) {
        self.report(request.member, request.report, seq, now);
        let (mut alone_shows, mut group_shows) = (request.asks.is_empty(), false);
        let mut left = MOST_ASKED;
        for ask in &request.asks {
            let Some(run) = ask.run.within(self.serving.pages) else {
                self.tally.refuse();
                continue;
            };
            match ask.urgency {
                Urgency::Withdrawn => {
                    if let Some(member) = self.members.get_mut(request.member) {
                        member.lane.withdraw(run);
                    }
                }
                Urgency::Waited | Urgency::Ahead => {
                    let pages = PageCount(run.pages.0.min(left));
                    left -= pages.0;
                    self.room.asked = now;
                    let ask = PageRequest {
                        run: Run { pages, ..run },
                        ..*ask
                    };
                    let (alone, group) = self.ask(request.member, ask, now);
                    alone_shows |= alone;
                    group_shows |= group;
                }
            }
        }
        self.show(request.member, alone_shows, now);
        if group_shows {
            self.room.beacon = self.room.beacon.min(self.room.shown + SHOWN);
        }
    }

    /// Shows a member which packets it has missed, if there is `need`; and in any case,
    /// once in a while, that it is heard: the answers may go to the group.
    fn show(&mut self, id: MemberId, need: bool, now: Instant) {
        if let Some(member) = self.members.get_mut(id)
            && (need || now >= member.told + TOLD)
        {
            member.told = now;
            let to = member.address;
            self.say(to, ToClient::Pulse(id));
        }
    }

    /// Takes an ask; tells whether something has to show the member by either way, its
    /// own and the group's, the packets it has missed: it asks again for pages that are
    /// on their way, or were lost with nothing after them that would show it.
    fn ask(&mut self, id: MemberId, ask: PageRequest, now: Instant) -> (bool, bool) {
        let together = self.is_together();
        let answers = self.answers(now);
        let group_mean = self.group_mean();
        let Some(member) = self.members.get_mut(id) else {
            return (false, false);
        };
        let (in_group, counts) = (together && member.is_in_group(), member.pace.counts());
        let Member {
            report,
            lane: alone,
            address,
            ..
        } = member;
        let link = CountedLink::Host(address.ip());
        if in_group {
            self.group.pusher.asked(ask.run);
        } else {
            alone.pusher.asked(ask.run);
        }
        let (mut alone_shows, mut group_shows) = (false, false);
        for page in ask.run.iter() {
            let asked = self.tally.on(link);
            asked.asked += 1;
            let hears = in_group && !self.disjoint.contains(page);
            let to_all = hears
                && match answers {
                    // What it alone has lost is not sent to all again.
                    Answers::All if counts => true,
                    Answers::All | Answers::AllOnce => !self.group.pusher.was_sent(page),
                    Answers::One => false,
                };
            let asking = |seen| Asking {
                seen,
                parts: ask.parts,
                again: ask.before > 0,
                round_trip: Duration::from_micros(u64::from(report.round_trip)),
            };
            if hears
                && !to_all
                && self
                    .group
                    .is_coming(page, asking(report.group.highest), now)
            {
                asked.lockstep += 1;
                group_shows = true;
                continue;
            }
            let (lane, seen, mean) = match to_all {
                true => (&mut self.group, report.group.highest, group_mean),
                false => (&mut *alone, report.alone.highest, Rate(report.alone.rate)),
            };
            match lane.ask(page, ask.urgency, asking(seen), now) {
                Taken::Queued | Taken::Full => {}
                Taken::Lockstep => {
                    asked.lockstep += 1;
                    *(if to_all {
                        &mut group_shows
                    } else {
                        &mut alone_shows
                    }) = true;
                }
                Taken::Lost => lane.lost(mean, now),
            }
        }
        let again = ask.before > 0;
        (again && alone_shows, again && group_shows)
    }

    fn report(&mut self, id: MemberId, report: Report, seq: Seq, now: Instant) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        if seq < member.reported {
            return;
        }
        let before = std::mem::replace(&mut member.report, report);
        member.reported = seq;
        let alone = report.alone;
        let counts = since(before.alone, alone);
        let round_trip = member.round_trip();
        member
            .lane
            .report(Rate(alone.rate), counts, round_trip, now);
        if member.pace.is_alone() {
            self.came_alone(id, now);
        } else if report.hears {
            // What went to the group before it heard it was not lost.
            let since = before.hears.then(|| since(before.group, report.group));
            self.came_by_group(id, since, now);
        }
        let foreign = report.foreign.saturating_sub(before.foreign);
        self.room.foreign = self.room.foreign.saturating_add(foreign);
        let may = now.saturating_duration_since(self.room.regrouped) >= REGROUP;
        if self.room.foreign >= FOREIGN && may && self.room.attempt < 254 {
            self.regroup(now);
        }
    }
}

/// Packets sent and lost between two reports of one way.
fn since(before: wire::Reception, after: wire::Reception) -> (u64, u64) {
    let sent = after.highest.0.saturating_sub(before.highest.0);
    let came = after.packets.saturating_sub(before.packets);
    (sent, sent.saturating_sub(came))
}
