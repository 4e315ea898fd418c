//! Families that are on several hosts: a VXLAN device on the family's bridge, and
//! an entry for each place that is elsewhere.
//!
//! ```text
//! neighbour of the bridge   address -> MAC    ARP for it is answered here, at once
//! entry of the bridge       MAC -> tunnel     the frame goes there and nowhere else
//! entry of the tunnel       MAC -> host       and on to that host
//! ```
//!
//! All of it follows from the loans of places: it is there before a clone is,
//! nothing is learnt, and nothing is flooded. A broadcast frame stays on its host.
//!
//! A packet that is too large for the way is answered with what fits, as a router
//! would (the device does that); one that may be cut into pieces is, beneath.

use crate::{
    NetworkError, Networks, Span, Subnet,
    batch::{Request, carry_out},
    names::Link,
    refused, silence,
    span::{Holding, Laid, beyond},
    tunnels,
};
use forkyard_types::{Address, FamilyId, Mac, Member};
use nix::net::if_::if_nametoindex;
use rtnetlink::{
    LinkBridgePort, LinkUnspec, LinkVxlan,
    packet_core::{NLM_F_CREATE, NLM_F_REPLACE},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
    },
};
use std::{collections::BTreeSet, net::Ipv4Addr};
use tokio::task::spawn_blocking;

/// NUD_REACHABLE and NUD_NOARP: what the bridge calls static, and the tunnel takes
/// as something that does not age.
const STATIC: NeighbourState = NeighbourState::Other(0x42);

/// Interfaces that one family's entries are of.
#[derive(Clone, Copy, Debug)]
struct Ends {
    bridge: u32,
    tunnel: u32,
}

impl Networks {
    /// Joins a family's network with that of the same family on other hosts, or
    /// heeds what has changed of these; parts it from them if there is none any more.
    /// After an error the next call begins anew.
    /// Not cancel-safe.
    pub async fn stretch(
        &self,
        family: FamilyId,
        subnet: Subnet,
        span: &Span,
    ) -> Result<(), NetworkError> {
        let wanted = Laid {
            subnet,
            tunnel: span.tunnel,
            holdings: span.holdings(),
        };
        if wanted.holdings.is_empty() {
            return self.shrink(family).await;
        }
        let mut all = self.tunnels.lock().await;
        let known = all.remove(&family);
        let (ends, known) = match (known, ends(family)) {
            (Some(known), Ok(_)) if known == wanted => {
                all.insert(family, wanted);
                return Ok(());
            }
            (Some(known), Ok(ends)) if known.tunnel == wanted.tunnel => (ends, known.holdings),
            (known, _) => {
                let known = known.map(|it| it.holdings).unwrap_or_default();
                tunnels::change(&self.nft, subnet, &known, &[]).await?;
                (self.lay(family, subnet, span.tunnel).await?, Vec::new())
            }
        };
        // Heard before they are spoken to: they may answer at once.
        let heard = tunnels::change(&self.nft, subnet, &known, &wanted.holdings).await;
        if heard.is_err() {
            tunnels::change(&self.nft, subnet, &known, &[]).await?;
        }
        heard?;
        let requests = point(ends, subnet, &known, &wanted.holdings);
        let pointed = match spawn_blocking(move || carry_out(requests)).await {
            Ok(pointed) => pointed,
            Err(broke) => std::panic::resume_unwind(broke.into_panic()),
        };
        if let Err(source) = pointed {
            tunnels::change(&self.nft, subnet, &wanted.holdings, &[]).await?;
            let link = Link::Tunnel(family).name();
            return Err(NetworkError::Places { link, source });
        }
        all.insert(family, wanted);
        Ok(())
    }

    /// Points all families to their places on other hosts again: a bridge that was down
    /// has forgotten its neighbours.
    pub(crate) async fn point_again(&self) -> Result<(), NetworkError> {
        let all = self.tunnels.lock().await;
        for (family, laid) in all.iter() {
            // Without its ends it is laid anew the next time.
            let Ok(ends) = ends(*family) else { continue };
            let requests = point(ends, laid.subnet, &[], &laid.holdings);
            let pointed = match spawn_blocking(move || carry_out(requests)).await {
                Ok(pointed) => pointed,
                Err(broke) => std::panic::resume_unwind(broke.into_panic()),
            };
            let link = Link::Tunnel(*family).name();
            pointed.map_err(|source| NetworkError::Places { link, source })?;
        }
        Ok(())
    }

