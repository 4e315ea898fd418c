//! Destinations, as `docker cp` has them.

use crate::{Entry, EntryKind, FilesError, special::cannot_be_replaced};
use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::FileTypeExt as _},
    },
    path::{Path, PathBuf},
};

/// Deepest member.
const DEEPEST: usize = 512;

/// Members that a reader asked for.
#[derive(Clone, Copy, Debug)]
pub enum WantedMembers<'a> {
    /// Whatever the stream has: its sender is believed.
    Any,
    /// One file or folder of this name.
    Named(&'a OsStr),
    /// The content of a folder.
    Contents,
}

/// Destination of a copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyTarget<'a> {
    /// A folder that exists takes what comes; else what comes gets this name.
    pub path: &'a Path,
    /// Members that may come.
    pub wanted: WantedMembers<'a>,
}

/// Folder of members, once the first of them is known.
#[derive(Debug)]
pub(crate) struct Base {
    /// Folder that all of them lie below, and its path for people.
    pub dir: OwnedFd,
    pub path: PathBuf,
    /// Name that the first part of each path must have.
    first: Option<Vec<u8>>,
    /// Name that it gets instead.
    renamed: Option<OsString>,
    /// True if a new folder is to appear only when it is whole.
    pub staged: bool,
    /// A device, FIFO, open file or file of the kernel's that takes a file's content, and stays what it is.
    pub through: Option<PathBuf>,
}

impl CopyTarget<'_> {
    /// Finds where a stream that begins with this member goes.
    pub(crate) fn base(&self, entry: &Entry) -> Result<Base, FilesError> {
        let parts = parts(&entry.path)?;
        let contents = parts.is_empty();
        let folder = entry.kind == EntryKind::Folder;
        let unasked = || FilesError::Unasked {
            path: shown(&entry.path),
        };
        let first = match (self.wanted, parts.first()) {
            (WantedMembers::Any, first) => first.map(|name| name.to_vec()),
            (WantedMembers::Named(name), Some(first)) if name.as_bytes() == *first => {
                Some(first.to_vec())
            }
            (WantedMembers::Contents, None) if folder => None,
            (WantedMembers::Named(_) | WantedMembers::Contents, _) => return Err(unasked()),
        };
        // A link of that name would have the next write go where it leads.
        let plain = folder || matches!(entry.kind, EntryKind::File { .. });
        if !plain && !matches!(self.wanted, WantedMembers::Any) {
            return Err(unasked());
        }
        let path = match self.path.as_os_str().is_empty() {
            true => Path::new("."),
            false => self.path,
        };
        let place = |why| FilesError::Place {
            path: path.into(),
            why,
        };
        let bytes = path.as_os_str().as_bytes();
        let must_be_folder = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        let existing = match fs::metadata(path) {
            Ok(about) if about.file_type().is_socket() => {
                return Err(place("it is a socket"));
            }
            Ok(about) if about.is_dir() => Some(There::Folder),
            Ok(about) if about.is_file() && !is_open_file(path) => Some(There::File),
            Ok(_) => Some(There::Stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => {
                return Err(FilesError::Write {
                    path: path.into(),
                    source,
                });
            }
        };
        let whole = match existing {
            Some(There::Stream) => {
                if folder || must_be_folder {
                    return Err(place("it is a device or FIFO, and what comes is a folder"));
                }
                return into(first, path.into());
            }
            Some(There::Folder) => {
                return Ok(Base {
                    dir: folder_at(path)?,
                    path: path.into(),
                    // Of a sender that is believed, any number of members.
                    first: first.filter(|_| matches!(self.wanted, WantedMembers::Named(_))),
                    renamed: None,
                    staged: !contents,
                    through: None,
                });
            }
            Some(There::File) if folder => {
                return Err(place("it is a file, and what comes is a folder"));
            }
            Some(There::File) if must_be_folder => return Err(place("it is no folder")),
            // Where a link leads: the link itself stays.
            Some(There::File) => fs::canonicalize(path).map_err(|source| FilesError::Write {
                path: path.into(),
                source,
            })?,
            None if path.symlink_metadata().is_ok() => {
                return Err(place("it is a link that leads nowhere"));
            }
            None if must_be_folder && !folder => return Err(place("there is no such folder")),
            None => path.to_owned(),
        };
        if existing.is_some() && cannot_be_replaced(&whole) {
            return into(first, whole);
        }
        let name = whole.file_name().ok_or_else(|| place("it has no name"))?;
        let above = match whole.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        Ok(Base {
            dir: folder_at(above)?,
            path: above.into(),
            first,
            renamed: Some(name.to_owned()),
            staged: true,
            through: None,
        })
    }
}

/// Destination that takes a file's content itself.
fn into(first: Option<Vec<u8>>, path: PathBuf) -> Result<Base, FilesError> {
    Ok(Base {
        dir: folder_at(Path::new("."))?,
        path: path.clone(),
        first,
        renamed: None,
        staged: false,
        through: Some(path),
    })
}

/// Kinds of destinations that exist.
enum There {
    Folder,
    File,
    /// A device, FIFO or file that a process has open.
    Stream,
}

/// Tells whether a path is a link to what a process has open, as /dev/stdout is: writing there means
/// writing into that, not replacing it.
fn is_open_file(path: &Path) -> bool {
    let mut path = path.to_owned();
    for _ in 0..8 {
        let Ok(to) = fs::read_link(&path) else {
            return false;
        };
        if path.starts_with("/proc") || path.starts_with("/dev/fd") {
            return true;
        }
        path = path.parent().unwrap_or(Path::new("/")).join(to);
    }
    false
}

impl Base {
    /// Parts of a member's path below the folder; none at all: the folder itself.
    pub(crate) fn below(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, FilesError> {
        let mut parts: Vec<_> = parts(path)?.into_iter().map(<[u8]>::to_vec).collect();
        if let Some(first) = &self.first
            && parts.first() != Some(first)
        {
            return Err(FilesError::Unasked { path: shown(path) });
        }
        if let Some(renamed) = &self.renamed {
            let renamed = renamed.as_bytes().to_vec();
            match (&self.first, parts.first_mut()) {
                (Some(_), Some(first)) => *first = renamed,
                _ => parts.insert(0, renamed),
            }
        }
        Ok(parts)
    }
}

fn folder_at(path: &Path) -> Result<OwnedFd, FilesError> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|error| match error == nix::errno::Errno::ENOENT {
        true => FilesError::Place {
            path: path.into(),
            why: "there is no such folder",
        },
        false => FilesError::Write {
            path: path.into(),
            source: error.into(),
        },
    })
}

/// Names in a path, from the top. None of them leads upwards.
fn parts(path: &[u8]) -> Result<Vec<&[u8]>, FilesError> {
    let parts: Vec<_> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    if parts.len() > DEEPEST || parts.contains(&&b".."[..]) || path.contains(&0) {
        return Err(FilesError::Unasked { path: shown(path) });
    }
    Ok(parts)
}

/// A path of a stranger's, for people.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned()
}
