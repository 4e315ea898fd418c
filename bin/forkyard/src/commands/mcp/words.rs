//! Arguments of the tools, and their schemas.

use super::arguments::{Encoding, Whole};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_types::ExecRequest;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Seconds a command may take at most.
pub const MOST_SECONDS: u64 = 600;
/// Bytes of a file in one answer at most.
pub const MOST_BYTES: u64 = 256 << 10;
/// Seconds a command may take, unless it is given more.
const SECONDS: u32 = 60;
/// Largest process id.
const PID: u64 = 1 << 22;
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
    /// Memory in bytes, whole MiB; 268435456 if absent.
    pub memory: Option<Whole<{ 64 << 20 }, { 1 << 40 }>>,
    /// Memory in MiB, as it was said before.
    #[schemars(skip)]
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
    /// Standard input of the command, and then its end; in the background more may follow.
    pub stdin: Option<String>,
    /// Working directory, the image's or "/" if absent.
    #[serde(alias = "cwd")]
    pub workdir: Option<String>,
    /// User it runs as, by name or number, the image's or root if absent.
    pub user: Option<String>,
    /// Seconds after which it is killed, 60 if absent. Not in the background.
    pub timeout_s: Option<Whole<1, MOST_SECONDS>>,
    /// Do not wait for its end: the answer is its process id, for `session_read`, `session_write` and
    /// `session_end`. It goes on until then.
    pub background: Option<bool>,
}

impl Exec {
    /// Request to the daemon, but for input and time.
    pub fn request(self) -> ExecRequest {
        ExecRequest {
            argv: self.argv,
            env: self.env.unwrap_or_default().into_iter().collect(),
            workdir: self.workdir,
            user: self.user,
            ..ExecRequest::default()
        }
    }

    /// Makes the request with its input and the time it has.
    pub fn bounded_request(self) -> ExecRequest {
        let stdin = self.stdin.as_ref().map(|text| BASE64_STANDARD.encode(text));
        let timeout_s = Some(self.timeout_s.map_or(SECONDS, |it| it.as_a()));
        ExecRequest {
            stdin,
            timeout_s,
            ..self.request()
        }
    }
}

/// `sessions`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sessions {
    /// Name or id of the VM.
    pub vm: String,
}

/// `session_read`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRead {
    /// Name or id of the VM.
    pub vm: String,
    /// Process id of the command, as `exec` answered.
    pub pid: Whole<1, PID>,
    /// Position to begin at: `next` of the answer before, 0 if absent.
    pub from: Option<Whole<0, EXACT>>,
    /// Seconds to wait for output or the command's end where there is nothing to read, 0 if absent.
    pub wait_s: Option<Whole<0, MOST_SECONDS>>,
}

/// `session_write`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionWrite {
    /// Name or id of the VM.
    pub vm: String,
    /// Process id of the command, as `exec` answered.
    pub pid: Whole<1, PID>,
    /// Text for the command's standard input. Lines end with a newline.
    pub input: Option<String>,
    /// Says whether this is the end of its input; no if absent.
    pub eof: Option<bool>,
}

/// `session_end`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionEnd {
    /// Name or id of the VM.
    pub vm: String,
    /// Process id of the command, as `exec` answered.
    pub pid: Whole<1, PID>,
    /// Signal by number: 2 interrupts, 15 asks to end; 9 if absent, which kills the command and all that it
    /// started.
    pub signal: Option<Whole<1, 64>>,
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

/// `activate`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Activate {
    /// Name of the substrate.
    pub substrate: String,
    /// VMs wanted, 1 if absent.
    pub count: Option<Whole<1, 256>>,
    /// Name of the VM, or the beginning of the names of several: lower-case letters, digits and inner hyphens.
    /// The substrate's if absent.
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Hosts to make them on, in turns: nodes of the cluster or peers of the daemon, and `here`.
    pub to: Option<Vec<String>>,
    /// In a cluster: make each on the node with most vCPUs free.
    pub spread: Option<bool>,
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
