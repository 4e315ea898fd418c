//! Labels and lifetime of a VM.

use crate::VmName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Action on a VM whose time is up.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtEnd {
    /// The VM is removed with all that is its own.
    #[default]
    Rm,
    /// The VM is powered off; its disk stays.
    Stop,
    /// The VM is paused, in memory, until it is resumed.
    Pause,
    /// The VM's last instant is kept as a checkpoint of its name, with its
    /// labels; the VM is removed.
    Checkpoint,
}

/// `POST /v1/vms/{id}/rename`: another name for a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The name, which no other VM has.
    pub name: VmName,
}

/// `PUT /v1/vms/{id}/lifetime`: how long from now on a VM is wanted.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetime {
    /// Seconds from now.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 315_360_000))]
    pub ttl_s: u32,
    /// Action then; if absent as before, or `rm`.
    #[serde(default)]
    pub action: Option<AtEnd>,
}

impl Lifetime {
    /// Most seconds: ten years.
    pub const MOST_S: u32 = 315_360_000;
}

/// When a VM is wanted no more.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// Seconds since 1970.
    pub at: u64,
    /// Action then.
    pub action: AtEnd,
}

/// `PUT /v1/vms/{id}/labels`: all the labels that a VM is to have.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(pub BTreeMap<String, String>);

impl Labels {
    /// Most labels of a VM, and most variables of its environment.
    pub const MOST: usize = 64;
    /// Most bytes of a name.
    pub const NAME: usize = 128;
    /// Most bytes of a value.
    pub const VALUE: usize = 4096;

    /// True if a VM with these has all those that a filter `NAME=VALUE,…` names; the error is the
    /// part of the filter that makes no sense.
    pub fn match_filter<'a>(&self, filter: &'a str) -> Result<bool, &'a str> {
        let mut all = true;
        for part in filter.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(part)?;
            all &= self.0.get(name).is_some_and(|found| found == value);
        }
        Ok(all)
    }
}

/// Terms that a VM has been given beside its machine. Clones have their
/// parent's.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Labels for selecting the VM.
    #[serde(default)]
    pub labels: Labels,
    /// Environment of every command that is run in it from outside.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// When it is wanted no more; none: it is until it is removed.
    #[serde(default)]
    pub ends: Option<Ends>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_labels_that_must_all_be_there() {
        let labels = [("a", "1"), ("b", "x=y")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let labels = Labels(labels.into());
        for (filter, wanted) in [
            ("", Ok(true)),
            ("a=1", Ok(true)),
            ("a=1,b=x=y", Ok(true)),
            ("a=2", Ok(false)),
            ("a=1,c=", Ok(false)),
            ("a=1,c", Err("c")),
        ] {
            assert_eq!(labels.match_filter(filter), wanted, "{filter}");
        }
    }
}
