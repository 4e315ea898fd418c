//! Routes that were added to the interface, which go with its address.
//!
//! They are noted before and made again after, where they still lead anywhere:
//! not by way of the clone itself, and without a source address that is no
//! longer its own. IPv4 alone: the family's network is.

use crate::agent::netlink::Kernel;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol,
        RouteScope, RouteType,
    },
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use std::{io, net::Ipv4Addr};

/// Routes through the interface of this index that are not the kernel's own.
pub fn note(index: u32) -> io::Result<Vec<RouteMessage>> {
    let mut all = RouteMessage::default();
    all.header.address_family = AddressFamily::Inet;
    let routes: Vec<RouteNetlinkMessage> =
        Kernel::connect(NETLINK_ROUTE)?.ask(RouteNetlinkMessage::GetRoute(all), NLM_F_DUMP)?;
    let mut routes: Vec<_> = routes
        .into_iter()
        .filter_map(|message| {
            let RouteNetlinkMessage::NewRoute(route) = message else {
                return None;
            };
            is_added(&route, index).then_some(route)
        })
        .collect();
    // A gateway must be reachable before there is a way through it.
    routes.sort_by_key(|route| route.header.scope != RouteScope::Link);
    Ok(routes)
}

fn is_added(route: &RouteMessage, index: u32) -> bool {
    route.header.table == RouteHeader::RT_TABLE_MAIN
        && route.header.kind == RouteType::Unicast
        && route.header.protocol != RouteProtocol::Kernel
        && route.attributes.contains(&RouteAttribute::Oif(index))
}

/// Makes them again, for a VM of this address. One that exists is left alone.
pub fn restore(routes: Vec<RouteMessage>, own: Ipv4Addr) -> io::Result<()> {
    let wanted: Vec<_> = routes
        .into_iter()
        .filter_map(|route| adapted(route, own))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let kernel = Kernel::connect(NETLINK_ROUTE)?;
    for route in wanted {
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        let made =
            kernel.ask::<_, RouteNetlinkMessage>(RouteNetlinkMessage::NewRoute(route), flags);
        match made {
            Err(error) if error.raw_os_error() != Some(Errno::EEXIST as i32) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// The route as a VM of this address can have it; none if it leads to itself.
fn adapted(mut route: RouteMessage, own: Ipv4Addr) -> Option<RouteMessage> {
    let own = RouteAddress::Inet(own);
    if route
        .attributes
        .contains(&RouteAttribute::Gateway(own.clone()))
    {
        return None;
    }
    // What the kernel says of a route's state is not to be said to it.
    route.header.flags = RouteFlags::empty();
    route.attributes.retain(|attribute| {
        if let RouteAttribute::PrefSource(source) = attribute {
            *source == own
        } else {
            !matches!(attribute, RouteAttribute::CacheInfo(_))
        }
    });
    Some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 3);
    const PARENT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);

    fn route(attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.attributes = attributes;
        route
    }

    fn through(gateway: Ipv4Addr) -> RouteAttribute {
        RouteAttribute::Gateway(RouteAddress::Inet(gateway))
    }

    fn from(source: Ipv4Addr) -> RouteAttribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(source))
    }

    #[test]
    fn a_route_through_the_clone_itself_is_not_made_again() {
        assert_eq!(adapted(route(vec![through(OWN)]), OWN), None);
        let kept = adapted(route(vec![through(PARENT)]), OWN);
        assert_eq!(kept, Some(route(vec![through(PARENT)])));
    }

    #[test]
    fn a_source_address_of_the_parents_is_dropped_from_a_route() {
        let kept = adapted(route(vec![through(PARENT), from(PARENT), from(OWN)]), OWN);
        assert_eq!(kept, Some(route(vec![through(PARENT), from(OWN)])));
    }
}
