//! A tar stream, unpacked below one folder.
//!
//! Folders are opened one name at a time, links never followed; a file is written
//! under another name and renamed, so nothing is written through a link or into a
//! file that was there. A new folder appears when it is whole. If anything fails, what is
//! not whole is removed; what was whole before stays.

use crate::{CopyTarget, Entry, EntryKind, FilesError, Half, PIECE, Reader, place::Base, special};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, renameat},
    sys::{
        stat::{Mode, UtimensatFlags, fchmod, fstatat, futimens, mkdirat, utimensat},
        time::TimeSpec,
    },
    unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
};

/// Permission bits that an unpacked file keeps, whatever the umask: all but set-id bits, with
/// which a guest's program would run here as another user.
const KEPT: u32 = 0o1777;

/// Account of a stream that was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files and links.
    pub files: u64,
    /// Bytes of files, holes left out.
    pub bytes: u64,
}

/// Unpacks a stream. `said` is told what the sender left out, and what was left
/// out here.
pub fn unpack(
    mut reader: Reader<impl Read>,
    target: CopyTarget<'_>,
    said: &mut dyn FnMut(String),
) -> Result<Unpacked, FilesError> {
    let Some(first) = reader.next_entry()? else {
        return Err(FilesError::Short);
    };
    let base = target.base(&first)?;
    if let Some(path) = &base.through {
        return special::through(&mut reader, &first, path, said);
    }
    let mut tree = Tree {
        base,
        open: Vec::new(),
        stage: None,
        done: Unpacked::default(),
        buffer: vec![0; PIECE],
    };
    let mut next = Some(first);
    while let Some(entry) = next {
        reader.notes.drain(..).for_each(&mut *said);
        tree.take(&mut reader, &entry, said)?;
        next = reader.next_entry()?;
    }
    reader.notes.drain(..).for_each(&mut *said);
    reader.drain()?;
    tree.close_to(0)?;
    Ok(tree.done)
}

struct Tree {
    base: Base,
    /// Folders from the base down to the present member.
    open: Vec<Folder>,
    stage: Option<Stage>,
    done: Unpacked,
    buffer: Vec<u8>,
}

struct Folder {
    name: Vec<u8>,
    dir: OwnedFd,
    /// Mode and time to be set once all is in it.
    after: Option<(u32, (i64, u32))>,
}

/// A new folder directly below the base, under another name until it is whole.
struct Stage {
    name: Vec<u8>,
    hidden: Vec<u8>,
}

