//! The REST API: sandboxes, their lives, snapshots, pages of lists.

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `POST /v2/sandboxes`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// Template.
    #[serde(rename = "templateID")]
    pub template: String,
    /// Seconds that it is wanted.
    #[serde(default)]
    pub timeout: Option<u32>,
    /// Pause it then, instead of ending it.
    #[serde(default)]
    pub auto_pause: Option<bool>,
    /// Wake it by a request.
    #[serde(default)]
    pub auto_resume: Option<serde_json::Value>,
    /// Environment of its commands.
    #[serde(default)]
    pub env_vars: BTreeMap<String, String>,
    /// Labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// A way out.
    #[serde(default)]
    pub allow_internet_access: Option<bool>,
    /// More about its network.
    #[serde(default)]
    pub network: Option<NetworkConfig>,
    /// Servers for agents.
    #[serde(default)]
    pub mcp: Option<serde_json::Value>,
    /// Volumes.
    #[serde(default)]
    pub volume_mounts: Option<serde_json::Value>,
    /// Identities of clouds.
    #[serde(default)]
    pub iam: Option<serde_json::Value>,
}

/// Network of a sandbox.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// Ports are reached without a token.
    #[serde(default)]
    pub allow_public_traffic: Option<bool>,
    /// All else.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

/// A sandbox that was made, or connected to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Template.
    #[serde(rename = "templateID")]
    pub template: String,
    /// Id of the sandbox.
    #[serde(rename = "sandboxID")]
    pub id: String,
    /// Client that made it, which is given for no sandbox.
    #[serde(rename = "clientID")]
    pub client: &'static str,
    /// Version of the daemon in it.
    pub envd_version: &'static str,
    /// Token for that daemon.
    pub envd_access_token: String,
    /// Token for its ports, where those are not public.
    pub traffic_access_token: Option<String>,
    /// Domain under which its ports are found.
    pub domain: Option<String>,
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// The sandbox runs.
    Running,
    /// The sandbox is paused.
    Paused,
}

/// A sandbox in lists, and alone.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    /// Template.
    #[serde(rename = "templateID")]
    pub template: String,
    /// The template's name.
    pub alias: String,
    /// Id of the sandbox.
    #[serde(rename = "sandboxID")]
    pub id: String,
    /// Client that made it, which is given for no sandbox.
    #[serde(rename = "clientID")]
    pub client: &'static str,
    /// Time of its creation.
    pub started_at: String,
    /// Time of its end.
    pub end_at: String,
    /// vCPUs.
    pub cpu_count: u8,
    /// MiB of memory.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    /// MiB of disk.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// State.
    pub state: SandboxState,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
    /// Version of the daemon in it.
    pub envd_version: &'static str,
    /// Token for that daemon; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Domain under which its ports are found; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// `POST /sandboxes/ID/timeout`, `connect`, `resume`, `refreshes`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TimeoutRequest {
    /// Seconds from now.
    pub timeout: Option<u32>,
    /// Lifetime in requests to `refreshes`.
    pub duration: Option<u32>,
}

/// `POST /sandboxes/ID/pause`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PauseRequest {
    /// False: the disk alone is to be kept.
    pub memory: Option<bool>,
}

/// `POST /sandboxes/ID/fork`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SandboxForkRequest {
    /// Seconds that the forks are wanted.
    pub timeout: Option<u32>,
    /// Number of forks.
    pub count: Option<u16>,
}

/// Result of one fork.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkResult {
    /// A sandbox.
    Sandbox(Sandbox),
    /// None, for this reason.
    Error(ErrorBody),
}

/// `POST /sandboxes/ID/snapshots`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SnapshotRequest {
    /// Name of the snapshot.
    pub name: Option<String>,
    /// False: the disk alone is to be kept.
    pub memory: Option<bool>,
}

/// A snapshot, which is a template as well.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotInfo {
    /// Id of the snapshot.
    #[serde(rename = "snapshotID")]
    pub id: String,
    /// Names of the snapshot.
    pub names: Vec<String>,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorBody {
    /// HTTP's status code.
    pub code: u16,
    /// Reason.
    pub message: String,
}

