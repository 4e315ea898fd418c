//! Messages of the server, and the pages in them.

use super::{Came, Loss, Membership, News, Receiver, ReceiverEvent, Silence, State, knocking};
use crate::codec::{Encoding, Page};
use crate::meter::Way;
use crate::pages::Run;
use crate::source::PageSink;
use crate::wire::{self, Item, Items, Knock, PagePart, ServerEpoch, ToClient, Urgency};
use forkyard_types::{PAGE_SIZE, PageNo};
use std::net::SocketAddrV4;
use std::time::Instant;

impl Receiver {
    /// Takes a message; tells whether it counts.
    pub(super) fn take(
        &mut self,
        came: Came,
        message: ToClient<'_>,
        sink: &mut dyn PageSink,
        now: Instant,
    ) -> bool {
        let Came {
            epoch, seq, bytes, ..
        } = came;
        match (message, &mut self.state) {
            (
                ToClient::Challenge {
                    knock: theirs,
                    cookie: new,
                },
                State::Knocking {
                    knock,
                    cookie,
                    due,
                    sent,
                    ..
                },
            ) => {
                if *knock != theirs || *cookie == new {
                    return *knock == theirs;
                }
                *cookie = new;
                *due = now;
                let took = sent.map(|sent| now.saturating_duration_since(sent));
                took.into_iter().for_each(|took| self.asks.guess(took));
                self.heard = now;
                true
            }
            (ToClient::Welcome(welcome), State::Knocking { knock, .. })
                if welcome.knock == *knock =>
            {
                self.enter(welcome, epoch, now);
                true
            }
            (ToClient::Welcome(welcome), State::Member(member)) => {
                let again = welcome.knock == member.knock && member.epoch == epoch;
                if again && welcome.member == member.id {
                    self.heard = now;
                    let group = self.group_of(&welcome);
                    self.listen(group, now);
                }
                again
            }
            (ToClient::Stale(id, about), State::Member(member)) => {
                // One that tells us of another life of ours is an old one.
                let ours = id == member.id && about > member.entered && about <= self.seq;
                if ours {
                    let nonce = member.knock.nonce.wrapping_add(1);
                    let knock = Knock {
                        nonce,
                        ..member.knock
                    };
                    self.state = knocking(knock, now);
                }
                ours
            }
            (ToClient::Pulse(id), State::Member(member)) => {
                let ours = member.epoch == epoch && member.id == id && member.seen.0.admit(seq);
                if ours {
                    self.heard = now;
                    if member.alone.add(seq, bytes, now) {
                        self.asks.missed(now);
                    }
                }
                ours
            }
            (ToClient::Beacon, State::Member(member)) => {
                let ours = member.epoch == epoch && member.seen.1.admit(seq);
                if ours && member.hear_group(came, now) {
                    self.asks.missed(now);
                }
                ours
            }
            (ToClient::Data(to, items), State::Member(member)) => {
                let ours = member.epoch == epoch && to.is_none_or(|id| id == member.id);
                if !ours {
                    return false;
                }
                let missing = match to {
                    Some(_) if member.seen.0.admit(seq) => member.alone.add(seq, bytes, now),
                    None if member.seen.1.admit(seq) => member.hear_group(came, now),
                    Some(_) | None => return false,
                };
                member.news = member.news.max(News::Pages);
                member.silence = Silence::new(now);
                if to.is_some() {
                    self.heard = now;
                }
                self.install(items, sink, now);
                if missing {
                    self.asks.missed(now);
                }
                true
            }
            (_, State::Knocking { .. } | State::Lost(_))
            | (ToClient::Challenge { .. }, State::Member(_)) => false,
        }
    }

    fn enter(&mut self, welcome: wire::Welcome, epoch: ServerEpoch, now: Instant) {
        self.heard = now;
        if welcome.pages != self.receiving.pages {
            return self.lose(Loss::WrongSize(welcome.pages));
        }
        let group = self.group_of(&welcome);
        self.state = State::Member(Box::new(Membership {
            id: welcome.member,
            since: now,
            entered: self.seq,
            epoch,
            knock: welcome.knock,
            group: None,
            alone: Way::new(now),
            all: Way::new(now),
            seen: Default::default(),
            hears: None,
            foreign: 0,
            news: News::None,
            reported: now,
            silence: Silence::new(now),
        }));
        self.asks.start_over();
        self.listen(group, now);
    }

    fn group_of(&self, welcome: &wire::Welcome) -> Option<SocketAddrV4> {
        let group = welcome.group?;
        let address = self.receiving.key.group(group.attempt);
        Some(SocketAddrV4::new(address, group.port))
    }

    fn listen(&mut self, group: Option<SocketAddrV4>, now: Instant) {
        if let State::Member(member) = &mut self.state
            && member.group != group
        {
            member.group = group;
            member.foreign = 0;
            member.hears = None;
            // What goes there before it is heard is not lost.
            member.all = Way::new(now);
            self.events.push_back(ReceiverEvent::Listen(group));
        }
    }

    fn install(&mut self, items: Items<'_>, sink: &mut dyn PageSink, now: Instant) {
        let mut waited = false;
        for item in items.iter() {
            waited |= match item {
                Item::Zero(run) => self.zeros(run, sink, now),
                Item::Page(page, encoding, bytes) => self.page(page, encoding, bytes, sink, now),
                Item::Part(part) => self.part(&part, sink, now),
                Item::Gone(page) => {
                    if self.asks.came(page, now).is_some() && self.held.settled.insert(page) {
                        self.events.push_back(ReceiverEvent::Gone(page));
                    }
                    false
                }
            };
        }
        if waited {
            sink.flush();
        }
    }

    /// Takes a part of a page; tells whether a reader waits for the page that
    /// this made whole; the next two alike.
    fn part(&mut self, part: &PagePart<'_>, sink: &mut dyn PageSink, now: Instant) -> bool {
        if self.held.have.contains(part.page) {
            self.stats.twice += u64::from(part.index == 0);
            return false;
        }
        if part.page.0 >= self.receiving.pages.0 {
            return false;
        }
        match self.assembly.add(part) {
            Some((encoding, bytes)) => self.page(part.page, encoding, &bytes, sink, now),
            None => false,
        }
    }

    fn page(
        &mut self,
        page: PageNo,
        encoding: Encoding,
        bytes: &[u8],
        sink: &mut dyn PageSink,
        now: Instant,
    ) -> bool {
        if self.held.have.contains(page) {
            self.stats.twice += 1;
            return false;
        }
        let mut unpacked: Page = [0; PAGE_SIZE];
        let unpacks = self.unpacker.unpack(encoding, bytes, &mut unpacked);
        if unpacks.is_none() || !self.held.have.insert(page) {
            self.stats.refused += 1;
            return false;
        }
        self.held.settled.insert(page);
        self.assembly.forget(page);
        let waited = self.asks.came(page, now) == Some(Urgency::Waited);
        match waited {
            true => self.stats.waited += 1,
            false => self.stats.ahead += 1,
        }
        sink.page(page, &unpacked);
        waited
    }

    fn zeros(&mut self, run: Run, sink: &mut dyn PageSink, now: Instant) -> bool {
        let Some(run) = run.within(self.receiving.pages) else {
            return false;
        };
        let (mut new, mut waited) = (false, false);
        for page in run.iter() {
            if self.held.have.insert(page) {
                self.held.settled.insert(page);
                waited |= self.asks.came(page, now) == Some(Urgency::Waited);
                self.stats.zero += 1;
                new = true;
            }
        }
        if new {
            sink.zeros(run);
        }
        waited
    }
}
