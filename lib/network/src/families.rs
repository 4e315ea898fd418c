//! Families as a whole: their bridges, what may leave them, which ports lead to
//! them, from their founding to their end.

use crate::{
    NetworkError, Networks, Ports, Subnet, dhcp::Service, family_rules::Family, names::Link,
    refused, resolvers, silence,
};
use forkyard_types::{FamilyId, NetworkPolicy, Route};
use nix::net::if_::if_nametoindex;
use rtnetlink::LinkBridge;
use std::{
    collections::BTreeMap,
    fs, mem,
    net::Ipv4Addr,
    sync::{MutexGuard, PoisonError},
};

/// A family whose rules are in force, and what serves it.
#[derive(Debug)]
pub(crate) struct InForce {
    rules: Family,
    ports: Ports,
    /// None where somebody else has taken DHCP for every interface.
    _dhcp: Option<Service>,
}

impl InForce {
    pub(crate) fn rules(&self) -> &Family {
        &self.rules
    }
}

impl Networks {
    /// Makes a family's bridge and puts its rules in force. The host has an
    /// address on it only if the family's packets are to go anywhere else.
    /// Without ports, nothing is published: its founder is not there.
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
    /// as far as it is there; without ports, nothing is published any more.
    pub async fn restore_family(
        &self,
        family: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Option<Ports>,
    ) -> Result<(), NetworkError> {
        match if_nametoindex(Link::Bridge(family).name().as_str()) {
            Ok(_) => self.put_in_force(family, subnet, policy, ports).await,
            Err(_) => Ok(()),
        }
    }

    /// Has ports lead to a family's founder again, which is back; makes its network
    /// anew if that has gone, as with the host's end.
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
        // What answers for it ends before its successor begins.
        drop(self.families().remove(&family));
        self.put_in_force(family, subnet, policy, Some(ports)).await
    }

    /// Gives the host its address on a bridge.
    async fn join(&self, bridge: &str, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        // Asked for another of its addresses, it must not answer here; and what
        // programs on it send from the loopback may leave here, disguised.
        set(bridge, "arp_ignore", "1")?;
        set(bridge, "route_localnet", "1")?;
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
        added.map_err(|source| refused("give an address to", bridge, source))
    }

    async fn put_in_force(
        &self,
        id: FamilyId,
        subnet: Subnet,
        policy: &NetworkPolicy,
        ports: Option<Ports>,
    ) -> Result<(), NetworkError> {
        let published = match ports {
            Some(_) => policy.publish.clone(),
            None => Vec::new(),
        };
        let family = Family {
            id,
            subnet,
            policy: policy.clone(),
            published,
            resolvers: resolvers::find(),
        };
        if policy.is_routed() {
            self.forwarding.need(id).await?;
        }
        let install = family.install();
        // Noted first: what may be in force is to be removed.
        let in_force = InForce {
            _dhcp: answer_dhcp(&family),
            rules: family,
            ports: ports.unwrap_or_default(),
        };
        self.families().insert(id, in_force);
        let installed = self.nft.run(install).await;
        if installed.is_err() {
            self.families().remove(&id);
        }
        installed
    }

    /// What a family's VMs must know of the way out, if there is one.
    pub fn route(&self, family: FamilyId) -> Option<Route> {
        self.families().get(&family)?.rules.route()
    }

    /// What a family may do, its ports as far as they are still published.
    pub fn policy(&self, family: FamilyId) -> NetworkPolicy {
        let families = self.families();
        let Some(InForce { rules, .. }) = families.get(&family) else {
            return NetworkPolicy::default();
        };
        NetworkPolicy {
            publish: rules.published.clone(),
            ..rules.policy.clone()
        }
    }

    /// Closes the ports that lead to a family's founder, which has ended.
    pub async fn unpublish(&self, family: FamilyId) -> Result<(), NetworkError> {
        let (commands, ports) = {
            let mut families = self.families();
            let Some(family) = families.get_mut(&family) else {
                return Ok(());
            };
            let commands = family.rules.unpublish();
            family.rules.published.clear();
            (commands, mem::take(&mut family.ports))
        };
        if commands.is_empty() {
            return Ok(());
        }
        let closed = self.nft.run(commands).await;
        drop(ports);
        closed
    }

    /// Whether packets are passed on by this host because a family needs it.
    pub async fn turned_forwarding_on(&self) -> Result<bool, NetworkError> {
        self.forwarding.is_ours().await
    }

    /// Whether the host knows of a resolver that guests can reach.
    pub fn has_resolvers(&self) -> bool {
        !resolvers::find().is_empty()
    }

    /// Removes a family's rules and its bridge, as far as they are there.
    pub async fn remove_family(&self, family: FamilyId) -> Result<(), NetworkError> {
        let gone = self.families().remove(&family);
        let rules = match &gone {
            Some(family) => self.nft.run(family.rules.remove()).await,
            None => Ok(()),
        };
        // What fails does not keep the rest.
        let tunnel = self.shrink(family).await;
        let bridge = self.remove_link(Link::Bridge(family)).await;
        let forwarding = self.forwarding.release(family).await;
        rules.and(tunnel).and(bridge).and(forwarding)
    }

    pub(crate) fn families(&self) -> MutexGuard<'_, BTreeMap<FamilyId, InForce>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
