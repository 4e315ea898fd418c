//! Secrets that a clone must not inherit: files are overwritten where they are,
//! and removed.
//!
//! Overwritten and written through to the disk before they are removed, so
//! that the blocks do not hold the secret for a reader of the disk past the
//! file system. That holds where a file system writes in place, as ext4 and
//! tmpfs do. What programs have read into their memory stays there.

use crate::{
    foreign,
    init::{Outcome, doing},
};
use std::{
    fs,
    io::{self, Write},
    path::Path,
};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Scrubs a file, or all in a folder. A link is followed to what it names, but
/// not those found in a folder. Nothing there is nothing to do.
pub fn scrub(path: &Path) -> Outcome {
    let what = || format!("scrub {}", path.display());
    let link = match path.symlink_metadata() {
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(doing(what())(error)),
        Ok(facts) => facts.is_symlink(),
    };
    let done = match link {
        true => path
            .canonicalize()
            .and_then(|target| remove(&target))
            .or_else(|error| {
                if is_absent(&error) {
                    Ok(())
                } else {
                    Err(error)
                }
            })
            .and_then(|()| fs::remove_file(path)),
        false => remove(path),
    };
    done.map_err(doing(what()))
}

/// Overwrites and empties a file, which stays.
pub fn empty(path: &Path) -> io::Result<()> {
    overwrite(path, path.metadata()?.len())?;
    foreign::to_write(path)?.set_len(0)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn remove(path: &Path) -> io::Result<()> {
    let facts = path.symlink_metadata()?;
    if facts.is_dir() {
        for entry in fs::read_dir(path)? {
            remove(&entry?.path())?;
        }
        return match fs::remove_dir(path) {
            // Something is mounted there: what was in it is gone all the same.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            done => done,
        };
    }
    if facts.is_file() {
        overwrite(path, facts.len())?;
    }
    fs::remove_file(path)
}

fn overwrite(path: &Path, length: u64) -> io::Result<()> {
    let mut file = foreign::to_write(path)?;
    let mut left = length;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
        file.write_all(&ZEROS[..part])?;
        left -= part as u64;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read, os::unix::fs::symlink};

    #[test]
    fn a_file_is_gone_and_whoever_has_it_open_reads_zeros() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        fs::write(&path, vec![b'k'; 100_000]).expect("written");
        let mut open = File::open(&path).expect("open");
        scrub(&path).expect("scrubbed");
        assert!(!path.exists());
        let mut read = Vec::new();
        open.read_to_end(&mut read).expect("read");
        assert_eq!(read, vec![0; 100_000]);
    }

    #[test]
    fn a_folder_goes_with_all_in_it_and_nothing_its_links_name() {
        let folder = tempfile::tempdir().expect("folder");
        let [secret, other] = ["secret", "other"].map(|name| folder.path().join(name));
        fs::create_dir_all(secret.join("deep")).expect("made");
        fs::write(secret.join("deep/key"), "key").expect("written");
        fs::write(&other, "kept").expect("written");
        symlink(&other, secret.join("link")).expect("linked");
        scrub(&secret).expect("scrubbed");
        assert!(!secret.exists());
        assert_eq!(fs::read(&other).expect("kept"), b"kept");
    }

    #[test]
    fn a_link_that_was_named_goes_with_its_target() {
        let folder = tempfile::tempdir().expect("folder");
        let [key, link, loose] = ["key", "link", "loose"].map(|name| folder.path().join(name));
        fs::write(&key, "key").expect("written");
        symlink(&key, &link).expect("linked");
        symlink(folder.path().join("nothing"), &loose).expect("linked");
        scrub(&link).expect("scrubbed");
        scrub(&loose).expect("scrubbed");
        assert!(!key.exists() && link.symlink_metadata().is_err());
        assert!(loose.symlink_metadata().is_err());
    }

    #[test]
    fn what_is_not_there_needs_no_scrubbing() {
        scrub(Path::new("/nowhere/at/all")).expect("nothing to do");
        scrub(Path::new("/etc/passwd/key")).expect("nothing to do");
    }
}