    /// Parts a family's network from other hosts, if it was joined with any.
    pub(crate) async fn shrink(&self, family: FamilyId) -> Result<(), NetworkError> {
        let gone = self.tunnels.lock().await.remove(&family);
        let removed = self.remove_link(Link::Tunnel(family)).await;
        let unheard = match gone {
            Some(laid) => tunnels::change(&self.nft, laid.subnet, &laid.holdings, &[]).await,
            None => Ok(()),
        };
        removed.and(unheard)
    }

    /// Makes the tunnel anew, on the family's bridge.
    async fn lay(
        &self,
        family: FamilyId,
        subnet: Subnet,
        local: Ipv4Addr,
    ) -> Result<Ends, NetworkError> {
        let (bridge, name) = (
            index(&Link::Bridge(family).name())?,
            Link::Tunnel(family).name(),
        );
        // An earlier daemon's has all of that.
        self.remove_link(Link::Tunnel(family)).await?;
        let tunnel = LinkVxlan::new(&name, tunnels::number(subnet))
            .local(local)
            .port(tunnels::PORT)
            .learning(false)
            .build();
        let made = self.netlink.link().add(tunnel).execute().await;
        made.map_err(|source| refused("create", &name, source))?;
        silence(&name);
        let ends = Ends {
            bridge,
            tunnel: index(&name)?,
        };
        let links = self.netlink.link();
        let plug = LinkUnspec::new_with_index(ends.tunnel).controller(bridge);
        let plugged = links.set(plug.build()).execute().await;
        plugged.map_err(|source| refused("plug in", &name, source))?;
        let port = LinkBridgePort::new(ends.tunnel)
            .learning(false)
            .flood(false)
            .bcast_flood(false)
            .mcast_flood(false)
            .neigh_suppress(true);
        let set = links.change(port.build()).execute().await;
        set.map_err(|source| refused("set up", &name, source))?;
        let up = LinkUnspec::new_with_index(ends.tunnel).up().build();
        let opened = links.set(up).execute().await;
        opened.map_err(|source| refused("open", &name, source))?;
        Ok(ends)
    }
}

/// Points the frames for places to where these are.
fn point(ends: Ends, subnet: Subnet, known: &[Holding], wanted: &[Holding]) -> Vec<Request> {
    let put = NLM_F_CREATE | NLM_F_REPLACE;
    let mut requests = Vec::new();
    for (place, host) in beyond(wanted, known) {
        let Some(address) = subnet.address(Member(place)) else {
            continue;
        };
        let mut forward = entry(ends.tunnel, address.mac);
        forward.header.state = STATIC;
        forward.header.flags |= NeighbourFlags::Sticky;
        let host = NeighbourAttribute::Destination(NeighbourAddress::Inet(host));
        forward.attributes.push(host);
        requests.push((RouteNetlinkMessage::NewNeighbour(forward), put));
        let answer = RouteNetlinkMessage::NewNeighbour(neighbour(ends.bridge, address));
        requests.push((answer, put));
    }
    let elsewhere: BTreeSet<_> = beyond(wanted, &[]).map(|(place, _)| place).collect();
    let gone = beyond(known, wanted).filter(|(place, _)| !elsewhere.contains(place));
    let gone = gone.filter_map(|(place, _)| subnet.address(Member(place)));
    requests.extend(gone.map(|address| {
        let gone = entry(ends.tunnel, address.mac);
        (RouteNetlinkMessage::DelNeighbour(gone), 0)
    }));
    requests
}

/// A bridge's and its tunnel's entry for a MAC.
fn entry(tunnel: u32, mac: Mac) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = tunnel;
    message.header.flags = NeighbourFlags::Own | NeighbourFlags::Controller;
    let mac = NeighbourAttribute::LinkLayerAddress(mac.0.to_vec());
    message.attributes.push(mac);
    message
}

/// Builds the message that tells a bridge the MAC of an address. It stays when the place does not, and
/// goes with the bridge: an address has one MAC, wherever it is.
fn neighbour(bridge: u32, address: Address) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = bridge;
    message.header.state = NeighbourState::Permanent;
    let ip = NeighbourAttribute::Destination(NeighbourAddress::Inet(address.ip));
    let mac = NeighbourAttribute::LinkLayerAddress(address.mac.0.to_vec());
    message.attributes.extend([ip, mac]);
    message
}

fn ends(family: FamilyId) -> Result<Ends, NetworkError> {
    Ok(Ends {
        bridge: index(&Link::Bridge(family).name())?,
        tunnel: index(&Link::Tunnel(family).name())?,
    })
}

fn index(link: &str) -> Result<u32, NetworkError> {
    if_nametoindex(link).map_err(|_| NetworkError::NoLink {
        link: link.to_owned(),
    })
}
