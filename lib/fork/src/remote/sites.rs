//! News of where members of families are, from site to site.
//!
//! ```text
//! a VM is about to move   its host  --- Moving ---> every site of the family
//! it goes on there        that host --- At -------> every site, at once
//! each second             every site --- all it knows of members that moved ---> every site
//! ```
//!
//! A datagram for each site, sealed with the family's key, which goes along loans. One that is
//! lost is said again, and what is heard twice or late changes nothing (`forkyard_overlay`). Where
//! datagrams do not get through, hosts learn the same along loans (`span`), later.

use crate::{Host, HostError};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_overlay::{
    Event, Key, News, Part, PlaceGeneration, PlaceNews, Span, Whereabout, Whereabouts,
};
use forkyard_types::{FamilyId, Member, NewsSecret, VmId};
use forkyard_vm::{Life, Vm, lock};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tokio::{net::UdpSocket, time::sleep};

/// Port at which news are heard, on every host.
pub(crate) const PORT: u16 = 4793;
/// Times after which news are said again: few sites miss all of them, and the next are those of each second.
const AGAIN: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(60)];
/// Time after which every site has heard of a move: frames that its former host passes on are taken until then.
const SETTLED: Duration = Duration::from_secs(10);
/// Longest datagram that is read whole.
const LONGEST: usize = 2048;
/// Datagrams that are heard before the kernel is told of them.
const AT_ONCE: usize = 256;

/// Knowledge of this host of the sites of families, beyond loans.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    families: Mutex<BTreeMap<FamilyId, Known>>,
    socket: OnceLock<Arc<UdpSocket>>,
}

#[derive(Debug, Default)]
struct Known {
    key: Option<Key>,
    seen: Whereabouts,
    parts: BTreeMap<Member, Part>,
    /// Members of this host that are on their way to another.
    leaving: BTreeSet<Member>,
}

impl Sites {
    fn of<T>(&self, family: FamilyId, with: impl FnOnce(&mut Known) -> T) -> T {
        with(lock(&self.families).entry(family).or_default())
    }

    /// A family is no more here.
    pub(crate) fn forget(&self, family: FamilyId) {
        lock(&self.families).remove(&family);
    }

    /// Takes the key that the host which let this one into a family says. One that another says
    /// counts for nothing once there is one.
    pub(super) fn hear_key(&self, family: FamilyId, key: Option<&NewsSecret>, by_lender: bool) {
        let key = key.and_then(|key| BASE64_STANDARD.decode(&key.0).ok());
        let key = key.and_then(|key| <[u8; 32]>::try_from(key).ok());
        if let Some(key) = key {
            self.of(family, |known| match known.key {
                Some(_) if !by_lender => {}
                Some(_) | None => known.key = Some(Key(key)),
            });
        }
    }

    /// Key of a family; the host that it began on draws one.
    pub(super) fn key(
        &self,
        family: FamilyId,
        is_first: bool,
    ) -> Result<Option<NewsSecret>, HostError> {
        let drawn = match is_first {
            true => Some(Key(super::draw()?.0)),
            false => None,
        };
        let key = self.of(family, |known| {
            known.key = known.key.or(drawn);
            known.key
        });
        Ok(key.map(|key| NewsSecret(BASE64_STANDARD.encode(key.0))))
    }

    /// Adds what is known of members that have moved, and of moves under way.
    pub(super) fn complete(&self, family: FamilyId, span: &mut Span, ended: impl Fn(VmId) -> bool) {
        self.of(family, |known| {
            known.parts.retain(|_, part| match part {
                Part::Expecting { .. } => true,
                Part::Arrived { port, .. } | Part::Here { port } | Part::Passing { port, .. } => {
                    !ended(*port)
                }
            });
            span.seen.clone_from(&known.seen);
            span.parts.clone_from(&known.parts);
        });
    }

    fn step(&self, family: FamilyId, member: Member, event: Event) {
        self.of(family, |known| {
            let part = Part::step(known.parts.remove(&member), event);
            known.parts.extend(part.map(|part| (member, part)));
        });
    }
}

