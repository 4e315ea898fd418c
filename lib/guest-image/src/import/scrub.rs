//! A disk that was a VM's, rid of what was that VM's alone.
//!
//! ```text
//! e2fsck (the journal) -> debugfs: what is there -> debugfs: remove, empty -> what is there now
//!      -> e2fsck (free blocks become holes)
//! ```
//!
//! The guest has written the file system: it is never mounted. e2fsprogs read it confined, as
//! no user. Contents of removed files are gone with the blocks that they were in.
//!
//! Names that a guest could have chosen to be read as words of debugfs's are left out: of these
//! characters the lists that are installed name none.

use super::{Cancel, DiskImportError, ImportError, MOST};
use crate::{
    cache::Workplace,
    error::{BuildError, io_error},
    progress::{BuildEvent, Progress},
    run::{Call, DEBUGFS, E2FSCK, Program},
};
use forkyard_confine::{Confinement, Lifespan, NOBODY, Network, Who};
use forkyard_substrate::matches;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::chown,
    path::Path,
};

/// Most files that are removed or emptied, and folders below one that is removed.
const FILES: usize = 100_000;
const DEPTH: usize = 32;
/// File types of a mode.
const TYPE: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// e2fsck's word for errors it has corrected; more it could not.
const CORRECTED: i32 = 1;

/// Lists of what is removed: patterns of absolute paths, in which `*` stands for any part of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Files and folders that are removed.
    pub remove: Vec<String>,
    /// Files that lose what is in them.
    pub empty: Vec<String>,
}

/// Names in a folder, and their modes.
type Names = BTreeMap<String, u32>;

/// Paths to be removed, with their modes, those in a folder before it; and paths to be emptied.
type Found = (Vec<(String, u32)>, Vec<String>);

/// A disk that is scrubbed.
struct Disk<'a> {
    path: &'a Path,
    work: &'a Workplace,
    cancel: &'a Cancel,
}

/// Scrubs a disk that is a file of root's in `work`.
pub(super) fn scrub(
    path: &Path,
    what: &Scrub,
    work: &Workplace,
    cancel: &Cancel,
    progress: Progress<'_>,
) -> Result<(), ImportError> {
    let is_odd = |pattern: &&String| {
        let mut names = pattern.split('/').filter(|name| !name.is_empty());
        !names.all(|name| is_plain(&name.replace('*', "x")))
    };
    if let Some(pattern) = what.remove.iter().chain(&what.empty).find(is_odd) {
        let path = pattern.clone();
        return Err(DiskImportError::NotScrubbed { path }.into());
    }
    chown(path, Some(NOBODY), Some(NOBODY)).map_err(io_error("give away", path))?;
    let disk = Disk { path, work, cancel };
    progress(BuildEvent::Step("reading the journal"));
    disk.check(&[], progress)?;
    progress(BuildEvent::Step("removing what was the VM's alone"));
    let (remove, empty) = disk.find(what, progress)?;
    let mut script = String::new();
    for (path, mode) in &remove {
        let word = if mode & TYPE == FOLDER { "rmdir" } else { "rm" };
        script.push_str(&format!("{word} {path}\n"));
    }
    for path in &empty {
        script.push_str(&format!("punch {path} 0\nsif {path} size 0\n"));
    }
    if !script.is_empty() {
        disk.debugfs(&script, &["-w"], progress)?;
        let (left, _) = disk.find(what, progress)?;
        if let Some((path, _)) = left.into_iter().next() {
            return Err(DiskImportError::NotScrubbed { path }.into());
        }
    }
    progress(BuildEvent::Step("freeing blocks"));
    disk.check(&["-E", "discard"], progress)?;
    chown(path, Some(0), Some(0)).map_err(io_error("take back", path))?;
    Ok(())
}

