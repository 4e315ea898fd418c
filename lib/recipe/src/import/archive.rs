//! An archive of a container image: what is in it, found without unpacking it,
//! and each part checked against the digest it is known by.

use super::{ArchiveError, digest::Digest, metered::Tar};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Component, Path},
};
use tar::EntryType;

/// Most parts of an archive.
const PARTS: usize = 20_000;
/// Most bytes of a part that is JSON.
const JSON: u64 = 4 << 20;
/// Most links from one part to another.
const LINKS: usize = 8;

/// Where a part is.
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
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "tar may learn of other kinds"
    )]
    pub fn of(mut file: File) -> Result<Self, ArchiveError> {
        let tar = |source| ArchiveError::Tar { source };
        let mut magic = [0; 4];
        let head = file.read(&mut magic).map_err(tar)?;
        if compression(&magic[..head]) != Compression::None {
            return Err(ArchiveError::Compressed);
        }
        file.seek(SeekFrom::Start(0)).map_err(tar)?;
        let mut parts = BTreeMap::new();
        let reader = file.try_clone().map_err(tar)?;
        let each = Tar::new(io::BufReader::new(reader)).each::<io::Error>(|entry| {
            let kind = entry.header().entry_type();
            let Some(name) = plain(&entry.path()?) else {
                return Ok(());
            };
            let part = match kind {
                EntryType::Regular | EntryType::Continuous => Part::Bytes {
                    start: entry.raw_file_position(),
                    size: entry.size(),
                },
                // `docker save` has one for a layer that is there twice.
                EntryType::Symlink => match entry.link_name()? {
                    Some(target) => {
                        let above = Path::new(&name).parent().unwrap_or(Path::new(""));
                        let Some(target) = plain(&above.join(target)) else {
                            return Ok(());
                        };
                        Part::Link(target)
                    }
                    None => return Ok(()),
                },
                // It would unpack to any size at all.
                EntryType::GNUSparse => return Err(io::Error::other("it has a sparse file")),
                _ => return Ok(()),
            };
            if parts.len() == PARTS {
                return Err(io::Error::other("it has too many entries"));
            }
            parts.insert(name, part);
            Ok(())
        });
        each.map_err(tar)?;
        Ok(Self { file, parts })
    }

    /// Whether there is such a part.
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
        serde_json::from_slice(&text).map_err(|source| ArchiveError::Json {
            name: name(),
            source,
        })
    }
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

/// How a part is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// By how it begins, for archives of old name the kind of a layer wrongly. A
/// tar begins with a name, and none begins like that.
pub(super) fn compression(head: &[u8]) -> Compression {
    match head {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}
