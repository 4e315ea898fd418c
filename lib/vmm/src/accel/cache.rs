//! Proofs already made. One file, for all kernels; a file that cannot be read
//! is as good as none.

use super::Verdict;
use crate::VmmError;
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt, path::Path};

type Proofs = BTreeMap<String, Verdict>;

/// Computes the key of a proof, from all that it depends on: the guest's
/// kernel, the host's, the device, and QEMU, by its version.
pub(super) fn key(kernel: &Path, qemu: &str) -> Result<String, VmmError> {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    let file = fs::metadata(kernel).map_err(VmmError::io("look at", kernel))?;
    let host = fs::read_to_string(RELEASE).map_err(VmmError::io("read", RELEASE))?;
    let access = fs::metadata(super::DEVICE).map(|device| (device.mode(), device.gid()));
    Ok(format!(
        "{} size {} mtime {}.{:09} on {} device {:?} by {qemu}",
        kernel.display(),
        file.size(),
        file.mtime(),
        file.mtime_nsec(),
        host.trim(),
        access.ok(),
    ))
}

pub(super) fn recall(cache: &Path, key: &str) -> Option<Verdict> {
    read(cache).remove(key)
}

/// Adds a proof. The file is replaced whole, so a reader sees the old or the new.
pub(super) fn remember(cache: &Path, key: String, verdict: &Verdict) -> Result<(), VmmError> {
    let mut proofs = read(cache);
    proofs.insert(key, verdict.clone());
    let text = serde_json::to_vec_pretty(&proofs)
        .map_err(|error| VmmError::io("write", cache)(error.into()))?;
    let draft = cache.with_extension("new");
    fs::write(&draft, text).map_err(VmmError::io("write", &draft))?;
    fs::rename(&draft, cache).map_err(VmmError::io("replace", cache))
}

fn read(cache: &Path) -> Proofs {
    fs::read(cache)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accel;

    const QEMU: &str = "QEMU emulator version 7.2.0";

    #[test]
    fn what_is_remembered_is_recalled_beside_what_was() {
        let dir = tempfile::tempdir().expect("dir");
        let cache = dir.path().join("accel.json");
        let verdict = Verdict::new(Accel::Tcg, "stalled");
        remember(&cache, "a".into(), &verdict).expect("written");
        remember(&cache, "b".into(), &verdict).expect("written");
        assert_eq!(recall(&cache, "a"), Some(verdict));
        assert_eq!(recall(&cache, "c"), None);
    }

    #[test]
    fn a_damaged_file_is_no_proof() {
        let dir = tempfile::tempdir().expect("dir");
        let cache = dir.path().join("accel.json");
        fs::write(&cache, "{\"a\": 7").expect("written");
        assert_eq!(recall(&cache, "a"), None);
    }

    #[test]
    fn another_kernel_needs_another_proof() {
        let dir = tempfile::tempdir().expect("dir");
        let kernel = dir.path().join("vmlinuz");
        fs::write(&kernel, "one").expect("written");
        let one = key(&kernel, QEMU);
        fs::write(&kernel, "another").expect("written");
        let other = key(&kernel, QEMU);
        assert_ne!(one.expect("a file"), other.expect("a file"));
    }

    #[test]
    fn another_qemu_needs_another_proof() {
        let dir = tempfile::tempdir().expect("dir");
        let kernel = dir.path().join("vmlinuz");
        fs::write(&kernel, "one").expect("written");
        let with = |qemu| key(&kernel, qemu).expect("a file");
        assert_eq!(with(QEMU), with(QEMU));
        assert_ne!(with(QEMU), with("QEMU emulator version 10.0.0"));
    }
}
