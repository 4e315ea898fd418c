//! Layers of a container image, one put over the other in a directory.
//!
//! Layers are not trusted. Every path in it means what it would mean in the
//! guest: it is followed by [`inside`], and so neither a link nor anything else
//! leads out of the directory; `..` is refused. The directory is used by no process but
//! ours while this goes on: it may hold programs that run as root for any user that
//! starts them.
//!
//! Whiteouts are those of image-spec 1.1: `.wh.NAME` hides what lower layers
//! have at NAME, `.wh..wh..opq` all that they have in its folder; neither hides
//! what its own layer brings, whichever comes first.

use super::{
    Cancel,
    archive::as_path,
    compressed::unpacked,
    digest::{Digest, Hashing},
    error::LayerError,
};
use forkyard_files::{Entry, EntryKind, FilesError, Reader, inside};
use forkyard_types::ByteCount;
use nix::{
    sys::{
        stat::{Mode, UtimensatFlags, utimensat},
        time::TimeSpec,
    },
    unistd::mkfifo,
};
use rustix::fs::{XattrFlags, fsetxattr};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, fchown, lchown, symlink},
    },
    path::{Component, Path, PathBuf},
};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Leavings of the file system that whiteouts come from.
const LEFT: &[u8] = b".wh..wh.";
/// Longest path, in bytes, as in the kernel.
const LONGEST: usize = 4096;
/// Folders that a path may lie in: mke2fs, which reads the tree, overruns its memory at some thousand.
const DEEPEST: usize = 255;
/// Prefixes of attributes that a guest keeps.
const ATTRIBUTES: [&[u8]; 2] = [b"security.capability", b"user."];
/// Bytes of a file copied at once.
const PIECE: usize = 128 << 10;

/// Bytes of paths that are kept in memory: of one layer, and of all folders; and what each
/// path takes beside its bytes.
const NAMES: u64 = 512 << 20;
const EACH_NAME: u64 = 96;

/// Budget of what may still be unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub bytes: u64,
    pub entries: u64,
    /// Bytes of paths that are kept at a time.
    pub names: u64,
    folders: u64,
    /// Budget in the beginning, for messages.
    pub limits: (ByteCount, u64),
}

impl Budget {
    pub fn new(bytes: ByteCount, entries: u64) -> Self {
        Self {
            bytes: bytes.0,
            entries,
            names: NAMES,
            folders: NAMES,
            limits: (bytes, entries),
        }
    }

    fn take(&mut self, bytes: u64) -> Result<(), LayerError> {
        let (most_bytes, most_entries) = self.limits;
        self.entries = self
            .entries
            .checked_sub(1)
            .ok_or(LayerError::TooMany(most_entries))?;
        self.bytes = self
            .bytes
            .checked_sub(bytes)
            .ok_or(LayerError::TooLarge(most_bytes))?;
        Ok(())
    }
}

/// Charges for a path that is to be kept.
fn keep(path: &Path, left: &mut u64) -> Result<(), LayerError> {
    let takes = path.as_os_str().len() as u64 + EACH_NAME;
    let left_then = left.checked_sub(takes);
    *left = left_then.ok_or(LayerError::TooManyNames(ByteCount(NAMES)))?;
    Ok(())
}

/// The directory that layers are put into.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    root: &'a Path,
    budget: Budget,
    cancel: &'a Cancel,
    /// Times that directories get once nothing goes into them.
    times: BTreeMap<PathBuf, (i64, u32)>,
}

/// Entries that one layer has brought so far, and the folders above.
type Fresh = HashSet<PathBuf>;

impl<'a> Tree<'a> {
    /// Into this directory, which is empty and used by no other process.
    pub fn new(root: &'a Path, budget: Budget, cancel: &'a Cancel) -> Self {
        let times = BTreeMap::new();
        Self {
            root,
            budget,
            cancel,
            times,
        }
    }

    /// Puts a layer over what is there; the digest of what it unpacked to.
    pub fn apply(&mut self, layer: impl Read) -> Result<Digest, LayerError> {
        let unpacked = unpacked(layer).map_err(|source| LayerError::Corrupt { source })?;
        // Headers and padding are not charged for; an entry has a few KiB.
        let most = self
            .budget
            .bytes
            .saturating_add(self.budget.entries.saturating_mul(4096));
        let hashing = Hashing::new(unpacked.from.take(most.saturating_add(1)));
        let mut fresh = Fresh::new();
        let names = self.budget.names;
        let mut reader = Reader::new(hashing).open_ended();
        while let Some(entry) = reader.next_entry()? {
            self.entry(&entry, &mut reader, &mut fresh)?;
        }
        self.budget.names = names;
        // What follows the end of a tar is part of what has the digest.
        reader.drain()?;
        Ok(reader.into_source().digest())
    }

