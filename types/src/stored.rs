//! Substrates in object stores.

use crate::{ByteCount, SubstrateKind, SubstrateView, VmName};
use serde::{Deserialize, Serialize};

/// Result of a push.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushResponse {
    /// The substrate.
    #[serde(flatten)]
    pub substrate: SubstrateView,
    /// Bytes that were sent to an object store; 0 for a folder.
    #[serde(default)]
    pub sent: ByteCount,
    /// Bytes that the store had already, of this or of other substrates.
    #[serde(default)]
    pub shared: ByteCount,
}

/// A substrate in an object store.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSubstrate {
    /// Name that it has there.
    pub name: String,
    /// Seconds since 1970 at which it was stored, by the store's clock.
    pub stored: u64,
    /// Public key of the host that has signed it; none if its manifest cannot be used.
    pub key: Option<String>,
    /// True if that key is this host's own, or trusted here.
    pub trusted: bool,
    /// Reason why it cannot be pulled, if its manifest says so already.
    pub problem: Option<String>,
    /// Description in the words of the host that has signed it.
    pub facts: Option<StoredFacts>,
}

/// Description of a substrate in an object store.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFacts {
    /// Kind of the substrate.
    pub kind: SubstrateKind,
    /// Image that its VM, or an ancestor, booted from.
    pub image: String,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Memory of its VMs.
    pub memory: ByteCount,
    /// Bytes of all its pieces. Others may share them.
    pub size: ByteCount,
}

/// `POST /v1/stores/collect`: remove what no substrate in a store needs.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectRequest {
    /// Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`.
    pub store: String,
}

/// Things that were removed from an object store.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Pieces that were removed.
    pub pieces: u64,
    /// Bytes of those.
    pub bytes: ByteCount,
}

/// Keys of hosts whose substrates are trusted.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedKeys {
    /// Public keys, each an Ed25519 key in 64 hexadecimal digits. This host's own is not among them.
    pub keys: Vec<String>,
}

/// The copy of a substrate in the store that the host backs its pool up to.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupView {
    /// Address of the store.
    pub store: String,
    /// Progress of the copy.
    pub state: BackupState,
    /// Seconds since 1970 at which it was complete.
    pub at: Option<u64>,
    /// Reason why the last attempt failed; there will be another.
    pub problem: Option<String>,
}

/// Progress of a copy.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackupState {
    /// The copy is there.
    Done,
    /// The copy is on its way, or waits for its turn.
    Waiting,
    /// The last attempt failed.
    Failing,
}

/// Query of `GET /v1/stores`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreQuery {
    /// Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`.
    pub store: String,
}

/// Query of `DELETE /v1/stores`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredQuery {
    /// Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`.
    pub store: String,
    /// Name of the substrate there.
    pub name: VmName,
}

/// `POST /v1/substrate-keys`: trust what another host has signed.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustRequest {
    /// Public key of that host, an Ed25519 key in 64 hexadecimal digits.
    pub key: String,
}
