//! What the tools take.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

/// `run`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Image: `tiny` (BusyBox, boots fastest), `debian`, or another recipe's name.
    pub image: String,
    /// Name: lower-case letters, digits and inner hyphens. Made up if absent.
    pub name: Option<String>,
    /// vCPUs, 1 if absent.
    pub vcpus: Option<u8>,
    /// Memory in MiB, 256 if absent.
    pub memory_mib: Option<u64>,
}

/// `exec`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Name or id of the VM.
    pub vm: String,
    /// Program and arguments. No shell sees them: for one, ["sh", "-c", "…"].
    pub argv: Vec<String>,
    /// What the command reads from standard input.
    pub stdin: Option<String>,
    /// Seconds after which it is killed: 60 if absent, at most 600.
    pub timeout_s: Option<u32>,
}

/// `fork`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// Name or id of the VM.
    pub vm: String,
    /// Clones wanted, 1 if absent.
    pub count: Option<u16>,
}

/// `rm`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rm {
    /// Name or id of the VM.
    pub vm: String,
}

/// `read_file`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Name or id of the VM.
    pub vm: String,
    /// The file's path in the guest.
    pub path: String,
    /// Bytes to pass over at its beginning, 0 if absent.
    pub offset: Option<u64>,
    /// Most bytes to read: 65536 if absent, at most 262144.
    pub limit: Option<u64>,
}

/// `write_file`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Name or id of the VM.
    pub vm: String,
    /// The file's path in the guest.
    pub path: String,
    /// What is to be in it.
    pub content: String,
    /// How `content` is spelt, `text` if absent.
    pub encoding: Option<Encoding>,
    /// Whether it may be run as a program; if absent as the file that is there, or no.
    pub executable: Option<bool>,
}

/// How content is spelt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As it is.
    Text,
    /// In base64.
    Base64,
}