    /// Gives directories their times.
    pub fn finish(self) -> Result<(), LayerError> {
        // Those below first: a directory's time changes with what is in it.
        for (path, time) in self.times.iter().rev() {
            if path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
                set_time(path, *time).map_err(making(path))?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        entry: &Entry,
        reader: &mut Reader<impl Read>,
        fresh: &mut Fresh,
    ) -> Result<(), LayerError> {
        if self.cancel.is_set() {
            return Err(LayerError::Cancelled);
        }
        let path = checked(as_path(&entry.path))?;
        let size = match entry.kind {
            EntryKind::File { size, .. } => size,
            EntryKind::Folder
            | EntryKind::Link(_)
            | EntryKind::Same(_)
            | EntryKind::Fifo
            | EntryKind::Device => 0,
        };
        self.budget.take(size)?;
        let Some(name) = path.file_name() else {
            return self.describe_root(entry);
        };
        let name = name.as_bytes();
        if name == OPAQUE {
            return self.hide_all(&path, fresh);
        }
        if name.starts_with(LEFT) {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.hide(&path, OsStr::from_bytes(hidden), fresh);
        }
        let made = self.make(&path, entry, reader)?;
        if let Some(place) = made {
            for above in place.ancestors().take_while(|above| *above != self.root) {
                // With it came all above it.
                if fresh.contains(above) {
                    break;
                }
                keep(above, &mut self.budget.names)?;
                fresh.insert(above.to_owned());
            }
        }
        Ok(())
    }

    /// Returns where an entry goes; nothing is there any more but, for a folder,
    /// a folder.
    fn place(&self, path: &Path, kind: &EntryKind) -> Result<PathBuf, LayerError> {
        let place = inside::place(self.root, path).map_err(making(path))?;
        match place.symlink_metadata() {
            Ok(there) if there.is_dir() && *kind == EntryKind::Folder => {}
            Ok(there) if there.is_dir() => fs::remove_dir_all(&place).map_err(making(path))?,
            Ok(_) => fs::remove_file(&place).map_err(making(path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(making(path)(error)),
        }
        Ok(place)
    }

    fn make(
        &mut self,
        path: &Path,
        entry: &Entry,
        reader: &mut Reader<impl Read>,
    ) -> Result<Option<PathBuf>, LayerError> {
        let owner = owner(path, entry)?;
        let (kind, mode, time) = (&entry.kind, entry.mode, entry.mtime);
        let hostile = |why| LayerError::Hostile {
            path: path.to_owned(),
            why,
        };
        match kind {
            EntryKind::File { size, extents } => {
                let place = self.place(path, kind)?;
                let all = [(0, *size)];
                let extents = extents.as_deref().unwrap_or(&all);
                let file = write(&place, reader, *size, extents, &making(path))?;
                let describe = || -> io::Result<()> {
                    fchown(&file, Some(owner.0), Some(owner.1))?;
                    file.set_permissions(Permissions::from_mode(mode))?;
                    for (name, value) in &entry.attributes {
                        if ATTRIBUTES.iter().any(|kept| name.starts_with(kept)) {
                            fsetxattr(&file, name.as_slice(), value, XattrFlags::empty())?;
                        }
                    }
                    drop(file);
                    set_time(&place, time)
                };
                describe().map_err(making(path))?;
                Ok(Some(place))
            }
            EntryKind::Folder => {
                let place = self.place(path, kind)?;
                let make = || -> io::Result<()> {
                    if !place.exists() {
                        fs::create_dir(&place)?;
                    }
                    chown(&place, Some(owner.0), Some(owner.1))?;
                    fs::set_permissions(&place, Permissions::from_mode(mode))
                };
                make().map_err(making(path))?;
                if self.times.insert(place.clone(), time).is_none() {
                    keep(&place, &mut self.budget.folders)?;
                }
                Ok(Some(place))
            }
            EntryKind::Link(target) | EntryKind::Same(target) if target.is_empty() => {
                Err(hostile("leads nowhere"))
            }
            EntryKind::Link(target) => {
                let place = self.place(path, kind)?;
                symlink(as_path(target), &place)
                    .and_then(|()| lchown(&place, Some(owner.0), Some(owner.1)))
                    .and_then(|()| set_time(&place, time))
                    .map_err(making(path))?;
                Ok(Some(place))
            }
            EntryKind::Same(target) => {
                let target = checked(as_path(target))?;
                let from = inside::place(self.root, &target).map_err(making(&target))?;
                let facts = from.symlink_metadata();
                if !facts.is_ok_and(|facts| facts.is_file() || facts.is_symlink()) {
                    return Err(hostile("is a hard link to what is no file of the image"));
                }
                if from == inside::place(self.root, path).map_err(making(path))? {
                    return Ok(Some(from));
                }
                let place = self.place(path, kind)?;
                fs::hard_link(from, &place).map_err(making(path))?;
                Ok(Some(place))
            }
            EntryKind::Fifo => {
                let place = self.place(path, kind)?;
                let make = || -> io::Result<()> {
                    mkfifo(&place, Mode::S_IRUSR)?;
                    lchown(&place, Some(owner.0), Some(owner.1))?;
                    fs::set_permissions(&place, Permissions::from_mode(mode))
                };
                make().map_err(making(path))?;
                Ok(Some(place))
            }
            // The kernel makes those of a guest, and mounts them over /dev.
            EntryKind::Device if path.starts_with("/dev") => Ok(None),
            EntryKind::Device => Err(hostile("is a device")),
        }
    }

    fn describe_root(&self, entry: &Entry) -> Result<(), LayerError> {
        let root = Path::new("/");
        let (owner, mode) = (owner(root, entry)?, entry.mode);
        chown(self.root, Some(owner.0), Some(owner.1))
            .and_then(|()| fs::set_permissions(self.root, Permissions::from_mode(mode)))
            .map_err(making(root))
    }

    fn hide(&self, path: &Path, hidden: &OsStr, fresh: &Fresh) -> Result<(), LayerError> {
        if ["", ".", ".."].iter().any(|nothing| hidden == *nothing) {
            return Err(LayerError::Hostile {
                path: path.to_owned(),
                why: "hides nothing that could be there",
            });
        }
        let place = inside::place(self.root, &path.with_file_name(hidden));
        let place = place.map_err(making(path))?;
        remove_stale(&place, fresh).map_err(making(path))
    }

    fn hide_all(&self, path: &Path, fresh: &Fresh) -> Result<(), LayerError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let folder = inside::directory(self.root, folder).map_err(making(path))?;
        remove_stale_in(&folder, fresh).map_err(making(path))
    }
}

/// Removes what lower layers have brought; nothing there is no error.
fn remove_stale(place: &Path, fresh: &Fresh) -> io::Result<()> {
    let there = match place.symlink_metadata() {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match (there.is_dir(), fresh.contains(place)) {
        (true, true) => remove_stale_in(place, fresh),
        (false, true) => Ok(()),
        (true, false) => fs::remove_dir_all(place),
        (false, false) => fs::remove_file(place),
    }
}

fn remove_stale_in(folder: &Path, fresh: &Fresh) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        remove_stale(&entry?.path(), fresh)?;
    }
    Ok(())
}

/// A path of an archive, from the root and without what says nothing.
fn checked(path: &Path) -> Result<PathBuf, LayerError> {
    let hostile = |why| LayerError::Hostile {
        path: path.to_owned(),
        why,
    };
    if path.as_os_str().len() > LONGEST {
        return Err(LayerError::Hostile {
            path: path.components().take(3).collect(),
            why: "and so on has too long a path",
        });
    }
    if path.components().count() > DEEPEST {
        return Err(LayerError::Hostile {
            path: path.components().take(3).collect(),
            why: "and so on lies in more than 255 folders",
        });
    }
    let mut whole = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => whole.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir => return Err(hostile("would lie outside: it has ..")),
            Component::Prefix(_) => return Err(hostile("is no path")),
        }
    }
    Ok(whole)
}