/// Names and values of a query string; of several of one name, the last.
pub fn pairs(query: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

/// Filter of the sandboxes that are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// With all these labels.
    pub metadata: BTreeMap<String, String>,
    /// In one of these states; of any if there are none.
    pub states: Vec<String>,
    /// Of one of these templates; of any if there are none.
    pub templates: Vec<String>,
    /// Of this sandbox alone: snapshots.
    pub sandbox: Option<String>,
    /// Most of them.
    pub limit: usize,
    /// After so many.
    pub skip: usize,
    /// The oldest first.
    pub ascending: bool,
}

impl ListQuery {
    /// Most on a page.
    pub const PAGE: usize = 100;

    /// Reads a query string; the error is what is wrong with it.
    pub fn of(query: &str) -> Result<Self, String> {
        let mut read = Self {
            metadata: BTreeMap::new(),
            states: Vec::new(),
            templates: Vec::new(),
            sandbox: None,
            limit: Self::PAGE,
            skip: 0,
            ascending: false,
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let number = || {
                value
                    .parse::<usize>()
                    .map_err(|_| format!("{name} {value:?} is no number"))
            };
            let words = || value.split(',').map(str::to_owned);
            match &*name {
                // Names and values are quoted once more inside.
                "metadata" => {
                    let quoted =
                        |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
                    let pairs = form_urlencoded::parse(value.as_bytes());
                    read.metadata
                        .extend(pairs.map(|(name, value)| (quoted(&name), quoted(&value))));
                }
                "state" => read.states.extend(words()),
                "template" | "templateID" => read.templates.extend(words()),
                "sandboxID" => read.sandbox = Some(value.into_owned()),
                "limit" => read.limit = number()?.clamp(1, Self::PAGE),
                "nextToken" => read.skip = number()?,
                "order" => read.ascending = value == "asc",
                other => return Err(format!("the filter {other:?} is not supported")),
            }
        }
        Ok(read)
    }

    /// Cuts out of all, the oldest first, the page that is wanted, and the token of the next.
    pub fn page<T>(&self, mut all: Vec<T>) -> (Vec<T>, Option<String>) {
        if !self.ascending {
            all.reverse();
        }
        let end = self.skip.saturating_add(self.limit);
        let next = (end < all.len()).then(|| end.to_string());
        let page = all.into_iter().skip(self.skip).take(self.limit).collect();
        (page, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_the_sdk_writes_them() {
        let query = "metadata=a%3D1%26user%2520id%3Da%252526b&state=running&state=paused&limit=2&nextToken=4";
        let read = ListQuery::of(query).expect("a query");
        let wanted = [("a", "1"), ("user id", "a&b")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(read.metadata, wanted.into());
        assert_eq!(read.states, ["running", "paused"]);
        assert_eq!((read.limit, read.skip), (2, 4));
        assert!(ListQuery::of("startedAfter=x").is_err());
        assert!(ListQuery::of("limit=x").is_err());
    }

    #[test]
    fn pages_follow_each_other_until_all_is_told() {
        let all: Vec<u32> = (0..7).collect();
        let mut query = ListQuery::of("limit=3").expect("a query");
        let mut told = Vec::new();
        loop {
            let (page, next) = query.page(all.clone());
            told.extend(page);
            match next {
                Some(next) => query.skip = next.parse().expect("a number"),
                None => break,
            }
        }
        assert_eq!(told, [6, 5, 4, 3, 2, 1, 0]);
        let (page, next) = ListQuery::of("order=asc&limit=100")
            .expect("a query")
            .page(all);
        assert_eq!((page.len(), page[0], next), (7, 0, None));
    }

    #[test]
    fn a_new_sandbox_needs_no_more_than_a_template() {
        let new: NewSandbox = serde_json::from_str(r#"{"templateID": "base"}"#).expect("read");
        assert_eq!(new.template, "base");
        let more =
            r#"{"templateID": "base", "network": {"allowPublicTraffic": false, "denyOut": ["x"]}}"#;
        let new: NewSandbox = serde_json::from_str(more).expect("read");
        let network = new.network.expect("a network");
        assert_eq!(network.allow_public_traffic, Some(false));
        assert!(network.more.contains_key("denyOut"));
    }
}
