//! Guests that adapt their demand to what their host can give.

use serde::{Deserialize, Serialize};

/// Law that a guest's threads follow, with its usual constants.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FriendlyLaw {
    /// One more, or 1.5 times fewer: the paper's.
    Aimd,
    /// AIMD of congestion as a part, which grows as the threshold comes near.
    Careful,
    /// As careful, but waits for the effect of a step down, and from there goes
    /// up slowly.
    Steady,
    /// Steps of a square root.
    Binomial,
    /// AIMD whose steps double while there is no congestion.
    Quick,
    /// Proportional and integral control.
    Pi,
}

impl FriendlyLaw {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Aimd,
        Self::Careful,
        Self::Steady,
        Self::Binomial,
        Self::Quick,
        Self::Pi,
    ];
}

/// `PUT /v1/vms/{vm}/friendly`: how a VM is to adapt its demand. What is absent stays as it is, at
/// first as is usual.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FriendlySettings {
    /// Constants, as the text of a configuration in TOML.
    pub config: Option<String>,
    /// The law that threads follow.
    pub law: Option<FriendlyLaw>,
    /// Group to adapt: `exec`, commands that the host has run there; `image`, processes that the
    /// image's init or entry point started; or the path of a control group's folder there.
    pub group: Option<String>,
    /// Constants to change, `KEY=VALUE` each, as in `monitor.threshold=2`.
    pub changes: Vec<String>,
}
