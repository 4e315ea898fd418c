//! Messages between hosts so that the fork of a VM on one makes clones on
//! another: everything but the pages, which are fetched when they are touched.

use crate::{
    ByteCount, CloneResult, FamilyId, ForkId, ForkReport, GuestCpu, ImageId, Member, NetworkPolicy,
    PageCount, PageNo, RequestId, TicketId, VmId, VmName,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
};

/// `POST /v1/peer/clones`: make clones of an instant of a VM on another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerForkRequest {
    /// The instant.
    pub handout: Handout,
    /// Clones wanted.
    pub count: u16,
    /// Number of the first of them among the clones of the fork, 1 and up.
    pub first: u16,
    /// Paths in the guest that they do not inherit.
    #[serde(default)]
    pub scrub: Vec<String>,
    /// True if all pages are to be fetched in the background.
    #[serde(default)]
    pub settle: bool,
    /// The ticket that they were promised by, if a guest asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<PeerTicket>,
}

/// Clones that a guest was promised by a ticket: as many as are wanted.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTicket {
    /// The ticket.
    pub id: TicketId,
    /// The VM it was granted to.
    pub owner: VmId,
    /// The call of the guest's program that returns in each of them.
    pub request: Option<RequestId>,
    /// Address that the clones are told is their parent's.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub home: Ipv4Addr,
    /// Promises of the ticket.
    pub clones: Vec<PeerPromise>,
}

/// One clone that was promised.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerPromise {
    /// Number in the ticket.
    pub number: u16,
    /// Place in the family, among those that were lent.
    pub member: Member,
    /// Processes in it that have numbers.
    pub processes: u8,
    /// vCPUs it is to have online.
    pub vcpus: u8,
}

/// `POST /v1/peer/ticket`: how the clones of a ticket ended that were made on another
/// host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTicketRequest {
    /// The ticket.
    pub ticket: TicketId,
    /// The clones whose ends are known by now.
    pub known: Vec<u16>,
    /// Time to wait for another, in ms; ten seconds at most.
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_295_u32))]
    pub wait_ms: u32,
    /// True if this is the last request.
    pub over: bool,
}

/// Answer of a host to that.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTicketResponse {
    /// True if the host knows that ticket.
    pub known: bool,
    /// The clones that have ended, all of them.
    pub ended: Vec<PeerEnd>,
}

/// End of a clone.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerEnd {
    /// Number in the ticket.
    pub number: u16,
    /// The status it gave to `exit`, if it did.
    pub status: Option<u8>,
    /// Reported ends of its other processes.
    pub others: Vec<PeerProcessEnd>,
}

/// End of one process of a clone.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProcessEnd {
    /// Number in the ticket.
    pub id: u16,
    /// Status, if it is known.
    pub status: Option<u8>,
}

/// Results of clones on another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerForkResponse {
    /// One entry a clone wanted.
    pub clones: Vec<CloneResult>,
    /// Account of the time there.
    pub report: ForkReport,
    /// Pages of memory that they touched until they were ready, in that order; none if they came on
    /// demand, for then they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<PageRun>,
}

/// `POST /v1/peer/families`: where the places of families are, as a host tells
/// those that it lent some of them.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerFamiliesRequest {
    /// The families.
    pub families: Vec<FamilyNews>,
}

/// A family as the host knows it that lends places of it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyNews {
    /// The family.
    pub id: FamilyId,
    /// That host's end of tunnels.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub tunnel: Ipv4Addr,
    /// The family's hosts, but for those that it was told of by the receiver.
    pub hosts: Vec<FamilyHost>,
    /// Key that its hosts seal their news of members with, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<NewsSecret>,
}

/// The key by which hosts of a family know each other's news of where its members are: 32 bytes,
/// base64. Its debug output hides it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NewsSecret(pub String);

impl fmt::Debug for NewsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewsSecret(…)")
    }
}

/// Answer of a host to that.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFamiliesResponse {
    /// One entry a family that it was told of, in their order.
    pub families: Vec<FamilyStanding>,
}

/// Relation of a host to a family that it was lent places of.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyStanding {
    /// End of tunnels; none if it has no part in such networks.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub tunnel: Option<Ipv4Addr>,
    /// True if it has anything of the family.
    pub member: bool,
    /// Hosts that it has lent some of these places in turn, and they others.
    pub lent: Vec<FamilyHost>,
}

/// An instant of a VM as another host is given it (SnowFlock's descriptor, paper
/// section 4.1).
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handout {
    /// [`Handout::VERSION`] of the host that made it.
    pub version: u16,
    /// The fork.
    pub fork: ForkId,
    /// The VM it is an instant of.
    pub parent: HandoutParent,
    /// The family, and what the other host may give of it.
    pub family: HandoutFamily,
    /// Description of the machine.
    pub machine: HandoutMachine,
    /// State of its devices and CPUs, packed by zstd, base64.
    pub devices: String,
    /// Memory of the VM.
    pub memory: RemotePages,
    /// Disk of the VM, with all that it lay over.
    pub disk: Option<RemotePages>,
    /// Pages of its memory that come before all others, where all pages come first: those that
    /// clones of such a memory have touched before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<PageRun>,
    /// Pages of its memory that come after all others, where all pages come first: data that
    /// no clone is likely to need at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<PageRun>,
    /// Address at which its host's pager serves these.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub pager: SocketAddr,
    /// The key they are served by.
    pub key: PageSecret,
}

