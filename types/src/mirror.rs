//! Copies of volumes that other hosts hold flush by flush, and budgets of the links to them.

use crate::{BitRate, ByteCount};
use serde::{Deserialize, Serialize};

/// Action of flushes while a host that is to hold a copy is away.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenMirrorAway {
    /// They wait for it; after 20 s the VM stands still until it is back.
    #[default]
    Wait,
    /// They are answered without it, and it is told how far it is behind.
    GoOn,
}

/// `POST /v1/volumes/{name}/mirror`: say which other hosts every flush of a volume waits for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorVolume {
    /// Hosts; none ends it. Copies that they have stay there.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 8))]
    pub hosts: Vec<String>,
    /// Action while one of them is away.
    #[serde(default)]
    pub away: WhenMirrorAway,
}

/// Copy of a volume at a host that every flush waits for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMirror {
    /// Host.
    pub host: String,
    /// True if there is a connection to it.
    pub is_there: bool,
    /// Number of writes that it does not hold.
    pub behind: u64,
    /// True if it has promoted its copy: the volume is at home there, and fenced here.
    pub is_promoted: bool,
    /// Action of flushes while it is away.
    pub away: WhenMirrorAway,
}

/// `GET /v1/peer/volumes/{volume}/hold`: volume that a copy is held of.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerHold {
    /// Identity of the volume.
    pub id: String,
    /// Host where it is at home, as it calls itself.
    pub from: String,
}

/// `PUT /v1/links/{host}/budget`: budget of the link to another host, for blocks of volumes that nothing waits
/// for. What is waited for is sent at once, and counts.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkBudget {
    /// Bits a second.
    #[serde(default)]
    pub rate: Option<BitRate>,
    /// Bytes a day, of UTC.
    #[serde(default)]
    pub daily: Option<ByteCount>,
    /// Price of 10^9 bytes, in any currency.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub price: Option<f64>,
    /// Money for a day, in the same currency.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub money: Option<f64>,
}

/// Link to another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// Host, as it is called here.
    pub host: String,
    /// Budget.
    pub budget: LinkBudget,
    /// Bytes a day that it comes to, by the stricter of bytes and money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_bytes: Option<ByteCount>,
    /// Bytes of volumes' blocks that were sent today at that host's request.
    pub sent_today: ByteCount,
    /// Seconds until the day's budget is there again, if it is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_s: Option<u64>,
}
