//! Families as a whole: their bridges, what may leave them, which ports lead to
//! them, from their founding to their end.

use crate::{
    NetworkError, Networks, Ports, Subnet, addresses,
    dhcp::Service,
    family_rules::Family,
    forwarder::{Forwarder, Learned},
    named,
    names::Link,
    refused, resolvers, silence, wait_for_guests,
};
use forkyard_types::{FamilyId, NetworkPolicy, OwnAddress, Publish, Route};
use nix::net::if_::if_nametoindex;
use rtnetlink::LinkBridge;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    sync::{MutexGuard, PoisonError},
};

/// A family whose rules are in force, and what serves it.
#[derive(Debug)]
pub(crate) struct InForce {
    rules: Family,
    /// Held for VMs, by their addresses.
    ports: BTreeMap<Ipv4Addr, Ports>,
    /// None where another program has taken DHCP for every interface.
    dhcp: Option<Service>,
    /// None where names are not what it may reach.
    forwarder: Option<Forwarder>,
}

impl InForce {
    pub(crate) fn rules(&self) -> &Family {
        &self.rules
    }
}

impl Networks {
    /// Makes a family's bridge and puts its rules in force. The host has an
    /// address on it only if the family's packets are to go anywhere else.
    /// Without ports, nothing is published: its founder is not there. Not cancel-safe: a bridge may be left
    /// whose rules are not in force. [`remove_family`](Self::remove_family) removes it.
    pub async fn create_family(
        &self,
        family: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Option<Ports>,
    ) -> Result<(), NetworkError> {
        let name = Link::Bridge(family).name();
        let bridge = LinkBridge::new(&name)
            .forward_delay(0)
            .mcast_snooping(false)
            // Or a guest could say, in frames that a bridge keeps to itself
            // before it asks the rules, that it is where a sibling is.
            .no_linklocal_learn(true)
            // Or it would have that of one of its ports, and another when that goes.
            .address(subnet.gateway_mac().0.to_vec())
            .build();
        let made = self.netlink.link().add(bridge).execute().await;
        made.map_err(|source| refused("create", &name, source))?;
        silence(&name);
        if policy.is_routed() {
            self.join(&name, subnet.gateway()).await?;
        }
        self.put_in_force(family, subnet, policy, ports).await
    }

    /// Puts a family's rules in force again whose bridge an earlier daemon made,
    /// as far as it is there; without ports, nothing is published any more. Not cancel-safe: some of it may
    /// be in force. Call it from a task that runs to its end.
    pub async fn restore_family(
        &self,
        family: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Option<Ports>,
    ) -> Result<(), NetworkError> {
        if if_nametoindex(Link::Bridge(family).name().as_str()).is_err() {
            return Ok(());
        }
        self.put_in_force(family, subnet, policy, ports).await?;
        // One that died may have left others.
        let own = self.own_addresses(family);
        self.hold_addresses(family, &own).await
    }

    /// Has ports lead to a family's founder again, which is back; makes its network
    /// anew if that has gone, as with the host's end. Not cancel-safe, as [`publish`](Self::publish) is not.
    pub async fn publish_again(
        &self,
        family: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Ports,
    ) -> Result<(), NetworkError> {
        if if_nametoindex(Link::Bridge(family).name().as_str()).is_err() {
            return self
                .create_family(family, subnet, policy, Some(ports))
                .await;
        }
        if policy.publish.is_empty() && self.families().contains_key(&family) {
            return Ok(());
        }
        let known = self.families().contains_key(&family);
        match known {
            true => {
                let founder = subnet.founder().ip;
                self.publish(family, founder, &policy.publish, ports).await
            }
            false => self.put_in_force(family, subnet, policy, Some(ports)).await,
        }
    }

    /// Gives the host its address on a bridge.
    async fn join(&self, bridge: &str, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        // Asked for another of its addresses, it must not answer here; and what
        // programs on it send from the loopback may leave here, disguised.
        set(bridge, "arp_ignore", "1")?;
        set(bridge, "route_localnet", "1")?;
        wait_for_guests(bridge);
        let Ok(index) = if_nametoindex(bridge) else {
            return Err(NetworkError::NoLink {
                link: bridge.to_owned(),
            });
        };
        let added = self
            .netlink
            .address()
            .add(index, gateway.into(), Subnet::PREFIX)
            .execute()
            .await;
        match added {
            Err(rtnetlink::Error::NetlinkError(said))
                if said.to_io().kind() == std::io::ErrorKind::AlreadyExists =>
            {
                Ok(())
            }
            added => added.map_err(|source| refused("give an address to", bridge, source)),
        }
    }

