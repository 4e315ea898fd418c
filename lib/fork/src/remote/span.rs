//! The network of a family that is on several hosts: which host gives which places,
//! and which hosts must know.
//!
//! ```text
//! lender                                    borrower
//! introduce --- Peer::families ----------->          where are you?
//!           <-- its end of tunnels --------
//!           --- Peer::families ----------->          to those that are in it already:
//!                                                    there is another
//!           --- Peer::clones, handout ---->          all that is known of the family
//!
//! once a second, the same question to each: what changed is told, what it lent on
//! is learnt, and that it has nothing of the family any more
//! ```
//!
//! A host is known to the others before a clone is made on it, so that the first
//! frame arrives; but what a borrower has lent on is known a second later to those
//! above it. Knowledge goes along loans alone: the lender asks, and no host has to
//! believe what comes unasked.

use super::{
    Far, Share,
    hand_out::PeerRequests,
    hosts::{check, compose, hosts_of, is},
    take::way_to,
};
use crate::{Host, HostError, network_of};
use forkyard_network::{NetworkError, Span, Subnet};
use forkyard_overlay::Whereabouts;
use forkyard_records::{FamilyTunnel, Loan, Teller};
use forkyard_types::{
    FamilyHost, FamilyId, FamilyNews, FamilyStanding, NewsSecret, PeerFamiliesRequest,
    PeerFamiliesResponse,
};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;

/// Time a host may take to say where it is; a slower one is told of its siblings
/// later.
const ANSWERS: Duration = Duration::from_secs(3);
/// Most families that are told of at once.
const MOST_FAMILIES: usize = Subnet::FAMILIES as usize;

impl Host {
    /// Asks the hosts that are about to get clones where they are, makes them known
    /// to the family's others, and says in each parcel what there is to know.
    /// A host that does not say where it is gets its parcel all the same.
    pub(super) async fn announce_hosts(
        &self,
        peer_requests: &mut PeerRequests,
    ) -> Result<(), HostError> {
        let families = peer_requests
            .iter()
            .map(|(_, request)| request.handout.family.id);
        for family in families.collect::<BTreeSet<_>>() {
            let shares = peer_requests.iter().map(|(share, _)| share);
            self.make_known(family, shares).await?;
        }
        for (share, request) in peer_requests {
            let family = &mut request.handout.family;
            if let Some(news) = self.news(family.id, share.peer.name())? {
                family.tunnel = Some(news.tunnel);
                family.hosts = news.hosts;
                family.key = news.key;
            }
        }
        Ok(())
    }

    /// Makes hosts of a fork known that are new to a family, while its instant is taken: over
    /// a long link that takes several round trips. What fails is tried again, and told of, by
    /// [`announce_hosts`](Self::announce_hosts).
    pub(crate) async fn announce_hosts_early(&self, family: FamilyId, far: &Far) {
        let lent = { far.shares.iter() }.try_for_each(|share| {
            let lent = self.lent_to(family, share.peer.name());
            lent.map(drop)
        });
        let known = async {
            lent?;
            match far.shares.is_empty() {
                true => Ok(()),
                false => self.make_known(family, far.shares.iter()).await,
            }
        };
        if let Err(error) = known.await {
            tracing::debug!(%family, error = &error as &dyn std::error::Error, "not introduced yet");
        }
    }

