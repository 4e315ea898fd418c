//! Nodes of a cluster: hosts whose daemons know each other.

use crate::{ByteCount, InvalidId, VmView};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// Name of a node: 1 to 63 lower-case letters, digits and inner hyphens, as of
/// a host (RFC 1123). Its certificate bears it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=63).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        match fits {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidId {
                text: text.into(),
                what: "a node's name: 1 to 63 lower-case letters, digits and inner hyphens",
            }),
        }
    }
}

impl TryFrom<String> for NodeName {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

/// State of a node.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node holds its lease, and takes what is placed on it.
    Active,
    /// The node holds its lease; nothing new is placed on it, by its operator's
    /// wish.
    Draining,
    /// The node's lease has run out: it is dead, or cut off. It is unknown what
    /// its VMs do.
    Lost,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Lost => "lost",
        })
    }
}

/// Room that a node has, or that is taken of it. vCPUs are promised several to
/// a processor, and memory several times over: clones share most of theirs.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// vCPUs.
    pub vcpus: u32,
    /// Memory of guests.
    pub memory: ByteCount,
}

/// `GET /v1/nodes`: a node as the cluster knows it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Name of the node.
    pub name: NodeName,
    /// State of the node.
    pub state: NodeState,
    /// True for the node that answers.
    pub here: bool,
    /// Address of the API, by TLS.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub api: SocketAddr,
    /// Address at which its pager offers page images to other nodes.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub pages: SocketAddr,
    /// End of the tunnels that families' networks go through.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub tunnel: Ipv4Addr,
    /// Room that the node offers.
    pub offers: Room,
    /// Room that VMs and reservations take of that.
    pub taken: Room,
    /// VMs it was last known to have.
    pub vms: u32,
    /// Seconds since 1970 at which it joined.
    pub joined: u64,
}

/// A VM, and on which node it is.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedVm {
    /// The VM, as it was last heard of.
    #[serde(flatten)]
    pub vm: VmView,
    /// Node of the VM; none where there is no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// True if that node is lost, and the VM with it for as long.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lost: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_false(value: &bool) -> bool {
    !*value
}

/// `POST /v1/nodes`: invite a host to become a node.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// Seconds within which it must join: a week at most.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 604_800))]
    pub expires_s: u64,
}

/// An invitation. It is good for one node, once.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invitation {
    /// Token for `forkyardd --join`.
    pub token: String,
    /// Seconds for which it holds.
    pub expires_s: u64,
}

/// `POST /v1/join`: a host that was invited wants to become a node. It is let
/// in by the invitation, not by a token.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Id of the invitation.
    pub invitation: String,
    /// Secret of the invitation.
    pub secret: String,
    /// Name that the node is to have.
    pub name: NodeName,
    /// Address at which other nodes reach its API.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub api: SocketAddr,
    /// Address at which its pager will offer page images to them.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub pages: SocketAddr,
    /// End of the tunnels that families' networks go through.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub tunnel: Ipv4Addr,
    /// Public key: a point of P-256, uncompressed, base64.
    pub key: String,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("invitation", &self.invitation)
            .field("name", &self.name)
            .field("api", &self.api)
            .finish_non_exhaustive()
    }
}

/// Data that makes a host a node.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// The cluster's authority, in PEM.
    pub authority: String,
    /// The node's certificate, in PEM, signed by it.
    pub certificate: String,
    /// Addresses of the cluster's etcd.
    pub etcd: Vec<String>,
}

/// `POST /v1/quotas/{user}`: what a user's VMs may take of the whole cluster.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaRequest {
    /// vCPUs; no limit if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_295_u32))]
    pub vcpus: Option<u32>,
}

/// `GET /v1/quotas`: what a user has and may have.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// The user: the name of the token that the VMs were run with.
    pub user: String,
    /// vCPUs of the user's VMs and reservations.
    pub taken: u32,
    /// vCPUs they may have; no limit if absent.
    pub vcpus: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_names_are_node_names() {
        for good in ["a", "node-3", "0", &"x".repeat(63)] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", &"x".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_not_in_what_a_request_shows_of_itself() {
        let request = JoinRequest {
            invitation: "i".into(),
            secret: "hush".into(),
            name: "a".parse().expect("a name"),
            api: (Ipv4Addr::LOCALHOST, 1).into(),
            pages: (Ipv4Addr::LOCALHOST, 2).into(),
            tunnel: Ipv4Addr::LOCALHOST,
            key: String::new(),
        };
        assert!(!format!("{request:?}").contains("hush"));
    }
}
