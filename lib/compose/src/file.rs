//! The file's form.

use forkyard_types::{NetworkPolicy, Publish, Restart, VmName};
use serde::Deserialize;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// A file, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComposeFile {
    /// Name of the composition; the file's if absent.
    pub name: Option<String>,
    /// Rights of all members on the network; ports are the members' own.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Members by name.
    pub members: BTreeMap<String, MemberFile>,
}

/// A member, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberFile {
    /// Image to boot. Or `from`.
    pub image: Option<String>,
    /// Substrate to wake. Or `image`.
    pub from: Option<VmName>,
    /// vCPUs; 1 if absent, of a substrate as many as were docked.
    pub vcpus: Option<u8>,
    /// Memory in MiB; 256 if absent, of a substrate as much as was docked.
    pub memory: Option<u64>,
    /// Root disk in MiB, of a substrate's VM; as was docked if absent.
    pub disk: Option<u64>,
    /// Environment of every command that is run in it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Ports of the host that lead to it, and addresses of its own.
    #[serde(default)]
    pub publish: Vec<Publish>,
    /// Files and folders that are copied in: path here, relative to the file, and path in the guest.
    #[serde(default)]
    pub copy: BTreeMap<PathBuf, String>,
    /// Command that is begun once those that it waits for are well; what the system starts by itself
    /// runs earlier.
    pub command: Option<Vec<String>>,
    /// Test that it is well; without one it is once its command has begun.
    pub health: Option<HealthFile>,
    /// Members whose being well it waits for.
    #[serde(default)]
    pub after: Vec<String>,
    /// Tells whether it is started again if it ends by itself.
    #[serde(default)]
    pub restart: Restart,
}

/// A test, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthFile {
    /// Command in the guest; well if it exits with 0.
    pub test: Vec<String>,
    /// Time between two tests; 2 s if absent.
    #[serde(default, deserialize_with = "time")]
    pub interval: Option<Duration>,
    /// Time for one test, of whole seconds; 10 s if absent.
    #[serde(default, deserialize_with = "time")]
    pub timeout: Option<Duration>,
    /// Failures in a row, after `start`, that are borne; 30 if absent.
    pub retries: Option<u32>,
    /// Time from the first test in which failures do not count; none if absent.
    #[serde(default, deserialize_with = "time")]
    pub start: Option<Duration>,
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text);
    time.map(Some)
        .map_err(|error| serde::de::Error::custom(format!("{text:?} is no time: {error}")))
}
