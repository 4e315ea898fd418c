//! Addresses of VMs' own outside the host: which of them may be had, and the host's part in them.
//!
//! ```text
//! packets for it   get to the host by a route outside, or because the host answers ARP: the address is
//!                  one of the family's bridge, /32, and goes with it
//! rules            lead them to the VM; what no rule leads is dropped (`own`), not answered by the host
//! neighbours       are told of the address in a network of the host's once it is here
//! ```
//!
//! The guest has its family's address alone, so that it keeps it in each of its forks, wakes and moves.

use crate::{NetworkError, Networks, Subnet, families::InForce, names::Link, refused, resolvers};
use forkyard_types::{FamilyId, OwnAddress, Publish, Reach};
use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Time for which the neighbours may answer.
const ASK: Duration = Duration::from_millis(500);
/// Time between two announcements (RFC 5227, ANNOUNCE_INTERVAL).
const ANNOUNCED_AGAIN: Duration = Duration::from_secs(2);
/// Length of the prefix that such an address has on the host.
const ALONE: u8 = 32;

/// Reason why a VM cannot have an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A VM of this host has it.
    #[error("another VM has it")]
    Taken,
    /// The host itself has it.
    #[error("the host itself has it, on {link}")]
    OfHost {
        /// The interface.
        link: String,
    },
    /// Another machine has it.
    #[error("a neighbour at {link} answers for it")]
    OfNeighbour {
        /// The interface.
        link: String,
    },
    /// Address of the range in which families' networks are.
    #[error("10.128.0.0/9 is the range of families' networks")]
    OfGuests,
    /// No network that the host is part of contains it.
    #[error("it lies in no network that an interface of the host is in")]
    NoUplink,
    /// Address of a network that the host is in, of which the host would take packets without telling.
    #[error("it lies in the network of {link}: `bridge` is for that")]
    InNetwork {
        /// The interface.
        link: String,
    },
    /// Address that names are asked at.
    #[error("it is that of a resolver of the host's")]
    OfResolver,
    /// Address of another host of the cluster, or of a peer.
    #[error("another host that this one works with has it")]
    OfPeer,
    /// Address that stands for a network or for all of its members.
    #[error("it stands for the network of {link} or for all of its members")]
    OfNetwork {
        /// The interface.
        link: String,
    },
    /// The host would not answer those that ask for it.
    #[error(
        "net.ipv4.conf.{link}.arp_ignore lets the host answer ARP for addresses of {link} alone"
    )]
    Silent {
        /// The interface.
        link: String,
    },
}

/// Those that VMs of this host have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(Arc<Mutex<BTreeSet<Ipv4Addr>>>);

/// One that is taken. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct Lease {
    all: Addresses,
    ip: Ipv4Addr,
}

impl Addresses {
    /// Takes it, if a VM may have it.
    pub(crate) fn take(&self, wanted: OwnAddress) -> Result<Lease, NetworkError> {
        let unfit = |source| NetworkError::Address {
            address: wanted,
            source,
        };
        let on = interfaces()?;
        if let Some(uplink) = fit(wanted, &on).map_err(unfit)? {
            answers(uplink).map_err(unfit)?;
        }
        match self.all().insert(wanted.ip()) {
            true => Ok(Lease {
                all: self.clone(),
                ip: wanted.ip(),
            }),
            false => Err(unfit(Unfit::Taken)),
        }
    }

    /// True if a VM has it.
    pub(crate) fn has(&self, ip: Ipv4Addr) -> bool {
        self.all().contains(&ip)
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<Ipv4Addr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.all.all().remove(&self.ip);
    }
}

/// An IPv4 address of one of the host's interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    ip: Ipv4Addr,
    prefix: u8,
}