fn owner(path: &Path, entry: &Entry) -> Result<(u32, u32), LayerError> {
    // The last stands for no user at all.
    match [entry.uid, entry.gid].contains(&u32::MAX) {
        true => Err(LayerError::Hostile {
            path: path.to_owned(),
            why: "belongs to a user that cannot exist",
        }),
        false => Ok((entry.uid, entry.gid)),
    }
}

/// Writes a file that is not there, and leaves out its holes.
fn write(
    place: &Path,
    reader: &mut Reader<impl Read>,
    size: u64,
    extents: &[(u64, u64)],
    making: &impl Fn(io::Error) -> LayerError,
) -> Result<File, LayerError> {
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(place)
        .map_err(making)?;
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(PIECE).min(PIECE)];
    for (offset, length) in extents {
        let (mut at, mut left) = (*offset, *length);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(buffer.len());
            let read = reader.data(&mut buffer[..most])?;
            if read == 0 {
                return Err(FilesError::Short.into());
            }
            file.write_all_at(&buffer[..read], at).map_err(making)?;
            (at, left) = (at + read as u64, left - read as u64);
        }
    }
    file.set_len(size).map_err(making)?;
    Ok(file)
}

fn set_time(place: &Path, (seconds, nanos): (i64, u32)) -> io::Result<()> {
    let time = TimeSpec::new(seconds, nanos.into());
    let cwd = nix::fcntl::AT_FDCWD;
    Ok(utimensat(
        cwd,
        place,
        &time,
        &time,
        UtimensatFlags::NoFollowSymlink,
    )?)
}

fn making(path: &Path) -> impl Fn(io::Error) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::Make {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
pub(super) mod tests;
