//! Family networks: one bridge a family, a tap a VM, and nothing that passes
//! where it should not.
//!
//! ```text
//! create_tap      the tap exists, down, on no bridge: it drops what the guest sends
//! admit           the rules know the member that will speak from it
//! open_port       on the bridge and up
//! forget          the rules know nothing of it; it went when QEMU closed it
//! ```
//!
//! A clone has its parent's addresses until its agent has changed them, so its
//! port must not be opened before that: the order is the caller's to keep.
//! Frames are checked against `admit` all the same.
//!
//! What a family may do beyond its network is decided once, for the family: its
//! clones come under it by being on its bridge.
//!
//! ```text
//! rules    frames between taps, and between a tap and the host
//! routes   packets between a bridge and elsewhere; `family_rules`: one family's part, `leads`: to its VMs
//! addresses  addresses that VMs have outside, and the host's part in them
//! forwarder  names that a family may reach, asked for it; `answers`: what is believed
//! parked   frames for VMs that are about to come
//! tunnels  frames of families that are on other hosts, too: which host speaks for which family
//! wall     the rules put back when another program removed or changed them
//! ```

mod addresses;
mod answers;
mod batch;
mod closed;
mod dhcp;
mod error;
mod families;
mod family_rules;
mod fetchers;
mod forwarder;
mod forwarding;
mod heard;
mod leads;
mod named;
mod names;
mod nft;
mod owner;
mod parked;
mod ports;
mod private;
mod resolvers;
mod routes;
mod rules;
mod tunnel;
mod tunnels;
mod wall;
mod watch;

pub use addresses::Unfit;
pub use closed::Closed;
pub use error::NetworkError;
pub use heard::packets_in;
pub use names::Link;
pub use ports::Ports;
pub use wall::Wall;
pub use watch::{CommitWatch, Commits};

use addresses::Addresses;
use families::InForce;
pub use forkyard_overlay::{Span, Subnet};
use forkyard_types::{Address, FamilyId, Publish, VmId};
use forwarding::Forwarding;
use nft::Nft;
use nix::net::if_::{if_nameindex, if_nametoindex};
use owner::Owner;
use rtnetlink::{Handle, LinkUnspec};
use rules::Rules;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tunnel::Laid;

/// The networks of the families on one host: of the network namespace in which
/// this was opened.
#[derive(Debug)]
pub struct Networks {
    netlink: Handle,
    nft: Nft,
    rules: Rules,
    forwarding: Forwarding,
    /// Those whose rules are in force, and the ports that lead to them.
    families: Mutex<BTreeMap<FamilyId, InForce>>,
    /// Held while rules of a family are altered.
    altering: tokio::sync::Mutex<()>,
    /// Those that are on other hosts, too, and what the kernel knows of these.
    tunnels: tokio::sync::Mutex<BTreeMap<FamilyId, Laid>>,
    /// Taps in which frames wait for VMs that are about to come.
    parked: Mutex<BTreeMap<VmId, OwnedFd>>,
    /// Destinations that no guest may reach.
    closed: Mutex<BTreeSet<Closed>>,
    /// Addresses outside that VMs have.
    addresses: Addresses,
    /// Interference of other programs so far.
    wall: Mutex<Wall>,
    watch: Mutex<Option<CommitWatch>>,
    _owner: Owner,
}

impl Networks {
    /// Opens the kernel's network and puts the rules in force, with no member, and with these
    /// destinations closed to guests from the first moment on.
    /// Fails if another process has the networks of this namespace. If cancelled, rules may be in force,
    /// which the next call replaces.
    pub async fn open(closed: BTreeSet<Closed>) -> Result<Self, NetworkError> {
        let owner = Owner::take()?;
        let (connection, netlink, _) =
            rtnetlink::new_connection().map_err(|source| NetworkError::Netlink { source })?;
        tokio::spawn(connection);
        let nft = Nft::default();
        // Before there is anything to be changed.
        let watch = CommitWatch::open()?;
        let rules = Rules::enforce(nft.clone()).await?;
        routes::enforce(&nft, &closed).await?;
        tunnels::enforce(&nft).await?;
        Ok(Self {
            netlink,
            rules,
            forwarding: Forwarding::new(nft.clone()),
            nft,
            families: Mutex::default(),
            altering: tokio::sync::Mutex::default(),
            tunnels: tokio::sync::Mutex::default(),
            parked: Mutex::default(),
            closed: Mutex::new(closed),
            addresses: Addresses::default(),
            wall: Mutex::default(),
            watch: Mutex::new(Some(watch)),
            _owner: owner,
        })
    }

    /// Takes ports of the host, and addresses of its own, for a VM that is about to have them.
    pub fn take_ports(&self, wanted: &[Publish]) -> Result<Ports, NetworkError> {
        Ports::take(wanted, &self.addresses)
    }

