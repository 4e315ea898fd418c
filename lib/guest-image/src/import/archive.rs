//! An archive of a container image: what is in it, found without unpacking it,
//! and each part checked against the digest it is known by.

use super::{ArchiveError, digest::Digest, error::unreadable};
use forkyard_files::{EntryKind, Reader};
use forkyard_types::plainly;
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
};

/// Most parts of an archive.
const PARTS: usize = 20_000;
/// Most bytes of a part that is JSON.
const JSON: u64 = 4 << 20;
/// Most links from one part to another.
const LINKS: usize = 8;
/// Most bytes of a part's name.
const LONGEST: usize = 4096;

/// Place of a part.
#[derive(Debug)]
enum Part {
    Bytes { start: u64, size: u64 },
    Link(String),
}

/// An archive in a file.
#[derive(Debug)]
pub(super) struct Parts {
    file: File,
    parts: BTreeMap<String, Part>,
}

impl Parts {
    /// Finds the parts.
    pub fn of(file: File) -> Result<Self, ArchiveError> {
        let tar = |source| ArchiveError::Tar { source };
        let mut parts = BTreeMap::new();
        let from = io::BufReader::new(file.try_clone().map_err(tar)?);
        let mut reader = Reader::new(from).open_ended();
        let read = |error| tar(unreadable(error));
        while let Some(entry) = reader.next_entry().map_err(read)? {
            let Some(name) = plain(as_path(&entry.path)) else {
                continue;
            };
            let part = match entry.kind {
                EntryKind::File {
                    size,
                    extents: None,
                } => Part::Bytes {
                    start: reader.source().stream_position().map_err(tar)?,
                    size,
                },
                // `docker save` has one for a layer that is there twice.
                EntryKind::Link(target) => {
                    let above = Path::new(&name).parent().unwrap_or(Path::new(""));
                    match plain(&above.join(as_path(&target))) {
                        Some(target) => Part::Link(target),
                        None => continue,
                    }
                }
                EntryKind::File {
                    extents: Some(_), ..
                } => {
                    return Err(tar(io::Error::other("it has a file with holes")));
                }
                EntryKind::Folder | EntryKind::Same(_) | EntryKind::Fifo | EntryKind::Device => {
                    continue;
                }
            };
            if name.len() > LONGEST {
                return Err(tar(io::Error::other(
                    "a name in it is longer than names are",
                )));
            }
            if parts.len() == PARTS {
                return Err(tar(io::Error::other("it has too many entries")));
            }
            parts.insert(name, part);
        }
        Ok(Self { file, parts })
    }

    /// Tells whether there is such a part.
    pub fn has(&self, name: &str) -> bool {
        self.parts.contains_key(name)
    }

    fn place(&self, name: &str) -> Result<(u64, u64), ArchiveError> {
        let mut at = name;
        for _ in 0..LINKS {
            match self.parts.get(at) {
                Some(Part::Bytes { start, size }) => return Ok((*start, *size)),
                Some(Part::Link(target)) => at = target,
                None => break,
            }
        }
        Err(ArchiveError::Missing {
            name: name.to_owned(),
        })
    }

    /// A part, and its size.
    pub fn open(&self, name: &str) -> Result<(impl Read, u64), ArchiveError> {
        let (start, size) = self.place(name)?;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(start))
            .map_err(|source| ArchiveError::Tar { source })?;
        Ok((io::BufReader::new(file.take(size)), size))
    }

    /// Makes sure that a part is the one that is meant.
    pub fn verify(
        &self,
        name: &str,
        wanted: Digest,
        size: Option<u64>,
    ) -> Result<(), ArchiveError> {
        let (from, found) = self.open(name)?;
        if let Some(wanted) = size
            && wanted != found
        {
            let name = name.to_owned();
            return Err(ArchiveError::Size {
                name,
                found,
                wanted,
            });
        }
        let found = Digest::of(from).map_err(|source| ArchiveError::Tar { source })?;
        match found == wanted {
            true => Ok(()),
            false => Err(ArchiveError::Digest {
                name: name.to_owned(),
                found,
                wanted,
            }),
        }
    }

    /// A part that is JSON.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, ArchiveError> {
        let (mut from, size) = self.open(name)?;
        let name = || name.to_owned();
        if size > JSON {
            return Err(ArchiveError::PartTooLarge { name: name() });
        }
        let mut text = Vec::new();
        from.read_to_end(&mut text)
            .map_err(|source| ArchiveError::Tar { source })?;
        serde_json::from_slice(&text).map_err(|error| ArchiveError::Json {
            name: name(),
            why: plainly(&error.to_string()),
        })
    }
}

/// A path of an archive.
pub(super) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// A name in an archive without what says nothing; none if it is no name.
pub(super) fn plain(path: &Path) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => {
                names.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}
