//! Layers of a container image, one put over the other in a directory.
//!
//! Nobody believes a layer. Every path in it means what it would mean in the
//! guest: it is followed by [`inside`], and so neither a link nor anything else
//! leads out of the directory; `..` is refused. The directory is nobody's but
//! ours while this goes on: it may hold programs that run as root for whoever
//! starts them.
//!
//! Whiteouts are those of image-spec 1.1: `.wh.NAME` hides what lower layers
//! have at NAME, `.wh..wh..opq` all that they have in its folder; neither hides
//! what its own layer brings, whichever comes first.

use super::{
    Cancel,
    archive::{Compression, compression},
    digest::{Digest, Hashing},
    error::LayerError,
    metered::{Metered, Tar},
};
use forkyard_files::inside;
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
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown, lchown, symlink},
    path::{Component, Path, PathBuf},
};
use tar::{Entry, EntryType, Header};

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
/// Longest path, in bytes, as in the kernel.
const LONGEST: usize = 4096;
/// How an attribute of a file begins in a tar, and those that a guest keeps.
const ATTRIBUTE: &str = "SCHILY.xattr.";
const ATTRIBUTES: [&str; 2] = ["security.capability", "user."];

/// What may still be unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub bytes: u64,
    pub entries: u64,
    /// What there was in the beginning, to be told.
    pub limits: (ByteCount, u64),
}

