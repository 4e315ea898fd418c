//! Reasons why something could not be done in or for the cluster.

use crate::invitation::InvalidInvitation;
use forkyard_api_client::ClientError;
use forkyard_etcd::EtcdError;
use forkyard_placement::{AllocateError, PlacementDenied, SlurmError};
use forkyard_tls::TlsError;
use forkyard_types::{ApiError, ErrorKind, NodeName, VmName};
use std::{io, path::PathBuf};

/// Reason why something could not be done in or for the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// This host is no node, and was not invited.
    #[error("this etcd has a cluster already, and this host is no node of it")]
    NotInvited {
        /// The node that can invite it.
        keeper: NodeName,
    },
    /// Whatever reaches this etcd could make itself a node.
    #[error("the connection to {endpoint} would cross the network without TLS")]
    PlainEtcd {
        /// The etcd.
        endpoint: String,
    },
    /// Neither was one founded nor is there an invitation.
    #[error("no etcd of a cluster is configured on this host")]
    NoEtcd,
    /// This node may not act for the cluster at the moment.
    #[error(
        "node {node} has lost its lease: others may take it for dead, and it takes no new work"
    )]
    Fenced {
        /// This node.
        node: NodeName,
    },
    /// This node was removed from the cluster.
    #[error("node {node} was removed from the cluster")]
    Removed {
        /// This node.
        node: NodeName,
    },
    /// No node of that name.
    #[error("there is no node {node}")]
    NoSuchNode {
        /// Requested name.
        node: NodeName,
    },
    /// The node that would have to do it is lost.
    #[error("node {node} is lost")]
    Lost {
        /// Node.
        node: NodeName,
    },
    /// A node of that name is in the cluster.
    #[error("there is a node {node} already")]
    NameTaken {
        /// Node.
        node: NodeName,
    },
    /// A VM of that name is in the cluster.
    #[error("there is a VM {name} already, on node {node}")]
    VmNameTaken {
        /// The VM.
        name: VmName,
        /// Node of the VM.
        node: NodeName,
    },
    /// A node that has VMs is not removed just so.
    #[error("node {node} is alive and has {vms} VMs")]
    NotEmpty {
        /// Node.
        node: NodeName,
        /// Number of VMs.
        vms: u32,
    },
    /// Only where the authority's key is can nodes be invited.
    #[error("this node does not keep the cluster's authority: node {keeper} does")]
    NotKeeper {
        /// Node that keeps it.
        keeper: NodeName,
    },
    /// An invitation that is not known: used, expired, or forged.
    #[error("the invitation is not known: it was used, has expired, or was never given out")]
    NotKnown,
    /// Text that is no invitation.
    #[error(transparent)]
    Invitation(#[from] InvalidInvitation),
    /// Another node changed the same record at the same time, again and again.
    #[error("other nodes changed the same record at every attempt")]
    Crowded,
    /// No room, or no right to it.
    #[error(transparent)]
    Denied(#[from] PlacementDenied),
    /// Slurm cannot be used, or gives no room.
    #[error("Slurm allocates no room")]
    Slurm(#[from] SlurmError),
    /// etcd cannot be used.
    #[error("the cluster's records cannot be used")]
    Etcd(#[from] EtcdError),
    /// A record makes no sense.
    #[error("the cluster's record {key} cannot be parsed")]
    Record {
        /// Key of the record.
        key: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// Certificates cannot be used.
    #[error("the node's identity cannot be used")]
    Tls(#[from] TlsError),
    /// The node that invited us refused, or was not reached.
    #[error("the node that gave the invitation cannot let this host in")]
    Join(#[source] ClientError),
    /// A file of the node's own cannot be used.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Operation that was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The kernel gives no random bytes.
    #[error("the kernel gave no random bytes")]
    Random(#[from] getrandom::Error),
}

impl From<AllocateError> for ClusterError {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::Denied(denied) => Self::Denied(denied),
            AllocateError::Etcd(error) => Self::Etcd(error),
            AllocateError::Slurm(error) => Self::Slurm(error),
            AllocateError::Unwritable(source) => Self::Record {
                key: "grants".into(),
                source,
            },
            // Whatever else keeps it from deciding is others' doing.
            AllocateError::Crowded | _ => Self::Crowded,
        }
    }
}

impl ClusterError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchNode { .. } => ErrorKind::NotFound,
            Self::NotKnown => ErrorKind::Unauthorized,
            Self::Invitation(_) | Self::PlainEtcd { .. } => ErrorKind::Invalid,
            Self::NotInvited { .. }
            | Self::NoEtcd
            | Self::Fenced { .. }
            | Self::Removed { .. }
            | Self::Lost { .. }
            | Self::NameTaken { .. }
            | Self::VmNameTaken { .. }
            | Self::NotEmpty { .. }
            | Self::NotKeeper { .. } => ErrorKind::Conflict,
            Self::Denied(PlacementDenied::Gone { .. } | PlacementDenied::Draining { .. }) => {
                ErrorKind::Conflict
            }
            Self::Denied(PlacementDenied::Nothing) => ErrorKind::Invalid,
            Self::Denied(_) | Self::Crowded | Self::Slurm(SlurmError::Failed { .. }) => {
                ErrorKind::Exhausted
            }
            Self::Etcd(_)
            | Self::Slurm(_)
            | Self::Record { .. }
            | Self::Tls(_)
            | Self::Join(_)
            | Self::Io { .. }
            | Self::Random(_) => ErrorKind::Host,
        }
    }

    /// Returns advice to the client.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotInvited { keeper } => {
                return Some(format!(
                    "`forkyard node invite` on node {keeper} prints a token for `forkyardd --join`"
                ));
            }
            Self::PlainEtcd { .. } => {
                "give etcd certificates and name it https://; --etcd-insecure founds the cluster all the same, where only nodes reach etcd"
            }
            Self::NotKeeper { keeper } => return Some(format!("ask on node {keeper}")),
            Self::NoEtcd => {
                "`forkyardd --cluster https://HOST:2379` founds a cluster, and `--join TOKEN` joins one"
            }
            Self::Fenced { .. } => {
                "it goes on by itself once it reaches etcd; `forkyard node ls` and the daemon's log tell more"
            }
            Self::Removed { .. } => {
                "have it invited again, or start its daemon without --node: it then goes on alone"
            }
            Self::NoSuchNode { .. } => "`forkyard node ls` lists the nodes",
            Self::Lost { .. } => {
                "start its daemon again; if it will not come back, `forkyard node rm` forgets it and its VMs"
            }
            Self::NameTaken { .. } => "choose another name, or `forkyard node rm` that one first",
            Self::VmNameTaken { .. } => "choose another name, or remove that VM",
            Self::NotEmpty { .. } => {
                "`forkyard node drain` it and remove its VMs first, or say --force: its VMs are forgotten, not ended"
            }
            Self::NotKnown | Self::Invitation(_) => "`forkyard node invite` makes another",
            Self::Crowded => "try again",
            Self::Denied(denied) => return denied.hint().map(str::to_owned),
            Self::Etcd(error) => return error.hint().map(str::to_owned),
            Self::Slurm(error) => return error.hint().map(str::to_owned),
            Self::Join(error) => return error.hint().map(str::to_owned),
            Self::Record { .. } | Self::Tls(_) | Self::Io { .. } | Self::Random(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// As the API tells it.
    pub fn to_api(&self) -> ApiError {
        ApiError::of(self, self.kind(), self.hint().as_deref())
    }
}
