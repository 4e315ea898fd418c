//! Space on the disk for what is built.
//!
//! A compiler that finds none says so after minutes, and not how much it takes.

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;
use std::{
    collections::HashSet,
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const MIB: u64 = 1 << 20;
/// Tells cargo to keep nothing for incremental builds if it is 0.
const ONCE: &str = "CARGO_INCREMENTAL";

/// Space in `target/` that a chore takes which begins with nothing.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// As measured, with what is kept for incremental builds.
    whole: u64,
    /// As measured, without that.
    once: u64,
    /// Never less, however cargo is configured.
    least: u64,
}

/// For the programs.
pub const DIST: Need = Need {
    whole: 3000 * MIB,
    once: 2000 * MIB,
    least: 800 * MIB,
};
/// For the programs, tests and checks.
pub const TEST: Need = Need {
    whole: 8000 * MIB,
    once: 4500 * MIB,
    least: 2000 * MIB,
};

/// Verdict on a disk's room for the work.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Enough,
    /// So much less than was measured.
    Scarce(u64),
    /// The disk has too little: it cannot work.
    Impossible,
}

impl Need {
    /// Prints how much there is and how much it takes; an error if it certainly is too little.
    pub fn check(self, root: &Path) -> Result<()> {
        let target = root.join("target");
        fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
        let disk = statvfs(&target).with_context(|| target.display().to_string())?;
        let free = disk.blocks_available() * disk.fragment_size();
        let there = size(&target).with_context(|| target.display().to_string())?;
        eprintln!(
            "disk: {} free for {}, which has {} and grows to {}",
            told(free),
            target.display(),
            told(there),
            told(self.expected())
        );
        let advice = format!(
            "remove what else is on that disk, or make {} a link to a folder on another; \
             with {ONCE}=0 in the environment, as .ci/run has it, it grows to {}",
            target.display(),
            told(self.once)
        );
        match self.judge(free, there) {
            Verdict::Enough => {}
            Verdict::Scarce(lacking) => {
                eprintln!("disk: {} more may be needed: {advice}", told(lacking));
            }
            Verdict::Impossible => bail!(
                "no space: it takes {} at least, and there is {}: {advice}",
                told(self.least),
                told(free + there)
            ),
        }
        Ok(())
    }

    fn expected(self) -> u64 {
        match env::var_os(ONCE) {
            Some(value) if value == "0" => self.once,
            Some(_) | None => self.whole,
        }
    }

    /// Judges by what is free and what is there already. That may be out of date, and then
    /// does not help: it is not known how much.
    fn judge(self, free: u64, there: u64) -> Verdict {
        if free + there < self.least {
            return Verdict::Impossible;
        }
        match self.expected().saturating_sub(free + there) {
            0 => Verdict::Enough,
            lacking => Verdict::Scarce(lacking),
        }
    }
}

/// Space that a folder takes, with all in it. A file of several names counts once.
fn size(folder: &Path) -> io::Result<u64> {
    let mut known = HashSet::new();
    let mut sum = 0;
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // What another cargo removes meanwhile takes nothing.
            let Ok(meta) = entry.metadata() else { continue };
            if known.insert(meta.ino()) {
                sum += meta.blocks() * 512;
            }
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(sum)
}

fn told(bytes: u64) -> String {
    if bytes < 1024 * MIB {
        return format!("{} MiB", bytes / MIB);
    }
    let tenths = bytes * 10 / (1024 * MIB);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_counts_and_only_what_cannot_work_is_refused() {
        let need = Need {
            whole: 100,
            once: 100,
            least: 40,
        };
        assert_eq!(need.judge(100, 0), Verdict::Enough);
        assert_eq!(need.judge(5, 95), Verdict::Enough);
        assert_eq!(need.judge(50, 20), Verdict::Scarce(30));
        assert_eq!(need.judge(40, 0), Verdict::Scarce(60));
        assert_eq!(need.judge(20, 19), Verdict::Impossible);
    }

    #[test]
    fn a_file_of_two_names_counts_once_and_folders_with_all_in_them() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        let empty = size(dir.path()).expect("read");
        let file = dir.path().join("a/b/c");
        fs::write(&file, vec![1; 64 << 10]).expect("written");
        fs::hard_link(&file, dir.path().join("d")).expect("linked");
        let full = size(dir.path()).expect("read");
        assert!((64 << 10..96 << 10).contains(&(full - empty)), "{full}");
    }

    #[test]
    fn sizes_are_told_in_units_that_suit_them() {
        assert_eq!(told(287 * MIB), "287 MiB");
        assert_eq!(told(8000 * MIB), "7.8 GiB");
    }
}