    async fn make_known(
        &self,
        family: FamilyId,
        shares: impl Iterator<Item = &Share>,
    ) -> Result<(), HostError> {
        let Some(tunnel) = self.own_tunnel(None) else {
            return Ok(());
        };
        let lender = None;
        let placed = FamilyTunnel {
            own: tunnel,
            lender,
        };
        self.parts.store.place_tunnel(family, placed)?;
        let told = self.parts.store.family_hosts(family)?;
        let is_known = |share: &&Share| {
            let peer = share.peer.name();
            told.iter().any(|(by, _)| is(by, peer))
        };
        let new: Vec<_> = shares.filter(|share| !is_known(share)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let loans = self.parts.store.loans()?;
        let of_family: Vec<_> = loans.into_iter().filter(|it| it.family == family).collect();
        let lent_to = |peer: &str| of_family.iter().find(|loan| loan.peer == peer);
        let asked = new.iter().filter_map(|share| {
            let loan = lent_to(share.peer.name())?;
            Some(self.ask(&share.peer, vec![loan.clone()]))
        });
        join_all(asked).await;
        self.sync_overlay(family).await?;
        // Before the newcomers' clones are there.
        let others = of_family.iter().filter(|loan| {
            let mut newcomers = new.iter().map(|share| share.peer.name());
            !newcomers.any(|peer| peer == loan.peer)
                && told.iter().any(|(by, _)| is(by, &loan.peer))
        });
        let told = others.filter_map(|loan| {
            let peer = self.peer(&loan.peer).ok()?;
            Some(async move { self.ask(&peer, vec![loan.clone()]).await })
        });
        join_all(told).await;
        Ok(())
    }

    /// Tells every host that has something of a family what changed, and learns what
    /// changed there. What could not be done before is tried again.
    pub(crate) async fn tell_borrowers(&self) {
        if let Err(error) = self.try_to_tell().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "families' hosts are not told of each other"
            );
        }
    }

    async fn try_to_tell(&self) -> Result<(), HostError> {
        let mut loans: BTreeMap<String, Vec<Loan>> = BTreeMap::new();
        let mut told: BTreeMap<FamilyId, BTreeSet<Teller>> = BTreeMap::new();
        for loan in self.parts.store.loans()? {
            let tellers = match told.entry(loan.family) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let hosts = self.parts.store.family_hosts(loan.family)?.into_iter();
                    entry.insert(hosts.map(|(by, _)| by).collect())
                }
            };
            let is_there = tellers.iter().any(|by| is(by, &loan.peer));
            if is_there || self.peers.remote_clones.has(loan.family, &loan.peer) {
                loans.entry(loan.peer.clone()).or_default().push(loan);
            }
        }
        let asked = loans.into_iter().map(|(name, loans)| async move {
            match self.peer(&name) {
                Ok(peer) => self.ask(&peer, loans).await,
                Err(_) if self.is_gone(&name) => {
                    for loan in loans {
                        if !self.peers.remote_clones.has(loan.family, &name) {
                            self.forget_borrower(loan.family, &name).await;
                        }
                    }
                    BTreeSet::new()
                }
                Err(_) => BTreeSet::new(),
            }
        });
        let changed = join_all(asked).await.into_iter().flatten();
        let pending_joins = self.peers.pending_joins.lock().await.clone();
        for family in changed.chain(pending_joins).collect::<BTreeSet<_>>() {
            self.try_to_sync_overlay(family).await;
            self.end_family_if_empty(family).await;
        }
        Ok(())
    }

    /// A host that was lent places of a family is no more.
    pub(super) async fn forget_borrower(&self, family: FamilyId, peer: &str) {
        match self.parts.store.forget_borrower(family, peer) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(%family, peer, "it has left");
                self.try_to_sync_overlay(family).await;
                self.end_family_if_empty(family).await;
            }
            Err(error) => {
                tracing::warn!(%family, peer, error = &error as &dyn std::error::Error, "not forgotten");
            }
        }
    }

    /// The daemon ends, and no VM is here: families that are on other hosts have no
    /// network here until they have one again.
    pub(crate) async fn leave_networks(&self) {
        let _turn = self.peers.pending_joins.lock().await;
        let families = match self.parts.store.networks() {
            Ok(families) => families,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "networks not left"
                );
                return;
            }
        };
        for (family, _) in families {
            if let Err(error) = self.parts.network.remove_family(family.id).await {
                tracing::warn!(family = %family.id, error = &error as &dyn std::error::Error, "not left");
            }
        }
    }

    /// Tells one host what is known of families that it was lent places of, and
    /// records how it stands to them. Those of which that is news.
    async fn ask(&self, peer: &Arc<dyn super::Peer>, loans: Vec<Loan>) -> BTreeSet<FamilyId> {
        let name = peer.name();
        let mut changed = BTreeSet::new();
        let mut families = Vec::new();
        let mut asked = Vec::new();
        for loan in loans {
            match self.news(loan.family, name) {
                Ok(Some(news)) => {
                    families.push(news);
                    asked.push(loan);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(family = %loan.family, error = &error as &dyn std::error::Error, "not told of");
                }
            }
        }
        if families.is_empty() {
            return changed;
        }
        let answer = timeout(ANSWERS, peer.families(PeerFamiliesRequest { families })).await;
        let standings = match answer {
            Ok(Ok(answer)) => answer.families,
            Ok(Err(error)) => {
                tracing::debug!(peer = name, %error, "it does not say where it is");
                return changed;
            }
            Err(_) => {
                tracing::debug!(peer = name, "it does not say where it is in time");
                return changed;
            }
        };
        for (loan, standing) in asked.iter().zip(standings) {
            let expected = self.peers.remote_clones.has(loan.family, name);
            let moved = self.peers.remote_clones.moved(loan.family);
            let moved = moved.into_iter().filter(|(peer, _)| peer == name);
            let moved: BTreeSet<_> = moved.map(|(_, member)| member).collect();
            let hosts = hosts_of(loan, &standing, (expected, &moved));
            let teller = Teller::Borrower(name.to_owned());
            match self
                .parts
                .store
                .put_family_hosts(loan.family, &teller, &hosts)
            {
                Ok(true) => drop(changed.insert(loan.family)),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(family = %loan.family, peer = name, error = &error as &dyn std::error::Error, "not recorded");
                }
            }
        }
        changed
    }

    /// Builds the news of a family for a host that was lent places of it; none if the
    /// family is on this host alone.
    pub(super) fn news(
        &self,
        family: FamilyId,
        peer: &str,
    ) -> Result<Option<FamilyNews>, HostError> {
        let Some(tunnel) = self.parts.store.tunnel(family)? else {
            return Ok(None);
        };
        let own = self.parts.store.own_places(family, Subnet::MEMBERS)?;
        let told = self.parts.store.family_hosts(family)?;
        let astray = self.astray(family, tunnel.own, &told);
        let told = told.into_iter().filter(|(by, _)| !is(by, peer));
        let mut hosts = compose(tunnel.own, &own, told);
        hosts.extend(astray);
        Ok(Some(FamilyNews {
            id: family,
            tunnel: tunnel.own,
            hosts,
            key: self.peers.sites.key(family, tunnel.lender.is_none())?,
        }))
    }

    /// Updates which hosts have which members of families, as the host says that lent this one places
    /// of them; returns how this one stands to them. Not cancel-safe.
    pub async fn update_families(
        &self,
        request: PeerFamiliesRequest,
    ) -> Result<PeerFamiliesResponse, HostError> {
        if request.families.len() > MOST_FAMILIES {
            return Err(HostError::Invalid(format!(
                "the request names {} families: {MOST_FAMILIES} at most",
                request.families.len()
            )));
        }
        let mut families = Vec::new();
        for news in request.families {
            check(&news.hosts)?;
            families.push(self.update_family(news).await?);
        }
        Ok(PeerFamiliesResponse { families })
    }

    async fn update_family(&self, news: FamilyNews) -> Result<FamilyStanding, HostError> {
        let place = self.parts.store.tunnel(news.id)?;
        // Another that lent it places of this family did so in vain: it gives those of
        // the first. So loans make a tree, and no two hosts wait for each other to leave.
        let is_lender = place.is_some_and(|place| place.lender == Some(news.tunnel));
        let mut lent = Vec::new();
        if is_lender {
            self.update_from(news.tunnel, news.id, &news.hosts, news.key.as_ref())?;
            self.try_to_sync_overlay(news.id).await;
            let told = self.parts.store.family_hosts(news.id)?.into_iter();
            let told = told.filter(|(by, _)| *by != Teller::Lender);
            let told: Vec<_> = told.collect();
            if let Some(place) = place {
                let astray = self.astray(news.id, place.own, &told).into_iter();
                lent.extend(astray.filter(|host| host.tunnel != place.own));
            }
            lent.extend(told.into_iter().map(|(_, host)| host));
        }
        let own = place.map(|place| place.own);
        Ok(FamilyStanding {
            tunnel: own.or_else(|| self.own_tunnel(Some(news.tunnel))),
            member: is_lender,
            lent,
        })
    }

    /// Notes what the host that let this one into a family says of its hosts. What
    /// another says is nothing to it.
    pub(super) fn update_from(
        &self,
        lender: Ipv4Addr,
        family: FamilyId,
        hosts: &[FamilyHost],
        key: Option<&NewsSecret>,
    ) -> Result<(), HostError> {
        let Some(own) = self.own_tunnel(Some(lender)) else {
            return Ok(());
        };
        let lender = Some(lender);
        let place = self
            .parts
            .store
            .place_tunnel(family, FamilyTunnel { own, lender })?;
        let is_lender = place.is_some_and(|place| place.lender == lender);
        self.peers.sites.hear_key(family, key, is_lender);
        if is_lender {
            self.parts
                .store
                .put_family_hosts(family, &Teller::Lender, hosts)?;
        }
        Ok(())
    }

    /// Joins a family's network with that on other hosts, as far as they are known;
    /// nothing where it has none here.
    pub(crate) async fn sync_overlay(&self, family: FamilyId) -> Result<(), HostError> {
        let mut pending_joins = self.peers.pending_joins.lock().await;
        let joined = self.join_hosts(family).await;
        match joined {
            Ok(()) => pending_joins.remove(&family),
            Err(_) => pending_joins.insert(family),
        };
        joined
    }

    /// Stretches a family's network where no caller waits for it: failures are
    /// retried.
    pub(crate) async fn try_to_sync_overlay(&self, family: FamilyId) {
        let before = self.peers.pending_joins.lock().await.contains(&family);
        if let Err(error) = self.sync_overlay(family).await
            // Said once.
            && !before
        {
            // Its VMs here run on, and talk to each other.
            tracing::error!(%family, error = &error as &dyn std::error::Error, "the network is not joined with other hosts");
        }
    }

    async fn join_hosts(&self, family: FamilyId) -> Result<(), HostError> {
        let (Some(span), Some(record)) = (self.span_of(family)?, self.parts.store.family(family)?)
        else {
            return Ok(());
        };
        let subnet = network_of(record.number)?;
        match self.parts.network.stretch(family, subnet, &span).await {
            // It is joined when it is made.
            Err(NetworkError::NoLink { .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    /// All that this host knows of a family's network; none if that is on this host alone.
    pub(super) fn span_of(&self, family: FamilyId) -> Result<Option<Span>, HostError> {
        let Some(place) = self.parts.store.tunnel(family)? else {
            return Ok(None);
        };
        let own = self.parts.store.own_places(family, Subnet::MEMBERS)?;
        let told = self.parts.store.family_hosts(family)?;
        let astray = self.astray(family, place.own, &told);
        let mut hosts = compose(place.own, &own, told.into_iter());
        // Later than what they were lent to, and so they count.
        hosts.extend(astray);
        let mut span = Span {
            tunnel: place.own,
            hosts,
            seen: Whereabouts::default(),
            parts: BTreeMap::new(),
        };
        let ended = |vm| self.parts.registry().get(vm).is_none();
        self.peers.sites.complete(family, &mut span, ended);
        Ok(Some(span))
    }

    /// This host's end of tunnels: the address it gives pages at, or the one that
    /// others see on the way to `toward`. None if that is none of IPv4.
    fn own_tunnel(&self, toward: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        let pages = self.peers.peering.get().and_then(|peering| peering.pages);
        let own = match (pages, toward) {
            (Some(pages), _) => pages.ip(),
            (None, Some(toward)) => way_to((toward, 9).into()).ok()?,
            (None, None) => return None,
        };
        match own {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => {
                tracing::debug!(%own, "families' networks span hosts by IPv4 alone");
                None
            }
        }
    }
}
