//! Part of an identity: what a machine has that its guest does not know of.

use forkyard_types::ByteCount;
use serde::{Deserialize, Serialize};

/// Memory, vCPUs and disk that a machine was given while its guest stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Memory that was added.
    pub memory: ByteCount,
    /// vCPUs to have online in all.
    pub vcpus: u8,
    /// Root disk that it has in all; 0: as large as it was.
    pub disk: ByteCount,
}
