//! Disks that slices lie over, as programs are told to open them.

use crate::DiskError;
use forkyard_types::ByteCount;
use std::{fmt, fs::File, os::unix::fs::FileExt, path::PathBuf};

/// File that a slice lies over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Path of the file; absolute, for it is written into the slice.
    pub path: PathBuf,
    /// Format of the file. Never guessed: a guest decides what a raw disk looks
    /// like.
    pub format: Format,
}

/// Format of a disk in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// As it is.
    Raw,
    /// As a slice.
    Qcow2,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

/// A chain as QEMU opens it, each slice over the next whatever is written in it.
pub(crate) fn opened(chain: &[Backing]) -> Option<String> {
    let node = chain.iter().rev().fold(None, |below, slice| {
        let path = slice.path.to_str().unwrap_or_default();
        let mut node = serde_json::json!({
            "driver": slice.format.to_string(),
            "file": {"driver": "file", "filename": path},
        });
        if slice.format == Format::Qcow2 {
            node["backing"] = below.unwrap_or(serde_json::Value::Null);
        }
        Some(node)
    });
    node.map(|node| format!("json:{node}"))
}

impl Backing {
    /// A slice may also say that its data is in another file.
    pub(crate) fn refuse_data_elsewhere(&self) -> Result<(), DiskError> {
        if self.format == Format::Raw {
            return Ok(());
        }
        let mut header = [0; 80];
        File::open(&self.path)
            .and_then(|file| file.read_exact_at(&mut header, 0))
            .map_err(DiskError::io("read", &self.path))?;
        // Bit 2 of `incompatible_features`; a slice is of version 3.
        match header[79] & 4 {
            0 => Ok(()),
            _ => Err(DiskError::NotQcow2 {
                path: self.path.clone(),
            }),
        }
    }

    /// Size of the disk in it. Blocks for one small read.
    pub fn size(&self) -> Result<ByteCount, DiskError> {
        let file = File::open(&self.path).map_err(DiskError::io("open", &self.path))?;
        match self.format {
            Format::Raw => {
                let file = file
                    .metadata()
                    .map_err(DiskError::io("look at", &self.path))?;
                Ok(ByteCount(file.len()))
            }
            Format::Qcow2 => {
                let mut header = [0; 32];
                file.read_exact_at(&mut header, 0)
                    .map_err(DiskError::io("read", &self.path))?;
                qcow2_size(&header).ok_or_else(|| DiskError::NotQcow2 {
                    path: self.path.clone(),
                })
            }
        }
    }
}

/// Size of the disk that a header of qcow2, version 2 or 3, promises.
fn qcow2_size(header: &[u8; 32]) -> Option<ByteCount> {
    let magic = header.first_chunk::<4>()?;
    let size = header.get(24..)?.first_chunk::<8>()?;
    (magic == b"QFI\xfb").then_some(ByteCount(u64::from_be_bytes(*size)))
}