impl Interface {
    fn mask(&self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix))
            .unwrap_or(0)
    }

    fn contains(&self, ip: Ipv4Addr) -> bool {
        (u32::from(ip) ^ u32::from(self.ip)) & self.mask() == 0
    }

    /// True for the first and the last address of its network, as far as they are no machine's.
    fn reserves(&self, ip: Ipv4Addr) -> bool {
        let host = u32::from(ip) & !self.mask();
        self.prefix < 31 && (host == 0 || host == !self.mask())
    }

    fn is_ours(&self) -> bool {
        Link::parse(&self.name).is_some()
    }
}

/// Tells whether a VM may have an address, on a host with these; and of one in a network of the host's, by
/// which interface that is.
fn fit(wanted: OwnAddress, on: &[Interface]) -> Result<Option<&Interface>, Unfit> {
    let ip = wanted.ip();
    if Subnet::is_guests(ip) {
        return Err(Unfit::OfGuests);
    }
    let mut others = on.iter().filter(|it| !it.is_ours());
    if let Some(own) = others.clone().find(|it| it.ip == ip) {
        let link = own.name.clone();
        return Err(Unfit::OfHost { link });
    }
    match wanted.reach() {
        Reach::Routed => Ok(None),
        Reach::Bridge => {
            let uplink = others.find(|it| it.prefix < ALONE && it.contains(ip));
            let uplink = uplink.ok_or(Unfit::NoUplink)?;
            if uplink.reserves(ip) {
                let link = uplink.name.clone();
                return Err(Unfit::OfNetwork { link });
            }
            Ok(Some(uplink))
        }
    }
}

/// Refuses an interface on which the host answers for that interface's own addresses alone.
fn answers(uplink: &Interface) -> Result<(), Unfit> {
    // The larger of both is in force.
    let ignores = ["all", &uplink.name].map(|of| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/arp_ignore");
        fs::read_to_string(path).is_ok_and(|it| it.trim() != "0")
    });
    match ignores.contains(&true) {
        true => Err(Unfit::Silent {
            link: uplink.name.clone(),
        }),
        false => Ok(()),
    }
}

/// IPv4 addresses of the host.
fn interfaces() -> Result<Vec<Interface>, NetworkError> {
    let all = getifaddrs().map_err(|errno| NetworkError::Netlink {
        source: errno.into(),
    })?;
    let of = |it: nix::ifaddrs::InterfaceAddress| {
        let mask = u32::from(it.netmask?.as_sockaddr_in()?.ip());
        Some(Interface {
            ip: it.address?.as_sockaddr_in()?.ip(),
            prefix: u8::try_from(mask.count_ones()).ok()?,
            name: it.interface_name,
        })
    };
    Ok(all.filter_map(of).collect())
}

/// Addresses that are on our bridges.
pub(crate) fn on_bridges() -> Result<BTreeSet<Ipv4Addr>, NetworkError> {
    let mut own = interfaces()?;
    own.retain(|it| it.prefix == ALONE && it.is_ours());
    Ok(own.into_iter().map(|it| it.ip).collect())
}

/// Addresses among leads.
pub(crate) fn among<'a>(leads: impl IntoIterator<Item = &'a Publish>) -> BTreeSet<OwnAddress> {
    leads
        .into_iter()
        .filter_map(|it| it.own_address())
        .collect()
}

