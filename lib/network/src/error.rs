//! Reasons why a network could not be made as wanted.

use crate::Unfit;
use forkyard_types::{OwnAddress, Publish};
use nftables::helper::NftablesError;
use std::io;

/// Reason why a network could not be made as wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Questions about names cannot be answered on a family's gateway address.
    #[error("cannot answer questions about names at {gateway}")]
    Forwarder {
        /// The address.
        gateway: std::net::Ipv4Addr,
        /// Cause.
        source: std::io::Error,
    },
    /// Netlink cannot be used at all.
    #[error("cannot use netlink")]
    Netlink {
        /// Answer of the host.
        source: io::Error,
    },
    /// The kernel does not tell what passed through interfaces.
    #[error("cannot read counters of interfaces")]
    Interfaces {
        /// Cause.
        source: io::Error,
    },
    /// Another daemon has the networks of this namespace.
    #[error(
        "the family networks belong to another daemon: give each daemon a network namespace of its own"
    )]
    Taken {
        /// Answer of the kernel.
        source: io::Error,
    },
    /// The kernel refused a change to an interface; it takes CAP_NET_ADMIN.
    #[error("cannot {what} {link}")]
    Link {
        /// Attempted action.
        what: &'static str,
        /// On which interface.
        link: String,
        /// Answer of the kernel.
        source: Box<rtnetlink::Error>,
    },
    /// The kernel does not take in where a family's places are.
    #[error("cannot tell {link} which places are on which host")]
    Places {
        /// The family's tunnel.
        link: String,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A tap could not be made; it takes CAP_NET_ADMIN and /dev/net/tun.
    #[error("cannot create {link}")]
    Tap {
        /// Name of it.
        link: String,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A port of the host cannot be published.
    #[error("port {port} of the host cannot be taken")]
    Port {
        /// The port.
        port: Publish,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A VM cannot have an address outside.
    #[error("no VM of this host can have the address {address}")]
    Address {
        /// The address.
        address: OwnAddress,
        /// Reason.
        source: Unfit,
    },
    /// DHCP cannot be answered on a family's bridge.
    #[error("cannot answer DHCP on {link}")]
    Dhcp {
        /// The bridge.
        link: String,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A setting of the kernel cannot be read or changed.
    #[error("cannot read or change {path}")]
    Setting {
        /// File of it.
        path: String,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A family has no bridge.
    #[error("there is no interface {link}")]
    NoLink {
        /// Name that was looked for.
        link: String,
    },
    /// The rules of this program make no sense to it.
    #[error("the firewall rules cannot be read")]
    Rules {
        /// Error of the parser, with its place.
        source: serde_json::Error,
    },
    /// `nft` could not be run.
    #[error("cannot run nft")]
    NoNft {
        /// Answer of the host.
        source: io::Error,
    },
    /// `nft`, or the kernel behind it, refused; nothing was changed.
    #[error("nft refused the firewall rules: {said}")]
    Refused {
        /// Standard error of it.
        said: String,
    },
    /// Text between `nft` and this program was no UTF-8 or no JSON.
    #[error("cannot exchange JSON with nft")]
    Nft {
        /// Fault of it.
        source: Box<NftablesError>,
    },
}

impl NetworkError {
    /// Tells whether something else has what is wanted.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Port { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
            || matches!(
                self,
                Self::Address {
                    source: Unfit::Taken | Unfit::OfNeighbour { .. },
                    ..
                }
            )
    }

    /// Tells whether what is wanted is nothing that this host could give.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Address { .. }) && !self.is_conflict()
    }

    /// Gives the operator's remedy, where one is known.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoNft { source } if source.kind() == io::ErrorKind::NotFound => {
                Some("install nftables")
            }
            Self::Tap { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("/dev/net/tun is missing: load the kernel module tun")
            }
            Self::Tap { source, .. }
            | Self::Netlink { source }
            | Self::Dhcp { source, .. }
            | Self::Places { source, .. }
            | Self::Forwarder { source, .. }
            | Self::Interfaces { source }
            | Self::Setting { source, .. } => privilege(source),
            Self::Address { source, .. } => Some(match source {
                Unfit::Taken => {
                    "`forkyard ps` says which VM: unpublish it there, or choose another"
                }
                Unfit::OfHost { .. }
                | Unfit::OfNeighbour { .. }
                | Unfit::OfGuests
                | Unfit::OfResolver
                | Unfit::OfPeer
                | Unfit::OfNetwork { .. } => "choose an address that nothing has",
                Unfit::InNetwork { .. } => {
                    "ask for `bridge`, or choose an address that the network outside routes to this host"
                }
                Unfit::NoUplink => {
                    "choose an address of a network that the host is in, or ask for `routed` if the network \
                     outside has a route to this host for it"
                }
                Unfit::Silent { .. } => "set arp_ignore to 0 for all and for that interface",
            }),
            Self::Port { .. } if self.is_conflict() => {
                Some("another VM or a program on the host has it: choose another port")
            }
            Self::Port { source, .. } if source.kind() == io::ErrorKind::AddrNotAvailable => {
                Some("this is no address of the host")
            }
            Self::Port { source, .. } => privilege(source),
            Self::Link { source, .. } => {
                let rtnetlink::Error::NetlinkError(message) = source.as_ref() else {
                    return None;
                };
                let error = message.to_io();
                if error.kind() == io::ErrorKind::AddrInUse {
                    return Some(
                        "a program or a published port of this host has UDP port 4789, which \
                         families that are on several hosts need",
                    );
                }
                privilege(&error)
            }
            Self::Refused { .. } => {
                Some("the daemon needs CAP_NET_ADMIN, and a kernel with nftables for bridges")
            }
            Self::Taken { .. }
            | Self::NoLink { .. }
            | Self::Rules { .. }
            | Self::NoNft { .. }
            | Self::Nft { .. } => None,
        }
    }
}

