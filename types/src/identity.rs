//! What makes one VM of a family different from the others.

use crate::{Epoch, FamilyId, Member, VmId, VmName};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr};

/// An Ethernet address: its six bytes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The family's private network as one of its VMs sees it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The VM's own address.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Ipv4))]
    pub ip: Ipv4Addr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
    /// The VM's Ethernet address.
    pub mac: Mac,
}

/// The way from a family's network to the outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The host's address on the family's network.
    pub gateway: Ipv4Addr,
    /// Who answers questions about names; if nobody, the VM keeps its own.
    pub resolvers: Vec<Ipv4Addr>,
}

/// Everything the agent must change in a VM before user code goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The VM.
    pub vm: VmId,
    /// Its family.
    pub family: FamilyId,
    /// Its place in the family.
    pub member: Member,
    /// This life of its memory.
    pub epoch: Epoch,
    /// Its host name.
    pub name: VmName,
    /// Its place on the network.
    pub address: Address,
    /// The way out, if there is one.
    pub route: Option<Route>,
    /// Address of the VM it was cloned from; its own for one that booted.
    pub parent_ip: Ipv4Addr,
    /// Fresh bytes for the kernel's random number generator.
    pub seed: [u8; 32],
}