    /// Takes what no VM has had before: addresses must be no neighbour's, either. Cancel-safe: the ports are
    /// given back.
    pub async fn take_new_ports(&self, wanted: &[Publish]) -> Result<Ports, NetworkError> {
        let ports = self.take_ports(wanted)?;
        self.ask_neighbours(wanted).await?;
        Ok(ports)
    }

    /// Makes a VM's tap, for its QEMU to inherit.
    pub fn create_tap(&self, vm: VmId) -> Result<OwnedFd, NetworkError> {
        let link = Link::Tap(vm).name();
        match forkyard_sys_host::tap::create(&link) {
            Ok(tap) => {
                silence(&link);
                Ok(tap)
            }
            Err(source) => Err(NetworkError::Tap { link, source }),
        }
    }

    /// Lets the rules know which member will speak from which tap. Any number costs
    /// one call of `nft`. If cancelled, it happens or not; [`forget`](Self::forget) copes.
    pub async fn admit(&self, members: &[(VmId, Address)]) -> Result<(), NetworkError> {
        self.rules.admit(members).await
    }

    /// Opens a VM's port: from here on it is on its family's network. If cancelled, it happens or not.
    pub async fn open_port(&self, family: FamilyId, vm: VmId) -> Result<(), NetworkError> {
        let (bridge, tap) = (Link::Bridge(family).name(), Link::Tap(vm).name());
        let Ok(index) = if_nametoindex(bridge.as_str()) else {
            return Err(NetworkError::NoLink { link: bridge });
        };
        let open = LinkUnspec::new_with_name(&tap)
            .controller(index)
            .up()
            .build();
        self.netlink
            .link()
            .set(open)
            .execute()
            .await
            .map_err(|source| refused("open", &tap, source))
    }

    /// Forgets the member that spoke from a VM's tap. It takes the kernel some 15 ms, once
    /// for all that are forgotten at the same time: join them. If cancelled, the next call for any VM sees to
    /// it.
    pub async fn forget(&self, vm: VmId) -> Result<(), NetworkError> {
        self.rules.dismiss(vm).await
    }

    /// Removes an interface of ours, if it is there. If cancelled, it happens or not.
    pub async fn remove_link(&self, link: Link) -> Result<(), NetworkError> {
        let name = link.name();
        let Ok(index) = if_nametoindex(name.as_str()) else {
            return Ok(());
        };
        self.netlink
            .link()
            .del(index)
            .execute()
            .await
            .map_err(|source| refused("remove", &name, source))
    }

    /// Tells whether there is such an interface.
    pub fn has_link(&self, link: Link) -> bool {
        if_nametoindex(link.name().as_str()).is_ok()
    }

    /// Every interface of ours there is, also those of an earlier daemon.
    pub fn links(&self) -> Result<Vec<Link>, NetworkError> {
        // By a socket of its own: of one that is shared, the kernel lets only one
        // at a time have anything listed.
        let all = if_nameindex().map_err(|errno| NetworkError::Netlink {
            source: errno.into(),
        })?;
        let names = all.iter().filter_map(|one| one.name().to_str().ok());
        Ok(names.filter_map(Link::parse).collect())
    }

    fn parked(&self) -> MutexGuard<'_, BTreeMap<VmId, OwnedFd>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the rules. For a host without VMs. Not cancel-safe: some of them may stay. A second call
    /// removes them.
    pub async fn remove_rules(&self) -> Result<(), NetworkError> {
        self.families().clear();
        self.forwarding.release_all().await?;
        self.tunnels.lock().await.clear();
        tunnels::lift(&self.nft).await?;
        routes::lift(&self.nft).await?;
        self.rules.lift().await
    }
}

/// Keeps the host's own IPv6 off an interface: it would speak to the guests.
fn silence(link: &str) {
    // Absent where the kernel has no IPv6, and then not needed.
    let switch = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
    if let Err(error) = fs::write(&switch, "1") {
        tracing::debug!(%error, switch, "IPv6 not disabled");
    }
}

/// Has the host ask for 20 s where a guest is, not 3: one that sleeps answers once it is awake, and
/// connections to it would have failed before.
fn wait_for_guests(bridge: &str) {
    let switch = format!("/proc/sys/net/ipv4/neigh/{bridge}/mcast_solicit");
    if let Err(error) = fs::write(&switch, "20") {
        tracing::warn!(%error, switch, "the host asks for guests for 3 s only");
    }
}

fn refused(what: &'static str, link: &str, source: rtnetlink::Error) -> NetworkError {
    NetworkError::Link {
        what,
        link: link.to_owned(),
        source: Box::new(source),
    }
}
