//! Arguments of the tools, and their schemas.

use super::arguments::{Encoding, Whole};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Seconds a command may take at most.
pub const MOST_SECONDS: u64 = 600;
/// Bytes of a file in one answer at most.
pub const MOST_BYTES: u64 = 256 << 10;
/// Integers that every reader of JSON has exactly.
const EXACT: u64 = (1 << 53) - 1;

/// `run`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Image: `tiny` (BusyBox, boots fastest), `debian`, or another recipe's name.
    pub image: String,
    /// Name: lower-case letters, digits and inner hyphens. Made up if absent.
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// vCPUs, 1 if absent.
    pub vcpus: Option<Whole<1, 64>>,
    /// Memory in MiB, 256 if absent.
    pub memory_mib: Option<Whole<64, { 1 << 20 }>>,
}

/// `exec`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Name or id of the VM.
    pub vm: String,
    /// Program and arguments. No shell sees them: for one, ["sh", "-c", "…"].
    #[schemars(length(min = 1))]
    pub argv: Vec<String>,
    /// Variables added to the command's environment, by name.
    pub env: Option<BTreeMap<String, String>>,
    /// Standard input of the command.
    pub stdin: Option<String>,
    /// Working directory, the image's or "/" if absent.
    pub cwd: Option<String>,
    /// User it runs as, by name or number, the image's or root if absent.
    pub user: Option<String>,
    /// Seconds after which it is killed, 60 if absent.
    pub timeout_s: Option<Whole<1, MOST_SECONDS>>,
}

/// `fork`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// Name or id of the VM.
    pub vm: String,
    /// Clones wanted, 1 if absent.
    pub count: Option<Whole<1, 256>>,
}

/// `rm`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rm {
    /// Name or id of the VM.
    pub vm: String,
}

/// `start`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
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
    #[schemars(length(min = 1))]
    pub path: String,
    /// Bytes to pass over at its beginning, 0 if absent.
    pub offset: Option<Whole<0, EXACT>>,
    /// Most bytes to read, 65536 if absent.
    pub limit: Option<Whole<1, MOST_BYTES>>,
}

/// `write_file`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Name or id of the VM.
    pub vm: String,
    /// The file's path in the guest.
    #[schemars(length(min = 1))]
    pub path: String,
    /// Content of the file.
    pub content: String,
    /// Encoding of `content`, `text` if absent.
    pub encoding: Option<Encoding>,
    /// Choice whether it may be run as a program; if absent as the file that is
    /// there, or no.
    pub executable: Option<bool>,
}
