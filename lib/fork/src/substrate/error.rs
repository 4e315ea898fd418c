//! Reasons why something could not be done with a substrate.

use crate::HostError;
use forkyard_objects::{ManifestError, order::Failed};
use forkyard_substrate::{ListsError, access::SubstrateDenied, sign::SignError};
use forkyard_types::{ByteCount, ErrorKind, VmName};
use forkyard_vmm::Ungrown;
use std::path::PathBuf;

/// Reason why something could not be done with a substrate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubstrateError {
    /// None of that name, or one that is closed to the asker.
    #[error("there is no substrate {name:?}")]
    Unknown {
        /// Requested name.
        name: String,
    },
    /// The substrate is still being docked.
    #[error("substrate {name} is being docked")]
    NotReady {
        /// The substrate.
        name: VmName,
    },
    /// Something lies over it.
    #[error("{by} lies over substrate {name}")]
    InUse {
        /// The substrate.
        name: VmName,
        /// A VM, or another substrate.
        by: VmName,
    },
    /// The VM would end, and its clones with their parent.
    #[error("{vm} has clones that live: {clone} is one")]
    HasClones {
        /// The VM.
        vm: VmName,
        /// One of them.
        clone: VmName,
    },
    /// A part of the VM is on another host.
    #[error("{vm} came from another host: its disk is not all here")]
    FromElsewhere {
        /// The VM.
        vm: VmName,
    },
    /// The state was saved by another program.
    #[error("substrate {name} was made by {of}, and here is {here}")]
    OtherEngine {
        /// The substrate.
        name: VmName,
        /// The program that saved it.
        of: String,
        /// The program of this host.
        here: String,
    },
    /// The guest has a CPU that this host's VMs have not.
    #[error("substrate {name} was made on another CPU")]
    OtherCpu {
        /// The substrate.
        name: VmName,
        /// Difference between the two.
        source: Box<HostError>,
    },
    /// A file of it is not what was docked.
    #[error("substrate {name} is damaged: {path} is not as it was docked")]
    Damaged {
        /// The substrate.
        name: VmName,
        /// The file.
        path: PathBuf,
    },
    /// The agent in its memory is of another version.
    #[error(
        "the agent in the memory of substrate {name} speaks version {agent} of its messages, this daemon version {}",
        forkyard_agent_link::VERSION
    )]
    OtherAgent {
        /// The substrate.
        name: VmName,
        /// Version of the agent.
        agent: u16,
    },
    /// VMs of it cannot have that size.
    #[error("VMs of substrate {name} cannot be so large or small")]
    Size {
        /// The substrate.
        name: VmName,
        /// The reason.
        source: Ungrown,
    },
    /// The host has less memory than that.
    #[error("a VM of {wanted} is larger than this host, which has {has} of memory")]
    HostTooSmall {
        /// Memory that is wanted.
        wanted: ByteCount,
        /// Memory that the host has.
        has: ByteCount,
    },
    /// The host has no room for it.
    #[error("substrate pool is full: {short} more than its {limit} would be needed ({could_go})")]
    Full {
        /// The pool's size.
        limit: ByteCount,
        /// Space that is short.
        short: ByteCount,
        /// Substrates that could be removed.
        could_go: String,
    },
    /// The substrate cannot be brought here.
    #[error("cannot import the substrate {path}: {why}")]
    NotBrought {
        /// The folder that it lies in.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// No host has signed it.
    #[error("{path} is not signed")]
    Unsigned {
        /// The folder that it lies in.
        path: PathBuf,
    },
    /// The substrate was signed by a host that is not trusted here.
    #[error("{path} was signed by {key}, which is not trusted here")]
    Untrusted {
        /// The folder that it lies in.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// The manifest in a store is not one that a host has signed.
    #[error("cannot import the substrate {path}")]
    Manifest {
        /// Address of the substrate.
        path: PathBuf,
        /// The reason.
        source: ManifestError,
    },
    /// Something could not be done in an object store.
    #[error("object store {store}")]
    Store {
        /// Address of the store.
        store: String,
        /// The reason.
        source: Failed,
    },
    /// The key is not trusted anyway.
    #[error("{key} is not among the trusted keys")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// This host cannot sign.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// The guest could not be prepared.
    #[error("{vm} could not be prepared: {why}")]
    NotPrepared {
        /// The VM.
        vm: VmName,
        /// Message of the agent.
        why: String,
    },
    /// The lists of what is generalised cannot be used.
    #[error(transparent)]
    Lists(#[from] ListsError),
    /// The asker may not.
    #[error(transparent)]
    Denied(#[from] SubstrateDenied),
}

impl SubstrateError {
    /// Classifies the error for programs.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. }
            | Self::UnknownKey { .. }
            | Self::Store {
                source: Failed::Absent(_),
                ..
            } => ErrorKind::NotFound,
            Self::Store {
                source: Failed::Taken(_),
                ..
            } => ErrorKind::Conflict,
            Self::Store {
                source:
                    Failed::Missing(_)
                    | Failed::Damaged(_)
                    | Failed::Store(_)
                    | Failed::Here(_)
                    | Failed::Settings(_),
                ..
            } => ErrorKind::Host,
            Self::Manifest { source, .. } if source.is_forged() => ErrorKind::Forbidden,
            Self::Manifest { .. } => ErrorKind::Invalid,
            Self::NotReady { .. }
            | Self::InUse { .. }
            | Self::HasClones { .. }
            | Self::OtherEngine { .. }
            | Self::OtherCpu { .. }
            | Self::OtherAgent { .. }
            | Self::Full { .. }
            | Self::FromElsewhere { .. } => ErrorKind::Conflict,
            Self::NotBrought { .. } | Self::Size { .. } | Self::HostTooSmall { .. } => {
                ErrorKind::Invalid
            }
            Self::NotPrepared { .. } => ErrorKind::Guest,
            Self::Unsigned { .. } | Self::Untrusted { .. } => ErrorKind::Forbidden,
            Self::Sign(_) | Self::Lists(_) | Self::Damaged { .. } => ErrorKind::Host,
            Self::Denied(_) => ErrorKind::Forbidden,
        }
    }

    /// Returns advice to the user.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { .. } => Some("`forkyard substrate ls` lists the substrates"),
            Self::NotReady { .. } => Some("ask again in a moment"),
            Self::InUse { .. } => Some(
                "remove that first, or make it depend on nothing: `forkyard independent VM --wait`",
            ),
            Self::HasClones { .. } => Some("dock a clone of it by --live, or remove its clones"),
            Self::FromElsewhere { .. } => Some("dock it on the host where its family was founded"),
            Self::OtherEngine { .. } => {
                Some("activate it where that program runs, or dock it anew here")
            }
            Self::OtherCpu { .. } => {
                Some("activate it on a host with that CPU, or dock it anew here")
            }
            Self::Damaged { .. } => {
                Some("remove it, and dock or pull it again; others are as they were")
            }
            Self::OtherAgent { .. } => {
                Some("activate it with the version of Forkyard that made it, or dock it anew here")
            }
            Self::Size { .. } => {
                Some("`forkyard substrate inspect` says which sizes they can have")
            }
            Self::HostTooSmall { .. } => Some("ask for less, or activate it on a larger host"),
            Self::Full { .. } => Some("or start the daemon with a larger --substrate-pool"),
            Self::NotBrought { .. } => Some("push it again from where it was docked"),
            Self::NotPrepared { .. } => {
                Some("it runs on; what its guest was rid of by then stays gone")
            }
            Self::Lists(_) => Some("correct generalise.toml in the daemon's share folder"),
            Self::Unsigned { .. } => Some("pull it with --unsigned if you trust the folder"),
            Self::Untrusted { .. } => Some(
                "if `forkyard substrate key` says that on a host you trust, pull it with --trust KEY, or `forkyard substrate trust KEY` once",
            ),
            Self::Manifest { .. } => Some("push it again from where it was docked"),
            Self::Store { store, source } => match source {
                Failed::Absent(_) => Some("`forkyard substrate ls STORE` lists what is there"),
                Failed::Taken(_) => Some(
                    "another host has signed it, or it is damaged: remove it there (`forkyard substrate rm NAME --store STORE`), or push to another prefix",
                ),
                Failed::Missing(_) | Failed::Damaged(_) => Some(
                    "push it again with --verify from where it was docked: that mends what is in the store",
                ),
                Failed::Store(_) if store.starts_with("file:") => Some(
                    "see that the folder and all in it can be read and written on the daemon's host",
                ),
                Failed::Store(_) => Some(
                    "see that the store can be reached, and that its keys are in the file of --object-stores or in AWS_… variables of the daemon",
                ),
                Failed::Settings(_) => Some("correct the file of the daemon's --object-stores"),
                Failed::Here(_) => None,
            },
            Self::UnknownKey { .. } => Some("`forkyard substrate trust` lists them"),
            Self::Sign(_) | Self::Denied(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_about_keys_is_given_for_stores_on_servers_alone() {
        for (store, keys) in [("file:///mnt/store", false), ("s3://bucket/x", true)] {
            let error = SubstrateError::Store {
                store: store.into(),
                source: Failed::Store("it does not answer".into()),
            };
            assert_eq!(error.kind(), ErrorKind::Host);
            let hint = error.hint().unwrap_or_default();
            assert_eq!(hint.contains("AWS_"), keys, "{hint}");
        }
    }
}
