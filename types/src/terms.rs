//! Labels and lifetime of a VM.

use crate::{ShareView, VmName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, num::NonZeroU16, str::FromStr};

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

/// `POST /v1/vms/{id}/lifetime`: how long from now on a VM is wanted.
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

/// `POST /v1/vms/{id}/idle`: what becomes of a VM that is not used.
///
/// In use is a VM in which a command, session, terminal, copy or connection to a port is under way, or
/// whose guest takes more than a tenth of a processor.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// Seconds without use.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 315_360_000))]
    pub after_s: u32,
    /// Action then; `pause` if absent.
    #[serde(default = "pause")]
    pub action: AtEnd,
}

fn pause() -> AtEnd {
    AtEnd::Pause
}

/// Says whether a VM that ended by itself is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Restart {
    /// Never.
    #[default]
    No,
    /// However it ended, unless it was stopped.
    Always,
    /// If it failed: its kernel gave up, its QEMU was killed, or its host went down.
    OnFailure {
        /// Most starts in a row, each of which ran for less than a minute; none: any number.
        most: Option<NonZeroU16>,
    },
}

/// `POST /v1/vms/{id}/restart-policy`: whether a VM is started again from now on.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// `no`, `always`, `on-failure` or `on-failure:N`.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub restart: Restart,
}

/// A word that names no way to restart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: wanted no, always, on-failure or on-failure:N")]
pub struct BadRestart {
    word: String,
}

impl FromStr for Restart {
    type Err = BadRestart;

    fn from_str(word: &str) -> Result<Self, BadRestart> {
        match (word, word.strip_prefix("on-failure:").map(str::parse)) {
            ("no", _) => Ok(Self::No),
            ("always", _) => Ok(Self::Always),
            ("on-failure", _) => Ok(Self::OnFailure { most: None }),
            (_, Some(Ok(most))) => Ok(Self::OnFailure { most: Some(most) }),
            (_, Some(Err(_)) | None) => Err(BadRestart { word: word.into() }),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::Always => f.write_str("always"),
            Self::OnFailure { most: None } => f.write_str("on-failure"),
            Self::OnFailure { most: Some(most) } => write!(f, "on-failure:{most}"),
        }
    }
}

impl TryFrom<String> for Restart {
    type Error = BadRestart;

    fn try_from(word: String) -> Result<Self, BadRestart> {
        word.parse()
    }
}

impl From<Restart> for String {
    fn from(restart: Restart) -> Self {
        restart.to_string()
    }
}

/// Starts of a VM that ended by itself.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Starts in a row of which none ran for a minute, with the one that is due.
    pub tried: u16,
    /// Seconds since 1970 at which the next is due.
    pub due: Option<u64>,
    /// Seconds since 1970 at which the last one succeeded; 0: none has.
    pub begun: u64,
}

/// End of the time for which a VM is wanted.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// Seconds since 1970.
    pub at: u64,
    /// Action then.
    pub action: AtEnd,
}

/// `POST /v1/vms/{id}/labels`: all the labels that a VM is to have.
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
    /// End of the time for which it is wanted; none: it is until it is removed.
    #[serde(default)]
    pub ends: Option<Ends>,
    /// Action if it is not used; none: it runs on.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// True if it was paused or stopped for it was not used, and is woken by its next use.
    #[serde(default)]
    pub asleep: bool,
    /// Tells whether it is started again if it ends by itself. Clones are not.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub restart: Restart,
    /// Starts of that kind.
    #[serde(default)]
    pub restarts: Restarts,
    /// Tokens that were given out for its ports. Clones have none.
    #[serde(default)]
    pub shares: Vec<ShareView>,
}

impl Terms {
    /// Those that a clone has of its parent.
    pub fn inherited(&self) -> Self {
        Self {
            asleep: false,
            restart: Restart::No,
            restarts: Restarts::default(),
            shares: Vec::new(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_restart_is_read_as_it_is_written_and_nothing_else_is() {
        for word in ["no", "always", "on-failure", "on-failure:3"] {
            let read: Restart = word.parse().expect("a way");
            assert_eq!(read.to_string(), word);
        }
        for wrong in [
            "",
            "yes",
            "on-failure:",
            "on-failure:0",
            "on-failure:-1",
            "always:3",
        ] {
            assert!(wrong.parse::<Restart>().is_err(), "{wrong}");
        }
        let idle: Idle = serde_json::from_str(r#"{"after_s": 5}"#).expect("an action by default");
        assert_eq!(idle.action, AtEnd::Pause);
    }

    #[test]
    fn a_clone_neither_sleeps_nor_is_started_because_its_parent_is() {
        let parent = Terms {
            idle: Some(Idle {
                after_s: 1,
                action: AtEnd::Pause,
            }),
            asleep: true,
            restart: Restart::Always,
            ..Terms::default()
        };
        let clone = parent.inherited();
        assert_eq!(clone.idle, parent.idle);
        assert_eq!((clone.asleep, clone.restart), (false, Restart::No));
    }

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