    async fn put_in_force(
        &self,
        id: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Option<Ports>,
    ) -> Result<(), NetworkError> {
        let mut published = BTreeMap::new();
        let mut held = BTreeMap::new();
        if let Some(ports) = ports
            && !policy.publish.is_empty()
        {
            let founder = subnet.founder().ip;
            published.insert(founder, policy.publish.clone());
            held.insert(founder, ports);
        }
        let mut family = Family {
            id,
            subnet,
            policy: policy.clone(),
            routed: policy.is_routed(),
            published,
            resolvers: resolvers::find(),
            forwarder: None,
            learned: Learned::default(),
        };
        if family.routed {
            self.forwarding.need(id).await?;
        }
        let forwarder = self.forward(&family).await.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(family = %id, error, "its VMs reach no names");
            None
        });
        family.forwarder = forwarder.as_ref().map(Forwarder::port);
        let install = family.install();
        // Noted first: what may be in force is to be removed.
        let in_force = InForce {
            dhcp: answer_dhcp(&family),
            rules: family,
            ports: held,
            forwarder,
        };
        self.families().insert(id, in_force);
        let installed = self.nft.run(install).await;
        if installed.is_err() {
            self.families().remove(&id);
        }
        installed?;
        let own = self.own_addresses(id);
        match own.is_empty() {
            true => Ok(()),
            false => self.hold_addresses(id, &own).await,
        }
    }

    /// Addresses outside that VMs of a family have.
    fn own_addresses(&self, family: FamilyId) -> BTreeSet<OwnAddress> {
        let families = self.families();
        let rules = families.get(&family).map(InForce::rules);
        rules.map_or_else(BTreeSet::new, own)
    }

    /// Has more ports of the host lead to a VM of a family. Its guest must be told of the
    /// way out if the family had none: see `route`. Not cancel-safe: the rules in force may be others than
    /// those that are known here. Call it from a task that runs to its end.
    pub async fn publish(
        &self,
        family: FamilyId,
        to: Ipv4Addr,
        more: &[Publish],
        ports: Ports,
    ) -> Result<(), NetworkError> {
        let _turn = self.altering.lock().await;
        self.alter(family, |rules| {
            rules.published.entry(to).or_default().extend(more);
            rules.routed |= !more.is_empty();
        })
        .await?;
        if let Some(family) = self.families().get_mut(&family) {
            family.ports.entry(to).or_default().add(ports);
        }
        Ok(())
    }

    /// Closes ports of the host that lead to a VM of a family, all but these. Not cancel-safe, as
    /// [`publish`](Self::publish) is not.
    pub async fn unpublish(
        &self,
        family: FamilyId,
        to: Ipv4Addr,
        kept: &[Publish],
    ) -> Result<(), NetworkError> {
        let _turn = self.altering.lock().await;
        if !self
            .published(family, to)
            .iter()
            .any(|it| !kept.contains(it))
        {
            return Ok(());
        }
        self.alter(family, |rules| {
            if let Some(ports) = rules.published.get_mut(&to) {
                ports.retain(|port| kept.contains(port));
            }
            rules.published.retain(|_, ports| !ports.is_empty());
        })
        .await?;
        if let Some(family) = self.families().get_mut(&family) {
            if let Some(ports) = family.ports.get_mut(&to) {
                ports.keep(kept);
            }
            let published = &family.rules.published;
            family.ports.retain(|to, _| published.contains_key(to));
        }
        Ok(())
    }

    /// Times since each VM's address was last sent something by a connection to a published port, for a minute
    /// after that. Runs nft. Cancel-safe.
    pub async fn led(&self) -> Result<BTreeMap<Ipv4Addr, std::time::Duration>, NetworkError> {
        crate::routes::led().await
    }

    /// Ports of the host that lead to a VM of a family.
    pub fn published(&self, family: FamilyId, to: Ipv4Addr) -> Vec<Publish> {
        let families = self.families();
        let ports = families
            .get(&family)
            .and_then(|it| it.rules.published.get(&to));
        ports.cloned().unwrap_or_default()
    }

    /// Gives a family another way out, with these destinations. Connections whose destination may be reached
    /// no more end. Its guests must be told of the way out if the family had none, or no resolvers: see
    /// `route`. Not cancel-safe, as [`publish`](Self::publish) is not.
    pub async fn set_way(
        &self,
        family: FamilyId,
        policy: &NetworkPolicy,
    ) -> Result<(), NetworkError> {
        let _turn = self.altering.lock().await;
        self.alter(family, |rules| {
            rules.routed |= policy.is_routed();
            rules.policy.clone_from(policy);
        })
        .await
    }

    /// Changes a family's rules at one stroke: packets see the former or the new ones. If that
    /// fails the former hold. The caller has the turn to alter.
    async fn alter(
        &self,
        id: FamilyId,
        change: impl FnOnce(&mut Family),
    ) -> Result<(), NetworkError> {
        let Some(former) = self.families().get(&id).map(|it| it.rules.clone()) else {
            return Ok(());
        };
        let mut family = former.clone();
        change(&mut family);
        let bridge = Link::Bridge(id).name();
        if family.routed && !former.routed {
            self.forwarding.need(id).await?;
            self.join(&bridge, family.subnet.gateway()).await?;
        }
        // What names stood for is asked anew if others may be reached.
        let renamed = family.names() != former.names();
        let forwarder = match renamed {
            true => {
                family.learned = former.learned.kept(&family.names());
                let forwarder = self.forward(&family).await?;
                family.forwarder = forwarder.as_ref().map(Forwarder::port);
                forwarder
            }
            false => None,
        };
        let commands = family.replace(&former);
        let told = family.route() != former.route();
        self.note_rules(id, family.clone());
        let changed = self.change_over(&family, &former, commands).await;
        if changed.is_ok()
            && renamed
            && let Some(it) = self.families().get_mut(&id)
        {
            it.forwarder = forwarder;
        }
        if changed.is_err() {
            self.note_rules(id, former);
        } else if told && let Some(it) = self.families().get_mut(&id) {
            // One ends before its successor begins.
            it.dhcp = None;
            it.dhcp = answer_dhcp(&family);
        }
        changed
    }

    /// Puts changed rules in force. The host has an address of a VM's own only while the rules lead it on.
    async fn change_over(
        &self,
        family: &Family,
        former: &Family,
        commands: Vec<Value>,
    ) -> Result<(), NetworkError> {
        let (now, before) = (own(family), own(former));
        if now == before {
            return self.nft.run(commands).await;
        }
        let kept = now.intersection(&before).copied().collect();
        self.hold_addresses(family.id, &kept).await?;
        self.nft.run(commands).await?;
        let held = self.hold_addresses(family.id, &now).await;
        if held.is_err()
            && let Err(error) = self.nft.run(former.replace(family)).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::error!(family = %family.id, error, "its former rules are not back");
        }
        held
    }

    /// Has the guests of a family that may reach names be answered.
    async fn forward(&self, family: &Family) -> Result<Option<Forwarder>, NetworkError> {
        let names = family.names();
        if names.is_empty() {
            return Ok(None);
        }
        let forwarder = Forwarder::start(
            family.subnet.gateway(),
            family.id.to_string(),
            names,
            resolvers::asked(),
            family.learned.clone(),
            (self.nft.clone(), named::open),
        );
        Ok(Some(forwarder.await?))
    }

    fn note_rules(&self, id: FamilyId, rules: Family) {
        if let Some(it) = self.families().get_mut(&id) {
            it.rules = rules;
        }
    }

    /// Returns the route that a family's VMs must know to the outside, if there
    /// is one.
    pub fn route(&self, family: FamilyId) -> Option<Route> {
        self.families().get(&family)?.rules.route()
    }

    /// Policy of a family, with its founder's ports as far as they are published.
    pub fn policy(&self, family: FamilyId) -> NetworkPolicy {
        let families = self.families();
        let Some(InForce { rules, .. }) = families.get(&family) else {
            return NetworkPolicy::default();
        };
        NetworkPolicy {
            publish: rules
                .published
                .get(&rules.subnet.founder().ip)
                .cloned()
                .unwrap_or_default(),
            ..rules.policy.clone()
        }
    }

    /// Tells whether packets are forwarded by this host because a family needs
    /// it. Cancel-safe.
    pub async fn turned_forwarding_on(&self) -> Result<bool, NetworkError> {
        self.forwarding.is_ours().await
    }

    /// Tells whether the host knows of a resolver that guests can reach.
    pub fn has_resolvers(&self) -> bool {
        !resolvers::find().is_empty()
    }

    /// Removes a family's rules and its bridge, as far as they are there. Not cancel-safe: rules may stay
    /// that a second call does not know of. Call it from a task that runs to its end.
    pub async fn remove_family(&self, family: FamilyId) -> Result<(), NetworkError> {
        let addresses = match self.own_addresses(family).is_empty() {
            true => Ok(()),
            // What no rule leads on is not for the host.
            false => self.hold_addresses(family, &BTreeSet::new()).await,
        };
        let gone = self.families().remove(&family);
        let rules = match &gone {
            Some(family) => self.nft.run(family.rules.remove()).await,
            None => Ok(()),
        };
        // What fails does not keep the rest.
        let tunnel = self.shrink(family).await;
        let bridge = self.remove_link(Link::Bridge(family)).await;
        let forwarding = self.forwarding.release(family).await;
        addresses.and(rules).and(tunnel).and(bridge).and(forwarding)
    }

    pub(crate) fn families(&self) -> MutexGuard<'_, BTreeMap<FamilyId, InForce>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Addresses outside that VMs of a family have.
fn own(family: &Family) -> BTreeSet<OwnAddress> {
    addresses::among(family.published.values().flatten())
}

/// Guests with the agent do without.
fn answer_dhcp(family: &Family) -> Option<Service> {
    let bridge = Link::Bridge(family.id).name();
    match Service::start(&bridge, family.subnet, family.route()) {
        Ok(service) => Some(service),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "guests without the agent will not learn their addresses"
            );
            None
        }
    }
}

/// Changes how the host speaks IPv4 on an interface.
fn set(link: &str, setting: &str, value: &str) -> Result<(), NetworkError> {
    let path = format!("/proc/sys/net/ipv4/conf/{link}/{setting}");
    fs::write(&path, value).map_err(|source| NetworkError::Setting { path, source })
}