impl Host {
    /// Hears news for as long as this host lives.
    pub(super) fn watch_news(&self) {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT));
        let socket = socket.and_then(|socket| {
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket).map(Arc::new)
        });
        let socket = match socket {
            Ok(socket) => self.peers.sites.socket.get_or_init(|| socket).clone(),
            Err(error) => {
                // Another daemon's, in the same network.
                tracing::warn!(%error, port = PORT, "news of moved VMs come along loans alone: later");
                return;
            }
        };
        let host = self.handle();
        tokio::spawn(async move {
            let mut datagram = [0; LONGEST];
            loop {
                let heard = socket.recv_from(&mut datagram).await;
                let Some(host) = host.upgrade() else { return };
                let mut changed = BTreeSet::new();
                let mut heard = heard.map(|(length, _)| length);
                // Those that have come, before the kernel is told; no more at once, or whatever fills
                // the port would keep the kernel from being told.
                for _ in 0..AT_ONCE {
                    match heard {
                        Ok(length) => changed.extend(host.hear_news(&datagram[..length])),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // As of a host that did not take what was sent to it.
                        Err(error) => tracing::debug!(%error, "news not heard"),
                    }
                    heard = socket.try_recv(&mut datagram);
                }
                for family in changed {
                    host.try_to_sync_overlay(family).await;
                }
            }
        });
    }

    /// Learns of what a datagram says; the family if that is news.
    fn hear_news(&self, datagram: &[u8]) -> Option<FamilyId> {
        let family = News::family_of(datagram).ok()?;
        let mut families = lock(&self.peers.sites.families);
        let known = families.get_mut(&family)?;
        let news = match News::open(datagram, known.key.as_ref()?) {
            Ok(news) => news,
            Err(error) => {
                tracing::debug!(%family, %error, "news not believed");
                return None;
            }
        };
        let learnt = news.said.into_iter().filter(|said| known.seen.learn(*said));
        let learnt = learnt.count();
        metrics::counter!("forkyard_overlay_news_total").increment(1);
        (learnt > 0).then_some(family)
    }

    /// Says something to every site of a family, and again soon.
    fn say(&self, family: FamilyId, said: Vec<PlaceNews>) {
        let socket = self.peers.sites.socket.get().cloned();
        let key = self.peers.sites.of(family, |known| known.key);
        let (Some(socket), Some(key), Ok(Some(span))) = (socket, key, self.span_of(family)) else {
            return;
        };
        let datagrams = News { family, said }.seal(&key);
        let others = span.others();
        send(&socket, &datagrams, &others);
        tokio::spawn(async move {
            for pause in AGAIN {
                sleep(pause).await;
                send(&socket, &datagrams, &others);
            }
        });
    }

    /// Says all that is known of members that have moved to every site of their families.
    pub(super) async fn repeat_news(&self) {
        let families: Vec<_> = {
            let families = lock(&self.peers.sites.families);
            let moved = families.iter().filter(|(_, known)| !known.seen.is_empty());
            moved.map(|(family, _)| *family).collect()
        };
        for family in families {
            let claimed = self.claim(family);
            let (key, said) = self.peers.sites.of(family, |known| {
                (known.key, known.seen.all().collect::<Vec<_>>())
            });
            if let (Some(socket), Some(key), Ok(Some(span))) =
                (self.peers.sites.socket.get(), key, self.span_of(family))
            {
                send(socket, &News { family, said }.seal(&key), &span.others());
            }
            if claimed {
                self.try_to_sync_overlay(family).await;
            }
        }
    }

    /// Makes news of VMs that run here, where others were told that they are elsewhere: of a place
    /// that was given again.
    fn claim(&self, family: FamilyId) -> bool {
        let Ok(Some(place)) = self.parts.store.tunnel(family) else {
            return false;
        };
        let vms = self.parts.registry().all();
        let here = vms.iter().filter(|vm| {
            let runs = matches!(vm.life(), Life::Running(_) | Life::Paused(_));
            runs && lock(&vm.moving).is_none() && vm.record().family == family
        });
        let here: Vec<_> = here.map(|vm| vm.record().member).collect();
        self.peers.sites.of(family, |known| {
            let mut claimed = false;
            for member in here {
                let at = known.seen.get(member);
                let elsewhere = at.is_some_and(|at| at != Whereabout::At(place.own));
                if elsewhere && !known.leaving.contains(&member) {
                    known.seen.tell(member, Whereabout::At(place.own));
                    claimed = true;
                }
            }
            claimed
        })
    }

    /// Tells every site that a VM is about to move to that end of tunnels; the rank of that news.
    pub(crate) fn tell_moving(&self, vm: &Vm, from: Ipv4Addr, to: Ipv4Addr) -> PlaceGeneration {
        let record = vm.record();
        let said = self.peers.sites.of(record.family, |known| {
            known.leaving.insert(record.member);
            let moving = Whereabout::Moving { from, to };
            known.seen.tell(record.member, moving)
        });
        self.say(record.family, vec![said]);
        said.generation
    }

    /// A VM is about to stand still at another host: its port here takes frames, and what that host
    /// passes on for it. Not cancel-safe.
    pub(crate) async fn expect_frames(
        &self,
        (family, member, port): (FamilyId, Member, VmId),
        from: Ipv4Addr,
        generation: PlaceGeneration,
    ) -> Result<(), HostError> {
        let Some(place) = self.parts.store.tunnel(family)? else {
            return Ok(());
        };
        self.parts.network.park(family, port).await?;
        self.peers.sites.of(family, |known| {
            let to = place.own;
            known.seen.learn(PlaceNews {
                member,
                generation,
                at: Whereabout::Moving { from, to },
            })
        });
        self.peers
            .sites
            .step(family, member, Event::Expected { from, port });
        self.sync_overlay(family).await
    }

    /// A VM does not come after all.
    pub(crate) async fn expect_no_frames(&self, (family, member, port): (FamilyId, Member, VmId)) {
        self.peers.sites.step(family, member, Event::GivenUp);
        self.try_to_sync_overlay(family).await;
        self.parts.network.unpark(port);
    }

    /// A VM stands still here, and what comes for it is passed on. Not cancel-safe.
    pub(crate) async fn pass_on(&self, vm: &Vm, to: Ipv4Addr) -> Result<(), HostError> {
        let record = vm.record();
        let port = record.id;
        let stopped = Event::Stopped { to, port };
        self.peers.sites.step(record.family, record.member, stopped);
        self.sync_overlay(record.family).await
    }

    /// A VM goes on here after all: its frames come here again, and every site hears so.
    pub(crate) async fn pass_on_no_more(&self, vm: &Vm) {
        let record = vm.record();
        let Ok(Some(place)) = self.parts.store.tunnel(record.family) else {
            return;
        };
        let said = self.peers.sites.of(record.family, |known| {
            let was_leaving = known.leaving.remove(&record.member);
            let here = Whereabout::At(place.own);
            was_leaving.then(|| known.seen.tell(record.member, here))
        });
        if let Some(said) = said {
            self.peers
                .sites
                .step(record.family, record.member, Event::Stayed);
            self.try_to_sync_overlay(record.family).await;
            self.say(record.family, vec![said]);
        }
    }

    /// A VM has come here: opens its port, and announces it to every site. Before that its kernel,
    /// which runs already, neither hears nor is heard: it might yet have gone on where it was.
    pub(crate) async fn announce(&self, vm: &Vm) {
        let record = vm.record();
        let (family, member) = (record.family, record.member);
        if let Err(error) = self.parts.network.open_port(family, record.id).await {
            tracing::error!(vm = %record.name, error = &error as &dyn std::error::Error, "it is not on its network");
        }
        if let Ok(Some(place)) = self.parts.store.tunnel(family) {
            let here = Whereabout::At(place.own);
            let said = self
                .peers
                .sites
                .of(family, |known| known.seen.tell(member, here));
            // Before anything else is done: the others wait for it.
            self.say(family, vec![said]);
            self.peers.sites.step(family, member, Event::Announced);
        }
        self.try_to_sync_overlay(family).await;
        let host = self.handle();
        tokio::spawn(async move {
            sleep(SETTLED).await;
            if let Some(host) = host.upgrade() {
                host.peers.sites.step(family, member, Event::Settled);
                host.try_to_sync_overlay(family).await;
            }
        });
    }

    /// A VM has gone on at that end of tunnels: known here before that host's news come.
    pub(crate) fn has_left(&self, vm: &Vm, to: Ipv4Addr) {
        let record = vm.record();
        self.peers.sites.of(record.family, |known| {
            let moving = { known.seen.get(record.member) }
                .is_some_and(|at| matches!(at, Whereabout::Moving { .. }));
            if moving {
                // With the same rank as that host's.
                known.seen.tell(record.member, Whereabout::At(to));
            }
            known.leaving.remove(&record.member);
        });
        self.peers
            .sites
            .step(record.family, record.member, Event::Left);
    }
}

/// Sends what fits into the socket: the rest is as lost as any datagram.
fn send(socket: &UdpSocket, datagrams: &[Vec<u8>], to: &BTreeSet<Ipv4Addr>) {
    for datagram in datagrams {
        for site in to {
            let to = SocketAddrV4::new(*site, PORT);
            if let Err(error) = socket.try_send_to(datagram, to.into()) {
                tracing::debug!(%site, %error, "not told");
            }
        }
    }
}
