//! Plan of a guest's preparation before it is docked, and its report.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Orders to a guest that is to become a substrate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Services to stop.
    pub stop: Vec<String>,
    /// Patterns of paths to overwrite and remove.
    pub remove: Vec<String>,
    /// Patterns of paths of files to empty.
    pub empty: Vec<String>,
    /// Host name to take; none: it keeps its own.
    pub host_name: Option<String>,
    /// Free memory that is left to it, in bytes. The rest it gives back.
    pub margin: u64,
}

/// Report of a guest that is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepared {
    /// Services that were stopped.
    pub stopped: Vec<String>,
    /// Files that were removed or emptied.
    pub cleared: u64,
    /// Bytes of free memory that it gave back, and holds until it is woken.
    pub given_back: u64,
    /// Bytes that its kernel counts as used, by what for, as it is when ready.
    pub used: BTreeMap<String, u64>,
    /// Orders that could not be carried out, one line each.
    pub problems: Vec<String>,
}