impl Budget {
    pub fn new(bytes: ByteCount, entries: u64) -> Self {
        Self {
            bytes: bytes.0,
            entries,
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

/// The directory that layers are put into.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    root: &'a Path,
    budget: Budget,
    cancel: &'a Cancel,
    /// What directories are to have as their time, once nothing goes into them.
    times: BTreeMap<PathBuf, u64>,
}

/// What one layer has brought so far, and the folders above.
type Fresh = HashSet<PathBuf>;

impl<'a> Tree<'a> {
    /// Into this directory, which is empty and nobody else's.
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
        let corrupt = |source| LayerError::Corrupt { source };
        let mut layer = io::BufReader::new(layer);
        let head = io::BufRead::fill_buf(&mut layer).map_err(corrupt)?;
        let unpacked: Box<dyn Read> = match compression(head) {
            Compression::None => Box::new(layer),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(layer)),
            Compression::Zstd => {
                Box::new(zstd::stream::read::Decoder::with_buffer(layer).map_err(corrupt)?)
            }
        };
        // Headers and padding are not charged for; an entry has a few KiB.
        let most = self
            .budget
            .bytes
            .saturating_add(self.budget.entries.saturating_mul(4096));
        let hashing = Hashing::new(unpacked.take(most.saturating_add(1)));
        let mut fresh = Fresh::new();
        let mut rest = Tar::new(hashing).each(|entry| self.entry(entry, &mut fresh))?;
        // What follows the end of a tar is part of what has the digest.
        io::copy(&mut rest, &mut io::sink()).map_err(corrupt)?;
        Ok(rest.digest())
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

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "tar may learn of other kinds"
    )]
    fn entry<R: Read>(
        &mut self,
        entry: &mut Entry<'_, Metered<R>>,
        fresh: &mut Fresh,
    ) -> Result<(), LayerError> {
        if self.cancel.is_set() {
            return Err(LayerError::Cancelled);
        }
        // Says something of the archive, not of what is in it.
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            return Ok(());
        }
        let path = checked(
            &entry
                .path()
                .map_err(|source| LayerError::Corrupt { source })?,
        )?;
        let size = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => entry.size(),
            _ => 0,
        };
        self.budget.take(size)?;
        let Some(name) = path.file_name() else {
            return self.describe_root(entry.header());
        };
        let name = name.to_str().unwrap_or_default();
        if name == OPAQUE {
            return self.hide_all(&path, fresh);
        }
        // Leavings of the file system that whiteouts come from.
        if name.starts_with(".wh..wh.") {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.hide(&path, hidden, fresh);
        }
        let made = self.make(&path, entry)?;
        if let Some(place) = made {
            let above = place.ancestors().take_while(|above| *above != self.root);
            fresh.extend(above.map(Path::to_owned));
        }
        Ok(())
    }

    /// Where an entry goes; nothing is there any more but, for a folder,
    /// a folder.
    fn place(&self, path: &Path, kind: EntryType) -> Result<PathBuf, LayerError> {
        let place = inside::place(self.root, path).map_err(making(path))?;
        match place.symlink_metadata() {
            Ok(there) if there.is_dir() && kind == EntryType::Directory => {}
            Ok(there) if there.is_dir() => fs::remove_dir_all(&place).map_err(making(path))?,
            Ok(_) => fs::remove_file(&place).map_err(making(path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(making(path)(error)),
        }
        Ok(place)
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "tar may learn of other kinds"
    )]
    fn make<R: Read>(
        &mut self,
        path: &Path,
        entry: &mut Entry<'_, Metered<R>>,
    ) -> Result<Option<PathBuf>, LayerError> {
        let kind = entry.header().entry_type();
        let owner = owner(path, entry.header())?;
        let mode = mode(entry.header())?;
        let time = entry.header().mtime().unwrap_or(0);
        let target = entry
            .link_name()
            .map_err(|source| LayerError::Corrupt { source })?
            .map(|name| name.into_owned());
        let hostile = |why| LayerError::Hostile {
            path: path.to_owned(),
            why,
        };
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let attributes = attributes(entry)?;
                let place = self.place(path, kind)?;
                let file = write(&place, entry).map_err(|error| corrupt_or(path, error))?;
                let describe = || -> io::Result<()> {
                    fchown(&file, Some(owner.0), Some(owner.1))?;
                    file.set_permissions(Permissions::from_mode(mode))?;
                    for (name, value) in &attributes {
                        fsetxattr(&file, name.as_str(), value, XattrFlags::empty())?;
                    }
                    drop(file);
                    set_time(&place, time)
                };
                describe().map_err(making(path))?;
                Ok(Some(place))
            }
            EntryType::Directory => {
                let place = self.place(path, kind)?;
                let make = || -> io::Result<()> {
                    if !place.exists() {
                        fs::create_dir(&place)?;
                    }
                    chown(&place, Some(owner.0), Some(owner.1))?;
                    fs::set_permissions(&place, Permissions::from_mode(mode))
                };
                make().map_err(making(path))?;
                self.times.insert(place.clone(), time);
                Ok(Some(place))
            }
            EntryType::Symlink => {
                let target = target.ok_or_else(|| hostile("leads nowhere"))?;
                let place = self.place(path, kind)?;
                symlink(&target, &place)
                    .and_then(|()| lchown(&place, Some(owner.0), Some(owner.1)))
                    .and_then(|()| set_time(&place, time))
                    .map_err(making(path))?;
                Ok(Some(place))
            }
            EntryType::Link => {
                let target = target.ok_or_else(|| hostile("leads nowhere"))?;
                let target = checked(&target)?;
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
            EntryType::Fifo => {
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
            EntryType::Char | EntryType::Block if path.starts_with("/dev") => Ok(None),
            EntryType::Char | EntryType::Block => Err(hostile("is a device")),
            _ => Err(hostile("is of a kind that no layer has")),
        }
    }

    fn describe_root(&self, header: &Header) -> Result<(), LayerError> {
        let root = Path::new("/");
        let (owner, mode) = (owner(root, header)?, mode(header)?);
        chown(self.root, Some(owner.0), Some(owner.1))
            .and_then(|()| fs::set_permissions(self.root, Permissions::from_mode(mode)))
            .map_err(making(root))
    }

    fn hide(&self, path: &Path, hidden: &str, fresh: &Fresh) -> Result<(), LayerError> {
        if ["", ".", ".."].contains(&hidden) {
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

fn owner(path: &Path, header: &Header) -> Result<(u32, u32), LayerError> {
    let corrupt = |source| LayerError::Corrupt { source };
    let number = |id: u64| {
        // The last stands for nobody at all.
        let number = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        number.ok_or_else(|| LayerError::Hostile {
            path: path.to_owned(),
            why: "belongs to whom there cannot be",
        })
    };
    let user = number(header.uid().map_err(corrupt)?)?;
    Ok((user, number(header.gid().map_err(corrupt)?)?))
}

fn mode(header: &Header) -> Result<u32, LayerError> {
    let mode = header
        .mode()
        .map_err(|source| LayerError::Corrupt { source })?;
    Ok(mode & 0o7777)
}

fn attributes<R: Read>(
    entry: &mut Entry<'_, Metered<R>>,
) -> Result<Vec<(String, Vec<u8>)>, LayerError> {
    let corrupt = |source| LayerError::Corrupt { source };
    let mut found = Vec::new();
    let Some(extensions) = entry.pax_extensions().map_err(corrupt)? else {
        return Ok(found);
    };
    for extension in extensions {
        let extension = extension.map_err(corrupt)?;
        let name = extension
            .key()
            .ok()
            .and_then(|key| key.strip_prefix(ATTRIBUTE));
        let known = name.filter(|name| ATTRIBUTES.iter().any(|kept| name.starts_with(kept)));
        if let Some(name) = known {
            found.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(found)
}

/// Writes a file that is not there.
fn write(place: &Path, from: &mut impl Read) -> io::Result<File> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(place)?;
    io::copy(from, &mut file)?;
    Ok(file)
}

fn set_time(place: &Path, seconds: u64) -> io::Result<()> {
    let time = TimeSpec::new(i64::try_from(seconds).unwrap_or(0), 0);
    let cwd = nix::fcntl::AT_FDCWD;
    Ok(utimensat(
        cwd,
        place,
        &time,
        &time,
        UtimensatFlags::NoFollowSymlink,
    )?)
}

fn making(path: &Path) -> impl FnOnce(io::Error) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::Make { path, source }
}

/// Reading a layer fails without the host having said anything.
fn corrupt_or(path: &Path, source: io::Error) -> LayerError {
    match source.raw_os_error() {
        Some(_) => making(path)(source),
        None => LayerError::Corrupt { source },
    }
}

impl From<io::Error> for LayerError {
    /// What a reader of an archive says.
    fn from(source: io::Error) -> Self {
        Self::Corrupt { source }
    }
}

#[cfg(test)]
pub(super) mod tests;
