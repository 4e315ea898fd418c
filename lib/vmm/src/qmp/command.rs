//! Commands whose generated types follow a newer QEMU than the one spoken to:
//! these say and read no more than is needed.

use qapi::{Command, Empty, qmp::QmpCommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Opens an image.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct BlockdevAdd(pub(crate) serde_json::Value);

impl QmpCommand for BlockdevAdd {}
impl Command for BlockdevAdd {
    const NAME: &'static str = "blockdev-add";
    const ALLOW_OOB: bool = false;
    type Ok = Empty;
}

/// Lists the images that are open.
#[derive(Debug, Serialize)]
pub(crate) struct QueryNamedBlockNodes {
    /// Leaves out what lies below each.
    pub(crate) flat: bool,
}

/// An image that is open.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedNode {
    #[serde(rename = "node-name")]
    pub(crate) name: Option<String>,
    /// Driver of the node: its format, or how its file is accessed.
    #[serde(rename = "drv")]
    pub(crate) driver: String,
    /// File of the node.
    pub(crate) file: Option<PathBuf>,
}

impl QmpCommand for QueryNamedBlockNodes {}
impl Command for QueryNamedBlockNodes {
    const NAME: &'static str = "query-named-block-nodes";
    const ALLOW_OOB: bool = false;
    type Ok = Vec<NamedNode>;
}

/// Copies slices into the one below them, and takes them out of the disk.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct BlockCommit {
    pub(crate) job_id: &'static str,
    /// The active slice.
    pub(crate) device: String,
    pub(crate) top_node: String,
    pub(crate) base_node: String,
    /// The base, as the slice above is to name it.
    pub(crate) backing_file: String,
    pub(crate) auto_dismiss: bool,
}

impl QmpCommand for BlockCommit {}
impl Command for BlockCommit {
    const NAME: &'static str = "block-commit";
    const ALLOW_OOB: bool = false;
    type Ok = Empty;
}

/// Copies what lies between the active slice and one below into the active
/// one, and takes it out of the disk.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct BlockStream {
    pub(crate) job_id: &'static str,
    /// The active slice.
    pub(crate) device: String,
    /// Node that it is to lie over; nothing if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_node: Option<String>,
    /// The base, as the active slice is to name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backing_file: Option<String>,
    /// Bytes a second at most; no bound if 0.
    pub(crate) speed: u64,
    pub(crate) auto_dismiss: bool,
}

impl QmpCommand for BlockStream {}
impl Command for BlockStream {
    const NAME: &'static str = "block-stream";
    const ALLOW_OOB: bool = false;
    type Ok = Empty;
}

/// Makes a disk larger or smaller, and tells the guest of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct BlockResize {
    pub(crate) node_name: String,
    pub(crate) size: u64,
}

impl QmpCommand for BlockResize {}
impl Command for BlockResize {
    const NAME: &'static str = "block_resize";
    const ALLOW_OOB: bool = false;
    type Ok = Empty;
}

/// Lists what goes on in the background.
#[derive(Debug, Serialize)]
pub(crate) struct QueryJobs {}

/// Something that goes on in the background.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) status: String,
    /// Done so far, of `total_progress`: bytes of a disk that is copied.
    pub(crate) current_progress: u64,
    pub(crate) total_progress: u64,
    /// Reason why it failed, if it did.
    pub(crate) error: Option<String>,
}

impl QmpCommand for QueryJobs {}
impl Command for QueryJobs {
    const NAME: &'static str = "query-jobs";
    const ALLOW_OOB: bool = false;
    type Ok = Vec<Job>;
}

/// Lists the disks.
#[derive(Debug, Serialize)]
pub(crate) struct QueryBlock {}

/// A disk.
#[derive(Debug, Deserialize)]
pub(crate) struct BlockDevice {
    /// The image it writes to.
    pub(crate) inserted: Option<NamedNode>,
}

impl QmpCommand for QueryBlock {}
impl Command for QueryBlock {
    const NAME: &'static str = "query-block";
    const ALLOW_OOB: bool = false;
    type Ok = Vec<BlockDevice>;
}
