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
    NetworkError, Networks,
    batch::{Request, carry_out},
    names::Link,
    refused, silence,
    tunnels::{self, Told},
};
use forkyard_overlay::{Port, Span, Subnet, Table, TableChange, TablePlan};
use forkyard_types::{Address, FamilyId, Mac, VmId};
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
use std::net::Ipv4Addr;
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

/// A family's network as the kernel knows it.
#[derive(Debug)]
pub(crate) struct Laid {
    subnet: Subnet,
    /// None if it is not known: it is laid anew.
    table: Option<Table>,
    told: Told,
}

impl Laid {
    fn new(subnet: Subnet) -> Self {
        Self {
            subnet,
            table: None,
            told: Told::default(),
        }
    }
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
        let wanted = Table::of(span);
        if wanted.is_alone() {
            return self.shrink(family).await;
        }
        let mut all = self.tunnels.lock().await;
        let laid = all.entry(family).or_insert_with(|| Laid::new(subnet));
        // Known again once all of it is done.
        let (ends, known) = match (laid.table.take(), ends(family)) {
            (Some(known), Ok(_)) if known == wanted => {
                laid.table = Some(known);
                return Ok(());
            }
            (Some(known), Ok(ends)) if known.tunnel() == wanted.tunnel() => (ends, known),
            (Some(_) | None, Ok(_) | Err(_)) => {
                laid.told.hear_none(&self.nft, subnet).await?;
                let made = self.lay(family, subnet, span.tunnel).await;
                (made?, Table::empty(span.tunnel))
            }
        };
        let TablePlan {
            unrelayed,
            heard,
            changes,
            unheard,
            narrowed,
            relayed,
        } = known.plan(&wanted);
        // Heard before they are spoken to: they may answer at once.
        let change = laid.told.change(subnet, (&[], &heard), (&unrelayed, &[]));
        change.carry_out(&self.nft).await?;
        let opened: Vec<_> = changes.iter().filter_map(opened).collect();
        point_to(family, point(ends, subnet, changes)).await?;
        opened.into_iter().for_each(|vm| self.release(vm));
        let change = laid
            .told
            .change(subnet, (&unheard, &narrowed), (&[], &relayed));
        change.carry_out(&self.nft).await?;
        laid.table = Some(wanted);
        Ok(())
    }

    /// Points all families to their places on other hosts again: a bridge that was down
    /// has forgotten its neighbours.
    pub(crate) async fn point_again(&self) -> Result<(), NetworkError> {
        let all = self.tunnels.lock().await;
        for (family, laid) in all.iter() {
            // Without its ends it is laid anew the next time.
            let (Ok(ends), Some(table)) = (ends(*family), &laid.table) else {
                continue;
            };
            let changes = Table::empty(table.tunnel()).plan(table).changes;
            point_to(*family, point(ends, laid.subnet, changes)).await?;
        }
        Ok(())
    }

    /// Has all families' hosts heard again, where the rules were put in force anew.
    pub(crate) async fn hear_again(&self) -> Result<(), NetworkError> {
        let mut all = self.tunnels.lock().await;
        tunnels::enforce(&self.nft).await?;
        for laid in all.values_mut() {
            let before = std::mem::take(&mut laid.told);
            let (heard, relayed) = before.all();
            let change = laid.told.change(laid.subnet, (&[], heard), (&[], &relayed));
            if let Err(error) = change.carry_out(&self.nft).await {
                // To be told when this is tried again.
                laid.told = before;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Parts a family's network from other hosts, if it was joined with any.
    pub(crate) async fn shrink(&self, family: FamilyId) -> Result<(), NetworkError> {
        let gone = self.tunnels.lock().await.remove(&family);
        let removed = self.remove_link(Link::Tunnel(family)).await;
        let unheard = match gone {
            Some(mut laid) => laid.told.hear_none(&self.nft, laid.subnet).await,
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
            // What still comes for a member that has moved on is sent after it.
            .hairpin(true)
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

async fn point_to(family: FamilyId, requests: Vec<Request>) -> Result<(), NetworkError> {
    if requests.is_empty() {
        return Ok(());
    }
    match spawn_blocking(move || carry_out(requests)).await {
        Ok(pointed) => pointed.map_err(|source| NetworkError::Places {
            link: Link::Tunnel(family).name(),
            source,
        }),
        Err(broke) => std::panic::resume_unwind(broke.into_panic()),
    }
}

/// Points the frames for places to where these are.
fn point(ends: Ends, subnet: Subnet, changes: Vec<TableChange>) -> Vec<Request> {
    let put = NLM_F_CREATE | NLM_F_REPLACE;
    let new = |message| (RouteNetlinkMessage::NewNeighbour(message), put);
    let mut requests = Vec::new();
    for change in changes {
        match change {
            TableChange::Send { member, to, had } => {
                let Some(address) = subnet.address(member) else {
                    continue;
                };
                // The tunnel's first: the bridge must not send it what it would drop.
                let mut onward = entry(ends.tunnel, address.mac, NeighbourFlags::Own);
                let host = NeighbourAttribute::Destination(NeighbourAddress::Inet(to));
                onward.attributes.push(host);
                requests.push(new(onward));
                if !had {
                    let mut forward = entry(ends.tunnel, address.mac, NeighbourFlags::Controller);
                    forward.header.flags |= NeighbourFlags::Sticky;
                    requests.push(new(forward));
                    requests.push(new(neighbour(ends.bridge, address)));
                }
            }
            TableChange::Port { member, port } => {
                let link = match port {
                    Port::Shut(vm) => Link::Parked(vm),
                    Port::Open(vm) => Link::Tap(vm),
                };
                // One whose VM has ended has gone, and its entry with it.
                let port = index(&link.name());
                if let (Some(address), Ok(port)) = (subnet.address(member), port) {
                    requests.push(new(entry(port, address.mac, NeighbourFlags::Controller)));
                }
            }
            TableChange::Forget { member, ported } => {
                let Some(address) = subnet.address(member) else {
                    continue;
                };
                let of = match ported {
                    true => NeighbourFlags::Own,
                    false => NeighbourFlags::Own | NeighbourFlags::Controller,
                };
                let gone = entry(ends.tunnel, address.mac, of);
                requests.push((RouteNetlinkMessage::DelNeighbour(gone), 0));
            }
        }
    }
    requests
}

/// VM whose port takes frames from now on.
fn opened(change: &TableChange) -> Option<VmId> {
    match change {
        TableChange::Port {
            port: Port::Open(vm),
            ..
        } => Some(*vm),
        TableChange::Port {
            port: Port::Shut(_),
            ..
        }
        | TableChange::Send { .. }
        | TableChange::Forget { .. } => None,
    }
}

/// A bridge's entry for a MAC at one of its ports, or the tunnel's own, or both.
fn entry(port: u32, mac: Mac, of: NeighbourFlags) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port;
    message.header.state = STATIC;
    message.header.flags = of;
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
