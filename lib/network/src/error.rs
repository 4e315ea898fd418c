//! Why a network could not be made as wanted.

use std::io;

/// Why a network could not be made as wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Netlink cannot be used at all.
    #[error("cannot talk to the kernel's network")]
    Netlink {
        /// What the host said.
        source: io::Error,
    },
    /// Another daemon has the networks of this namespace.
    #[error(
        "the family networks belong to another daemon: give each daemon a network namespace of its own"
    )]
    Taken {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a change to an interface; it takes CAP_NET_ADMIN.
    #[error("cannot {what} {link}")]
    Link {
        /// What was tried.
        what: &'static str,
        /// On which interface.
        link: String,
        /// What the kernel said.
        source: Box<rtnetlink::Error>,
    },
    /// A tap could not be made; it takes CAP_NET_ADMIN and /dev/net/tun.
    #[error("cannot create {link}")]
    Tap {
        /// Its name.
        link: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A family has no bridge.
    #[error("there is no interface {link}")]
    NoLink {
        /// What was looked for.
        link: String,
    },
    /// The rules of this program make no sense to it.
    #[error("the firewall rules cannot be read")]
    Rules {
        /// Where.
        source: serde_json::Error,
    },
    /// `nft` failed, or is not there: Debian's package nftables has it.
    #[error("cannot set the firewall rules (is nftables installed?)")]
    Nft {
        /// What it said.
        source: Box<nftables::helper::NftablesError>,
    },
}
