//! Hosts that hold copies of a volume, as they are named and told of.

use serde::{Deserialize, Serialize};

/// Action of flushes while a host that is to hold a copy is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenAway {
    /// They wait for it.
    #[default]
    Wait,
    /// They are answered without it.
    GoOn,
}

/// Hosts that every flush waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorPlan {
    /// Hosts, as they are called here.
    pub hosts: Vec<String>,
    /// Action while one of them is away.
    #[serde(default)]
    pub away: WhenAway,
}

/// State of a copy, for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorFacts {
    /// Host.
    pub host: String,
    /// True if there is a connection to it.
    pub is_there: bool,
    /// Number of writes that it does not hold yet.
    pub behind: u64,
    /// True if it has promoted its copy: the volume is at home there.
    pub is_promoted: bool,
}