impl Networks {
    /// Refuses addresses that the host needs to reach others at, and those that a machine in a network of the host's
    /// has, which would be fought over. For those that a VM is given; one that moves here is still answered for
    /// where it was. Takes half a second. Cancel-safe: it changes nothing.
    pub async fn ask_neighbours(&self, wanted: &[Publish]) -> Result<(), NetworkError> {
        let on = interfaces()?;
        let mut asked = BTreeMap::<String, Vec<OwnAddress>>::new();
        for own in among(wanted) {
            self.spare(own, &on)
                .map_err(|source| NetworkError::Address {
                    address: own,
                    source,
                })?;
            if let Ok(Some(uplink)) = fit(own, &on) {
                asked.entry(uplink.name.clone()).or_default().push(own);
            }
        }
        for (link, these) in asked {
            let ips: Vec<_> = these.iter().map(|own| own.ip()).collect();
            let at = link.clone();
            let ask = move || forkyard_sys_host::arp::answered(&at, &ips, ASK);
            let answered = match tokio::task::spawn_blocking(ask).await {
                Ok(answered) => answered,
                Err(broke) => std::panic::resume_unwind(broke.into_panic()),
            };
            let answered = answered.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(link, error, "neighbours are not asked");
                Vec::new()
            });
            let had = these.into_iter().find(|own| answered.contains(&own.ip()));
            if let Some(address) = had {
                let source = Unfit::OfNeighbour { link };
                return Err(NetworkError::Address { address, source });
            }
        }
        Ok(())
    }

    /// Tells whether the host itself has the address that one is, as another program may have given it since.
    pub fn is_hosts(&self, lead: &Publish) -> bool {
        let own = lead.own_address();
        own.is_some_and(|own| {
            let on = interfaces().unwrap_or_default();
            matches!(fit(own, &on), Err(Unfit::OfHost { .. }))
        })
    }

    /// Refuses an address at which the host reaches others: packets of its own for it would go to the VM.
    fn spare(&self, own: OwnAddress, on: &[Interface]) -> Result<(), Unfit> {
        if resolvers::find().contains(&own.ip()) {
            return Err(Unfit::OfResolver);
        }
        if self.closed_now().iter().any(|it| *it.at.ip() == own.ip()) {
            return Err(Unfit::OfPeer);
        }
        let mut uplinks = on.iter().filter(|it| !it.is_ours() && it.prefix < ALONE);
        match uplinks.find(|it| own.reach() == Reach::Routed && it.contains(own.ip())) {
            Some(uplink) => Err(Unfit::InNetwork {
                link: uplink.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Addresses of VMs for which the host takes no packets: another program has taken them from it.
    pub fn lost_addresses(&self) -> Result<BTreeSet<OwnAddress>, NetworkError> {
        let here = on_bridges()?;
        let mut lost: BTreeSet<_> = self.held_addresses().into_values().flatten().collect();
        lost.retain(|own| !here.contains(&own.ip()));
        Ok(lost)
    }

    /// Has the host take packets for all addresses of VMs again. If cancelled, for some of them.
    pub async fn hold_again(&self) -> Result<(), NetworkError> {
        let _turn = self.altering.lock().await;
        let mut held = Ok(());
        for (family, own) in self.held_addresses() {
            // What fails does not keep the rest.
            held = held.and(self.hold_addresses(family, &own).await);
        }
        held
    }

    /// Those of the families that have any.
    fn held_addresses(&self) -> BTreeMap<FamilyId, BTreeSet<OwnAddress>> {
        let families = self.families();
        let of = |(id, it): (&FamilyId, &InForce)| {
            let own = among(it.rules().published.values().flatten());
            (!own.is_empty()).then_some((*id, own))
        };
        families.iter().filter_map(of).collect()
    }

    /// Has the host take packets for these addresses of a family's VMs, and for no others of its. Tells
    /// neighbours of those that are new.
    pub(crate) async fn hold_addresses(
        &self,
        family: FamilyId,
        wanted: &BTreeSet<OwnAddress>,
    ) -> Result<(), NetworkError> {
        let bridge = Link::Bridge(family).name();
        let index = match if_nametoindex(bridge.as_str()) {
            Ok(index) => index,
            // They have gone with it.
            Err(_) if wanted.is_empty() => return Ok(()),
            Err(_) => return Err(NetworkError::NoLink { link: bridge }),
        };
        let on = interfaces()?;
        let here = on.iter().filter(|it| it.name == bridge);
        let here: BTreeSet<_> = here
            .filter(|it| it.prefix == ALONE)
            .map(|it| it.ip)
            .collect();
        let ips: BTreeSet<_> = wanted.iter().map(|it| it.ip()).collect();
        for ip in here.difference(&ips) {
            let mut message = AddressMessage::default();
            message.header.family = rtnetlink::packet_route::AddressFamily::Inet;
            message.header.index = index;
            message.header.prefix_len = ALONE;
            message
                .attributes
                .push(AddressAttribute::Local(IpAddr::V4(*ip)));
            let gone = self.netlink.address().del(message).execute().await;
            gone.map_err(|source| refused("take an address from", &bridge, source))?;
        }
        for own in wanted.iter().filter(|it| !here.contains(&it.ip())) {
            let added = self.netlink.address().add(index, own.ip().into(), ALONE);
            let added = added.execute().await;
            added.map_err(|source| refused("give an address to", &bridge, source))?;
            // Those that know it of its former host would send there for a while.
            if let Ok(Some(uplink)) = fit(*own, &on) {
                announce(&uplink.name, *own);
                tokio::spawn(announce_again(uplink.name.clone(), *own));
            }
        }
        Ok(())
    }
}

fn announce(uplink: &str, own: OwnAddress) {
    if let Err(error) = forkyard_sys_host::arp::announce(uplink, own.ip()) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(address = %own, error, "neighbours are not told");
    }
}

/// Tells the neighbours once more, if the address is still here: a kernel keeps for a second what it has just
/// learnt of another place, and a frame may be lost.
async fn announce_again(uplink: String, own: OwnAddress) {
    tokio::time::sleep(ANNOUNCED_AGAIN).await;
    if on_bridges().is_ok_and(|here| here.contains(&own.ip())) {
        announce(&uplink, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(word: &str) -> OwnAddress {
        let publish: Publish = word.parse().expect("an address");
        publish.own_address().expect("an address")
    }

    fn host() -> Vec<Interface> {
        let bridge = Link::Bridge(FamilyId::random()).name();
        [
            ("lo", [127, 0, 0, 1], 8),
            ("up0", [192, 0, 2, 1], 24),
            ("up1", [203, 0, 113, 9], 31),
            ("vpn", [198, 51, 100, 5], 32),
            (&bridge, [192, 0, 2, 50], 32),
        ]
        .map(|(name, ip, prefix)| Interface {
            name: name.to_owned(),
            ip: ip.into(),
            prefix,
        })
        .into()
    }

    #[test]
    fn an_address_of_a_network_of_the_hosts_is_had_by_the_interface_of_that() {
        let on = host();
        let by = |word| fit(own(word), &on).map(|it| it.map(|it| it.name.as_str()));
        assert_eq!(by("192.0.2.7/bridge"), Ok(Some("up0")));
        assert_eq!(by("203.0.113.8/bridge"), Ok(Some("up1")));
        assert_eq!(by("203.0.113.77/routed"), Ok(None));
        // Held by a VM: what is taken is told elsewhere.
        assert_eq!(by("192.0.2.50/bridge"), Ok(Some("up0")));
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_its_reason() {
        let on = host();
        let why = |word| fit(own(word), &on).expect_err(word);
        let link = || "up0".to_owned();
        assert_eq!(why("192.0.2.1/bridge"), Unfit::OfHost { link: link() });
        assert_eq!(why("192.0.2.1/routed"), Unfit::OfHost { link: link() });
        assert_eq!(why("192.0.2.0/bridge"), Unfit::OfNetwork { link: link() });
        assert_eq!(why("192.0.2.255/bridge"), Unfit::OfNetwork { link: link() });
        assert_eq!(why("198.51.100.6/bridge"), Unfit::NoUplink);
        assert_eq!(why("10.128.0.9/routed"), Unfit::OfGuests);
        assert_eq!(why("10.255.255.1/bridge"), Unfit::OfGuests);
    }

    #[test]
    fn an_address_is_taken_once_and_free_again() {
        let all = Addresses::default();
        let wanted = own("203.0.113.77/routed");
        let lease = all.take(wanted).expect("free");
        assert!(all.has(wanted.ip()));
        let again = all.take(wanted).expect_err("taken");
        assert!(again.is_conflict());
        drop(lease);
        assert!(!all.has(wanted.ip()));
        all.take(wanted).expect("free again");
    }
}