fn privilege(error: &io::Error) -> Option<&'static str> {
    (error.kind() == io::ErrorKind::PermissionDenied).then_some("the daemon needs CAP_NET_ADMIN")
}

impl From<NftablesError> for NetworkError {
    fn from(error: NftablesError) -> Self {
        match error {
            NftablesError::NftExecution { inner, .. } => Self::NoNft { source: inner },
            NftablesError::NftFailed { stderr, .. } => Self::Refused {
                said: stderr.trim().to_owned(),
            },
            NftablesError::NftOutputEncoding { .. } | NftablesError::NftInvalidJson(_) => {
                Self::Nft {
                    source: Box::new(error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_nft_is_told_from_one_that_refuses() {
        let missing = NftablesError::NftExecution {
            program: "nft".into(),
            inner: io::ErrorKind::NotFound.into(),
        };
        let missing = NetworkError::from(missing);
        assert!(matches!(missing, NetworkError::NoNft { .. }));
        assert_eq!(missing.remedy(), Some("install nftables"));
        let refused = NetworkError::from(NftablesError::NftFailed {
            program: "nft".into(),
            hint: String::new(),
            stdout: String::new(),
            stderr: "Error: Operation not permitted\n".into(),
        });
        assert!(
            matches!(refused, NetworkError::Refused { said } if said == "Error: Operation not permitted")
        );
    }

    #[test]
    fn a_tap_says_whether_privilege_or_the_module_is_missing() {
        let remedy = |kind: io::ErrorKind| {
            let tap = NetworkError::Tap {
                link: "fyt".into(),
                source: kind.into(),
            };
            tap.remedy()
        };
        let privilege = remedy(io::ErrorKind::PermissionDenied);
        let module = remedy(io::ErrorKind::NotFound);
        assert!(privilege.is_some() && module.is_some() && privilege != module);
        assert_eq!(remedy(io::ErrorKind::OutOfMemory), None);
    }
}
