//! Messages between hosts so that VMs of a substrate on one are made on another:
//! everything but the pages, which are fetched as those of a fork are.

use crate::{
    ActivateRequest, ByteCount, ForkId, GuestCpu, ImageId, PageRun, PageSecret, RemotePages, VmId,
    VmName,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `POST /v1/peer/activations`: make VMs of a substrate of another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerActivateRequest {
    /// [`PeerActivateRequest::VERSION`] of the host that has the substrate.
    pub version: u16,
    /// The activation.
    pub activation: ForkId,
    /// The substrate.
    pub substrate: PeerSubstrate,
    /// State of its devices and CPUs, packed by zstd, base64.
    pub devices: String,
    /// Memory of the VMs wanted: as it was docked, and zeros behind that if they are larger.
    pub memory: RemotePages,
    /// Disk as it was docked, with all that it lay over.
    pub disk: RemotePages,
    /// Difference of that disk from its guest image, for hosts that have the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<PeerOver>,
    /// Address at which its host's pager serves these.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub pager: SocketAddr,
    /// The key they are served by.
    pub key: PageSecret,
    /// The VMs wanted.
    pub vms: Vec<PeerFounder>,
    /// Properties of each of them, as they were asked for.
    pub request: ActivateRequest,
}

impl PeerActivateRequest {
    /// The version this program makes and takes.
    pub const VERSION: u16 = 1;
}

/// A VM that is to be made of a substrate.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFounder {
    /// Id of the VM, drawn by the host that has the substrate: by it the VM is known whatever becomes
    /// of the answer.
    pub id: VmId,
    /// Name of the VM.
    pub name: VmName,
}

/// A substrate as another host must know it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSubstrate {
    /// Name of the substrate.
    pub name: VmName,
    /// Page image of the memory that was docked, which a host may have by a `pull`.
    pub docked: ImageId,
    /// Guest image that its VM, or its ancestor, booted from.
    pub image: String,
    /// Number of vCPUs that were docked.
    pub vcpus: u8,
    /// Memory that was docked.
    pub memory: ByteCount,
    /// Memory that its guest found when it booted.
    pub booted: ByteCount,
    /// Accelerator: `kvm` or `tcg`.
    pub accel: String,
    /// CPU that its guest was given, if that was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<GuestCpu>,
    /// The program that saved its state.
    pub engine: String,
    /// Version of their messages that its agent speaks, if that was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<u16>,
    /// True if guests of its host report which of their pages are free.
    pub page_reporting: bool,
}

/// Difference of an image from one of the same size.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerOver {
    /// The other image.
    pub image: ImageId,
    /// Pages that differ, in order.
    pub changed: Vec<PageRun>,
}