impl Tree {
    fn take(
        &mut self,
        reader: &mut Reader<impl Read>,
        entry: &Entry,
        said: &mut dyn FnMut(String),
    ) -> Result<(), FilesError> {
        let parts = self.base.below(&entry.path)?;
        let Some((name, above)) = parts.split_last() else {
            return match entry.kind {
                // The folder that is there.
                EntryKind::Folder => Ok(()),
                EntryKind::File { .. }
                | EntryKind::Link(_)
                | EntryKind::Same(_)
                | EntryKind::Fifo
                | EntryKind::Device => Err(FilesError::Unasked { path: "/".into() }),
            };
        };
        let failed = |tree: &Self, error: Errno| FilesError::Write {
            path: tree.shown(&parts),
            source: error.into(),
        };
        if matches!(entry.kind, EntryKind::Fifo | EntryKind::Device) {
            said(format!(
                "{}: a device or FIFO, left out",
                self.shown(&parts).display()
            ));
            return Ok(());
        }
        if entry.kind == EntryKind::Folder {
            return self.enter(&parts, Some((entry.mode, entry.mtime)));
        }
        self.enter(above, None)?;
        self.done.files += 1;
        let fresh = self.stage.is_some();
        let dir = self
            .open
            .last()
            .map_or(self.base.dir.as_fd(), |folder| folder.dir.as_fd());
        let name = OsStr::from_bytes(name);
        match &entry.kind {
            EntryKind::File { size, extents } => {
                let every = extents.clone().unwrap_or_else(|| vec![(0, *size)]);
                let hidden = hidden();
                let flags = OFlag::O_CREAT
                    | OFlag::O_EXCL
                    | OFlag::O_WRONLY
                    | OFlag::O_NOFOLLOW
                    | OFlag::O_CLOEXEC;
                let own = Mode::from_bits_truncate(0o600);
                let make = |name: &OsStr| openat(dir, name, flags, own);
                // Without a name nothing of it is left, however this process ends. Not every file
                // system has that.
                let without_name = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                // In a folder that is not visible yet no other name is needed.
                let (made, at, nameless) = match fresh.then(|| make(name)) {
                    Some(Ok(made)) => (Ok(made), name, false),
                    _ => {
                        let at = OsStr::from_bytes(&hidden);
                        match openat(dir, ".", without_name, own) {
                            Ok(made) => (Ok(made), at, true),
                            Err(_) => (make(at), at, false),
                        }
                    }
                };
                let file = File::from(made.map_err(|e| failed(self, e))?);
                let written = write(reader, &file, *size, &every, &mut self.buffer, || {
                    self.base.path.join(OsStr::from_bytes(&parts.join(&b'/')))
                });
                let placed = written.and_then(|bytes| {
                    let finish = || {
                        fchmod(&file, mode(entry.mode & KEPT))?;
                        futimens(&file, &time(entry.mtime), &time(entry.mtime))?;
                        if at == name {
                            return Ok(());
                        }
                        special::spare(dir, name)?;
                        match nameless {
                            false => renameat(dir, at, dir, name),
                            true => {
                                special::give_name(&file, dir, at)?;
                                renameat(dir, at, dir, name)
                            }
                        }
                    };
                    finish().map_err(|e| failed(self, e))?;
                    Ok(bytes)
                });
                match placed {
                    Ok(bytes) => self.done.bytes += bytes,
                    Err(error) => {
                        let _ = unlinkat(dir, at, UnlinkatFlags::NoRemoveDir);
                        return Err(error);
                    }
                }
                Ok(())
            }
            EntryKind::Link(to) => {
                let to = OsStr::from_bytes(to);
                replace(dir, name, |name| symlinkat(to, dir, name)).map_err(|e| failed(self, e))?;
                // Some file systems keep none for links.
                let _ = utimensat(
                    dir,
                    name,
                    &time(entry.mtime),
                    &time(entry.mtime),
                    UtimensatFlags::NoFollowSymlink,
                );
                Ok(())
            }
            EntryKind::Same(to) => {
                let to = self.base.below(to)?;
                let Some((other, above)) = to.split_last() else {
                    return Err(FilesError::Format("a hard link to a folder"));
                };
                let from = self.walk(above).map_err(|e| failed(self, e))?;
                let other = self.real(&to, OsStr::from_bytes(other));
                replace(dir, name, |name| {
                    linkat(&from, other.as_os_str(), dir, name, AtFlags::empty())
                })
                .map_err(|e| failed(self, e))
            }
            EntryKind::Folder | EntryKind::Fifo | EntryKind::Device => Ok(()),
        }
    }

    /// Opens a folder and all above it, and makes those that are not there.
    fn enter(
        &mut self,
        parts: &[Vec<u8>],
        about: Option<(u32, (i64, u32))>,
    ) -> Result<(), FilesError> {
        let same = self
            .open
            .iter()
            .zip(parts)
            .take_while(|(folder, part)| folder.name == **part);
        let same = same.count();
        self.close_to(same)?;
        for depth in same..parts.len() {
            let name = &parts[depth];
            let after = match depth + 1 == parts.len() {
                true => about,
                false => None,
            };
            let folder = self.folder(name, depth, after).map_err(|error| {
                match [Errno::ENOTDIR, Errno::ELOOP].contains(&error) {
                    true => FilesError::Place {
                        path: self.shown(&parts[..=depth]),
                        why: "it is there, and is no folder",
                    },
                    false => FilesError::Write {
                        path: self.shown(&parts[..=depth]),
                        source: error.into(),
                    },
                }
            })?;
            self.open.push(folder);
        }
        Ok(())
    }