impl Handout {
    /// The version this program makes and takes.
    pub const VERSION: u16 = 4;
}

/// The VM a handout is an instant of.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoutParent {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM.
    pub name: VmName,
    /// Place in the family.
    pub member: Member,
    /// True if the VM is a clone itself.
    pub is_clone: bool,
    /// Forks between it and the VM its family began with.
    pub generation: u16,
    /// Paths in the guest that its clones do not inherit.
    pub secrets: Vec<String>,
}

/// A family as another host is let into it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoutFamily {
    /// Id of the family.
    pub id: FamilyId,
    /// Number of the family: its network follows from it, on every host alike.
    pub number: u16,
    /// Most clones that may be alive at once, if there is a limit.
    pub max_clones: Option<u16>,
    /// Rights of its VMs on the network.
    pub network: NetworkPolicy,
    /// The first of the places that the other host gives to its clones.
    pub first: Member,
    /// Number of these places.
    pub places: u16,
    /// The end of tunnels of the host that lets it in; none if that has no part in
    /// such networks.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub tunnel: Option<Ipv4Addr>,
    /// The hosts of the family, as far as that one knows.
    pub hosts: Vec<FamilyHost>,
    /// Key that its hosts seal their news of members with, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<NewsSecret>,
}

/// A host of a family, and places of it that are given there. Of two that have a place,
/// the one with fewer has it: it was lent those by the other.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyHost {
    /// The host's end of the tunnels that families' networks go through.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub tunnel: Ipv4Addr,
    /// The first of the places.
    pub first: Member,
    /// Number of these places.
    pub places: u16,
}

impl FamilyHost {
    /// The places.
    pub fn range(self) -> Range<u16> {
        self.first.0..self.first.0.saturating_add(self.places)
    }
}

/// Description of a machine.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoutMachine {
    /// Image its first ancestor booted from.
    pub image: String,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// vCPUs of these that the VM was granted, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<u8>,
    /// Memory.
    pub memory: ByteCount,
    /// Memory that its guest found when it booted.
    pub booted: ByteCount,
    /// Accelerator: `kvm` or `tcg`.
    pub accel: String,
    /// True if its guest reports which of its pages are free.
    pub page_reporting: bool,
    /// CPU that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<GuestCpu>,
    /// Limits it to no more than that wherever it goes.
    #[serde(default)]
    pub is_baseline: bool,
}

/// A page image on another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemotePages {
    /// The image.
    pub image: ImageId,
    /// Size of the image.
    pub pages: PageCount,
    /// Order of pages, by which clones are let go.
    #[serde(default, skip_serializing_if = "PageOrder::is_usual")]
    pub order: PageOrder,
}

/// Pages of an image, one after the other.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageRun {
    /// The first.
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub first: PageNo,
    /// Number of pages.
    pub pages: PageCount,
}

/// Order in which the pages of an image come and the clones that lie over it are let go.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageOrder {
    /// Clones are let go at once, and pages come as they are touched.
    #[default]
    OnDemand,
    /// All pages come first: over a long link each page that is touched before it has come
    /// costs a round trip.
    SettleFirst,
}

impl PageOrder {
    fn is_usual(&self) -> bool {
        *self == Self::OnDemand
    }
}

/// The key by which page images of one fork are served to other hosts: 32
/// bytes, base64. Its debug output hides it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageSecret(pub String);

impl fmt::Debug for PageSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageSecret(…)")
    }
}

/// A page image of a VM's that has not all come from another host yet.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// The image.
    pub image: ImageId,
    /// Part of the VM that the image is.
    pub part: VmPart,
    /// Size of the image.
    pub pages: PageCount,
    /// Pages of it that are still away.
    pub away: PageCount,
}

/// Part of a VM that a page image is.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmPart {
    /// Memory as it was at the fork.
    Memory,
    /// Disk as it was then.
    Disk,
}

impl fmt::Display for VmPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_by_accident() {
        let shown = format!("{:?}", PageSecret("c2VjcmV0".into()));
        assert!(!shown.contains("c2V"), "{shown}");
    }

    #[test]
    fn what_a_later_version_adds_is_refused() {
        let pages = serde_json::json!({"image": ImageId::random(), "pages": 3});
        serde_json::from_value::<RemotePages>(pages.clone()).expect("as it is");
        let mut more = pages;
        more["packed"] = true.into();
        serde_json::from_value::<RemotePages>(more).expect_err("unknown");
    }
}
