//! Header of a qcow2 disk, read before any program believes it.
//!
//! A disk of unknown origin may name any file of the host as the one it lies
//! over, or as the one its data is in: a program that converts it would copy that
//! file. So it is read here first, and must need no file but itself.

use super::DiskImportError;
use forkyard_types::ByteCount;
use std::{fs::File, io, os::unix::fs::FileExt};

/// Bytes of a header of version 3 that matter.
const HEADER: usize = 104;
const MAGIC: &[u8; 4] = b"QFI\xfb";
/// In `incompatible_features`: the data is in another file.
const DATA_FILE: u64 = 1 << 2;

/// Tells whether a qcow2 disk begins like this.
pub fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Size of the disk in a qcow2 file that needs no other.
pub fn alone(file: &File) -> io::Result<Result<ByteCount, DiskImportError>> {
    let mut header = [0; HEADER];
    let mut there = 0;
    while there < HEADER {
        match file.read_at(&mut header[there..], there as u64)? {
            0 => break,
            read => there += read,
        }
    }
    Ok(judge(&header[..there]))
}

fn judge(header: &[u8]) -> Result<ByteCount, DiskImportError> {
    let long = |at: usize| -> Result<u64, DiskImportError> {
        let bytes = header.get(at..).and_then(|rest| rest.first_chunk());
        bytes
            .map(|b| u64::from_be_bytes(*b))
            .ok_or(DiskImportError::NotQcow2)
    };
    let word = |at: usize| Ok::<_, DiskImportError>(long(at)? >> 32);
    if !begins(header) || !(2..=3).contains(&word(4)?) {
        return Err(DiskImportError::NotQcow2);
    }
    if long(8)? != 0 || word(16)? != 0 {
        return Err(DiskImportError::NeedsAnother(
            "the one it lies over, its backing file",
        ));
    }
    if word(32)? != 0 {
        return Err(DiskImportError::Encrypted);
    }
    if word(4)? == 3 && long(72)? & DATA_FILE != 0 {
        return Err(DiskImportError::NeedsAnother("the one with its data"));
    }
    Ok(ByteCount(long(24)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{path::Path, process::Command};

    /// Value in a header of a disk that is encrypted by LUKS.
    const LUKS: u32 = 2;

    /// A qcow2 disk, made by qemu-img itself.
    fn made(dir: &Path, words: &[&str]) -> File {
        let path = dir.join("disk");
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .args(words)
            .arg(&path)
            .arg("7M")
            .current_dir(dir)
            .output()
            .expect("installed");
        assert!(made.status.success(), "{made:?}");
        File::open(path).expect("there")
    }

    fn judged(words: &[&str]) -> Result<ByteCount, DiskImportError> {
        let dir = tempfile::tempdir().expect("a directory");
        File::create(dir.path().join("base"))
            .and_then(|base| base.set_len(7 << 20))
            .expect("made");
        alone(&made(dir.path(), words)).expect("read")
    }

    #[test]
    fn a_disk_that_needs_no_other_file_tells_its_size() {
        for version in [
            "compat=0.10",
            "compat=1.1",
            "extended_l2=on,cluster_size=128k",
        ] {
            assert_eq!(
                judged(&["-o", version]),
                Ok(ByteCount(7 << 20)),
                "{version}"
            );
        }
    }

    #[test]
    fn a_disk_that_needs_another_file_is_refused() {
        let over = judged(&["-b", "base", "-F", "raw"]);
        assert!(
            matches!(over, Err(DiskImportError::NeedsAnother(_))),
            "{over:?}"
        );
        let apart = judged(&["-o", "data_file=elsewhere"]);
        assert!(
            matches!(apart, Err(DiskImportError::NeedsAnother(_))),
            "{apart:?}"
        );
    }

    #[test]
    fn an_encrypted_disk_is_refused() {
        // LUKS wants to measure how fast the machine is first, and a busy one is none
        // that it can tell of.
        let words = [
            "--object",
            "secret,id=s,data=x",
            "-o",
            "encrypt.format=aes,encrypt.key-secret=s",
        ];
        assert_eq!(judged(&words), Err(DiskImportError::Encrypted));
        let dir = tempfile::tempdir().expect("a directory");
        let plain = made(dir.path(), &[]);
        let mut header = [0; HEADER];
        plain.read_exact_at(&mut header, 0).expect("read");
        judge(&header).expect("plain");
        header[32..36].copy_from_slice(&LUKS.to_be_bytes());
        assert_eq!(judge(&header), Err(DiskImportError::Encrypted));
    }

    proptest! {
        #[test]
        fn whatever_begins_so_is_judged_without_a_panic(rest in prop::collection::vec(any::<u8>(), 0..HEADER)) {
            let bytes = [&MAGIC[..], &rest].concat();
            let _ = judge(&bytes);
        }

        #[test]
        fn what_begins_otherwise_is_none(bytes in prop::collection::vec(any::<u8>(), 0..HEADER)) {
            prop_assume!(!begins(&bytes));
            prop_assert_eq!(judge(&bytes), Err(DiskImportError::NotQcow2));
        }
    }
}