    fn folder(
        &mut self,
        name: &[u8],
        depth: usize,
        after: Option<(u32, (i64, u32))>,
    ) -> nix::Result<Folder> {
        let above = self
            .open
            .last()
            .map_or(self.base.dir.as_fd(), |folder| folder.dir.as_fd());
        let os = OsStr::from_bytes(name);
        match open_folder(above, os) {
            Ok(dir) => {
                return Ok(Folder {
                    name: name.to_vec(),
                    dir,
                    after: None,
                });
            }
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let staged = depth == 0 && self.base.staged;
        let real = match staged {
            true => hidden(),
            false => name.to_vec(),
        };
        mkdirat(above, OsStr::from_bytes(&real), mode(0o700))?;
        let dir = open_folder(above, OsStr::from_bytes(&real))?;
        if staged {
            self.stage = Some(Stage {
                name: name.to_vec(),
                hidden: real,
            });
        }
        let (bits, mtime) = after.map_or((0o755, None), |(bits, mtime)| (bits, Some(mtime)));
        let now = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            (
                now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0)),
                0,
            )
        };
        let after = Some((bits, mtime.unwrap_or_else(now)));
        Ok(Folder {
            name: name.to_vec(),
            dir,
            after,
        })
    }

    /// Finishes folders, the deepest first, but for so many.
    fn close_to(&mut self, keep: usize) -> Result<(), FilesError> {
        while self.open.len() > keep {
            let path = || {
                let names = self
                    .open
                    .iter()
                    .map(|folder| OsStr::from_bytes(&folder.name));
                names.fold(self.base.path.clone(), |path, name| path.join(name))
            };
            let Some(folder) = self.open.last() else {
                break;
            };
            let finish = || {
                if let Some((bits, mtime)) = folder.after {
                    futimens(&folder.dir, &time(mtime), &time(mtime))?;
                    fchmod(&folder.dir, mode(bits & KEPT))?;
                }
                if let (1, Some(stage)) = (self.open.len(), &self.stage) {
                    let (hidden, name) = (
                        OsStr::from_bytes(&stage.hidden),
                        OsStr::from_bytes(&stage.name),
                    );
                    renameat(&self.base.dir, hidden, &self.base.dir, name)?;
                }
                Ok(())
            };
            finish().map_err(|error: Errno| FilesError::Write {
                path: path(),
                source: error.into(),
            })?;
            if self.open.len() == 1 {
                self.stage = None;
            }
            self.open.pop();
        }
        Ok(())
    }

    /// Opens a folder that is there.
    fn walk(&self, parts: &[Vec<u8>]) -> nix::Result<OwnedFd> {
        let mut dir = open_folder(self.base.dir.as_fd(), OsStr::new("."))?;
        for depth in 0..parts.len() {
            let name = self.real(&parts[..=depth], OsStr::from_bytes(&parts[depth]));
            dir = open_folder(dir.as_fd(), &name)?;
        }
        Ok(dir)
    }

    /// Present name of what these parts name last.
    fn real(&self, parts: &[Vec<u8>], name: &OsStr) -> std::ffi::OsString {
        match &self.stage {
            Some(stage) if parts.len() == 1 && stage.name == name.as_bytes() => {
                OsStr::from_bytes(&stage.hidden).to_owned()
            }
            _ => name.to_owned(),
        }
    }

    fn shown(&self, parts: &[Vec<u8>]) -> PathBuf {
        self.base.path.join(OsStr::from_bytes(&parts.join(&b'/')))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Some(stage) = &self.stage {
            // By the folder itself, whatever has become of its path.
            let base = format!("/proc/self/fd/{}", self.base.dir.as_raw_fd());
            let _ = fs::remove_dir_all(PathBuf::from(base).join(OsStr::from_bytes(&stage.hidden)));
        }
    }
}

/// Writes a member's data; returns how many.
fn write(
    reader: &mut Reader<impl Read>,
    mut file: &File,
    size: u64,
    extents: &[(u64, u64)],
    buffer: &mut [u8],
    path: impl Fn() -> PathBuf,
) -> Result<u64, FilesError> {
    let failed = |source| FilesError::Write {
        path: path(),
        source,
    };
    let (mut at, mut bytes) = (0, 0);
    for (offset, length) in extents {
        if *offset != at {
            file.seek(SeekFrom::Start(*offset)).map_err(failed)?;
        }
        let mut left = *length;
        while left > 0 {
            let written = reader.data_into(file, left, buffer)?.map_err(failed)?;
            if written == 0 {
                return Err(FilesError::Short);
            }
            left -= written as u64;
        }
        at = offset + length;
        bytes += length;
    }
    if at != size {
        file.set_len(size).map_err(failed)?;
    }
    Ok(bytes)
}

/// Makes something of a name, in place of what has the name, unless that is a folder.
fn replace(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    make: impl Fn(&OsStr) -> nix::Result<()>,
) -> nix::Result<()> {
    match make(name) {
        Err(Errno::EEXIST) => {}
        done => return done,
    }
    special::spare(dir, name)?;
    // A name of the same file as before would not be moved, and be left.
    let hidden = hidden();
    let hidden = OsStr::from_bytes(&hidden);
    make(hidden)?;
    let moved = renameat(dir, hidden, dir, name);
    if fstatat(dir, hidden, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
        let _ = unlinkat(dir, hidden, UnlinkatFlags::NoRemoveDir);
    }
    moved
}

fn open_folder(above: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    openat(above, name, flags, Mode::empty())
}

fn hidden() -> Vec<u8> {
    Half::New.name().into_bytes()
}

fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

fn time((seconds, nanos): (i64, u32)) -> TimeSpec {
    TimeSpec::new(seconds, nanos.into())
}
