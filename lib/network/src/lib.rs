//! Family networks: one bridge a family, a tap a VM, and nothing that passes
//! where it should not.
//!
//! ```text
//! create_tap      the tap exists, down, on no bridge: it drops what the guest sends
//! admit           the rules know who will speak from it
//! open_port       on the bridge and up
//! forget          the rules know nothing of it; it went when QEMU closed it
//! ```
//!
//! A clone has its parent's addresses until its agent has changed them, so its
//! port must not be opened before that: the order is the caller's to keep.
//! Frames are checked against `admit` all the same.

mod error;
mod names;
mod plan;
mod rules;

pub use error::NetworkError;
pub use names::Link;
pub use plan::Subnet;

use forkyard_types::{Address, FamilyId, VmId};
use futures::TryStreamExt;
use nix::net::if_::if_nametoindex;
use rtnetlink::{Handle, LinkBridge, LinkUnspec, packet_route::link::LinkAttribute};
use rules::Rules;
use std::{
    fs,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

/// The networks of the families on one host: of the network namespace in which
/// this was opened.
#[derive(Debug)]
pub struct Networks {
    netlink: Handle,
    rules: Rules,
    /// One owner a network namespace: the kernel keeps an abstract socket's
    /// name for as long as its owner lives, and for that namespace alone.
    _owner: UnixListener,
}

/// Name of that socket.
const OWNER: &str = "forkyard.network";

impl Networks {
    /// Opens the kernel's network and puts the rules in force, with no member.
    /// Fails if another process has the networks of this namespace.
    pub async fn open() -> Result<Self, NetworkError> {
        let owner = SocketAddr::from_abstract_name(OWNER)
            .and_then(|name| UnixListener::bind_addr(&name))
            .map_err(|source| NetworkError::Taken { source })?;
        let (connection, netlink, _) =
            rtnetlink::new_connection().map_err(|source| NetworkError::Netlink { source })?;
        tokio::spawn(connection);
        let rules = Rules::enforce().await?;
        Ok(Self {
            netlink,
            rules,
            _owner: owner,
        })
    }

    /// Makes a family's bridge. The host has no address on it and takes no
    /// part in it.
    pub async fn create_family(&self, family: FamilyId) -> Result<(), NetworkError> {
        let name = Link::Bridge(family).name();
        let bridge = LinkBridge::new(&name)
            .forward_delay(0)
            .mcast_snooping(false)
            // Or a guest could say, in frames that a bridge keeps to itself
            // before it asks the rules, that it is where a sibling is.
            .no_linklocal_learn(true)
            .build();
        let made = self.netlink.link().add(bridge).execute().await;
        made.map_err(|source| refused("create", &name, source))?;
        silence(&name);
        Ok(())
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

    /// Lets the rules know who will speak from which tap. Any number costs
    /// one call of `nft`.
    pub async fn admit(&self, members: &[(VmId, Address)]) -> Result<(), NetworkError> {
        self.rules.admit(members).await
    }

    /// Opens a VM's port: from here on it is on its family's network.
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

    /// Forgets who spoke from a VM's tap. It takes the kernel some 15 ms, once
    /// for all that are forgotten at the same time: join them.
    pub async fn forget(&self, vm: VmId) -> Result<(), NetworkError> {
        self.rules.dismiss(vm).await
    }

    /// Removes a family's bridge, if it is there.
    pub async fn remove_family(&self, family: FamilyId) -> Result<(), NetworkError> {
        self.remove_link(Link::Bridge(family)).await
    }

    /// Removes an interface of ours, if it is there.
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

    /// Every interface of ours there is, also those of an earlier daemon.
    pub async fn links(&self) -> Result<Vec<Link>, NetworkError> {
        let mut found = Vec::new();
        let mut links = self.netlink.link().get().execute();
        while let Some(message) = links
            .try_next()
            .await
            .map_err(|source| refused("list", "interfaces", source))?
        {
            let name = message.attributes.iter().find_map(|attribute| {
                let LinkAttribute::IfName(name) = attribute else {
                    return None;
                };
                Some(name)
            });
            found.extend(name.and_then(|name| Link::parse(name)));
        }
        Ok(found)
    }

    /// Removes the rules. For a host without VMs.
    pub async fn remove_rules(&self) -> Result<(), NetworkError> {
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

fn refused(what: &'static str, link: &str, source: rtnetlink::Error) -> NetworkError {
    NetworkError::Link {
        what,
        link: link.to_owned(),
        source: Box::new(source),
    }
}