impl Disk<'_> {
    fn call(&self, program: Program, reads: &[&Path]) -> Result<Call<'_>, BuildError> {
        let call = program.call().confined(Confinement {
            who: Who::Nobody,
            reads,
            writes: &[self.path],
            largest: MOST.0,
            network: Network::None,
            ends: Lifespan::WithStarter,
        })?;
        Ok(call.holding(self.work.lock()).until(self.cancel))
    }

    fn check(&self, more: &[&str], progress: Progress<'_>) -> Result<(), BuildError> {
        let checked = self
            .call(E2FSCK, &[])?
            .args(["-f", "-y"])
            .args(more)
            .arg(self.path)
            .run(progress);
        match checked {
            Err(BuildError::Program { status, .. }) if status.code() == Some(CORRECTED) => Ok(()),
            other => other.map(drop),
        }
    }

    fn debugfs(
        &self,
        script: &str,
        more: &[&str],
        progress: Progress<'_>,
    ) -> Result<String, BuildError> {
        let path = self.work.dir().join("words");
        fs::write(&path, script)
            .and_then(|()| chown(&path, Some(NOBODY), Some(NOBODY)))
            .map_err(io_error("write", &path))?;
        let said = self
            .call(DEBUGFS, &[&path])?
            .env("DEBUGFS_PAGER", "__none__")
            .args(more)
            .arg("-f")
            .arg(&path)
            .arg(self.path)
            .run(progress)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Lists each of these folders that is one.
    fn list(
        &self,
        folders: &BTreeSet<String>,
        progress: Progress<'_>,
    ) -> Result<BTreeMap<String, Names>, BuildError> {
        let script: String = folders
            .iter()
            .map(|folder| format!("ls -p {folder}/\n"))
            .collect();
        let said = match folders.is_empty() {
            true => String::new(),
            false => self.debugfs(&script, &[], progress)?,
        };
        Ok(read(&said))
    }

    /// Finds what is to go.
    fn find(&self, what: &Scrub, progress: Progress<'_>) -> Result<Found, ImportError> {
        let mut found = self.matching(&what.remove, progress)?;
        let mut all = Vec::new();
        for depth in 0.. {
            all.extend(found.iter().map(|(path, mode)| (path.clone(), *mode)));
            let inside = found.iter().filter(|(_, mode)| **mode & TYPE == FOLDER);
            let folders: BTreeSet<String> = inside.map(|(path, _)| path.clone()).collect();
            if folders.is_empty() {
                break;
            }
            let path = || {
                all.last()
                    .map_or_else(String::new, |(path, _)| path.clone())
            };
            if depth == DEPTH || all.len() > FILES {
                return Err(DiskImportError::NotScrubbed { path: path() }.into());
            }
            let listed = self.list(&folders, progress)?;
            let below = listed.into_iter().flat_map(|(folder, names)| {
                let path = move |(name, mode)| (format!("{folder}/{name}"), mode);
                names.into_iter().map(path)
            });
            found = below.collect();
        }
        // What is in a folder comes after it.
        all.reverse();
        let empty = self.matching(&what.empty, progress)?;
        let files = empty.into_iter().filter(|(_, mode)| mode & TYPE == FILE);
        Ok((all, files.map(|(path, _)| path).collect()))
    }

    /// Finds the paths that these patterns match, and their modes.
    fn matching(
        &self,
        patterns: &[String],
        progress: Progress<'_>,
    ) -> Result<BTreeMap<String, u32>, BuildError> {
        // Each with the folders that its first names lead to.
        let mut open: Vec<(Vec<&str>, String)> = patterns
            .iter()
            .map(|pattern| {
                let names = pattern.split('/').filter(|name| !name.is_empty());
                (names.collect(), String::new())
            })
            .collect();
        let mut found = BTreeMap::new();
        while !open.is_empty() {
            let folders: BTreeSet<String> = open.iter().map(|(_, at)| at.clone()).collect();
            let listed = self.list(&folders, progress)?;
            let mut next = Vec::new();
            for (names, at) in open {
                let (Some((first, rest)), Some(there)) = (names.split_first(), listed.get(&at))
                else {
                    continue;
                };
                for (name, mode) in there.iter().filter(|(name, _)| matches(first, name)) {
                    let path = format!("{at}/{name}");
                    match (rest.is_empty(), mode & TYPE) {
                        (true, _) => drop(found.insert(path, *mode)),
                        (false, FOLDER) => next.push((rest.to_vec(), path)),
                        // If it leads to no folder, there is nothing in it. Without the dot
                        // debugfs would remove nothing behind it.
                        (false, LINK) => next.push((rest.to_vec(), format!("{path}/."))),
                        (false, _) => {}
                    }
                }
            }
            open = next;
        }
        Ok(found)
    }
}

/// Reads the answers of debugfs to `ls -p`, folder by folder.
fn read(said: &str) -> BTreeMap<String, Names> {
    let mut folders = BTreeMap::<String, Names>::new();
    let mut folder = None;
    for line in said.lines() {
        if let Some(asked) = line.strip_prefix("debugfs: ls -p ") {
            folder = asked.strip_suffix('/').map(str::to_owned);
            continue;
        }
        let mut fields = line.split('/');
        let (Some(""), Some(_), Some(mode), Some(_), Some(_), Some(name)) = (
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            continue;
        };
        let Ok(mode) = u32::from_str_radix(mode, 8) else {
            continue;
        };
        if let Some(folder) = &folder
            && is_plain(name)
        {
            let names = folders.entry(folder.clone()).or_default();
            names.insert(name.to_owned(), mode);
        }
    }
    folders
}

/// True of a name that is one word to debugfs, and its own.
fn is_plain(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+' | b'@');
    !matches!(name, "" | "." | "..") && name.bytes().all(letter)
}

#[cfg(test)]
mod tests;
