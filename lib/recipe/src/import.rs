//! Images that come from elsewhere: disks, and archives of container images.
//!
//! ```text
//! raw, qcow2 --one that needs no other file--> the ext4 in it ----+
//!                                                                 +--> disk
//! OCI archive --digests--> layers --one over the other--> mke2fs -+
//! ```
//!
//! Nothing here is believed. What a disk is, its owner says; no file but the
//! one that came in is read; and everything that is made lies in a folder that
//! only root can pass, and that goes whatever happens. Once it is whole it takes
//! its name, beside the images from recipes.

mod archive;
mod compressed;
mod cpu;
mod digest;
mod error;
mod job;
mod layer;
mod oci;
mod qcow2;
mod volume;

pub use error::{ArchiveError, DiskError, ImportError};

use crate::{
    cache::{Cache, ImageFile, Workplace, list, publish},
    error::{BuildError, io_error},
    image::as_root,
    key::{Key, KeyMaker},
    progress::Event,
};
use forkyard_types::{ByteCount, ImageName, ImageOrigin};
use job::Job;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Raised whenever the same content is to give another image.
const BUILDER: &str = "import 1";
/// Largest disk: 1 TiB, as for recipes.
const MOST: ByteCount = ByteCount(1 << 40);
/// Bytes of a file in one read; a page of zeros becomes a hole.
const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;
/// The disk of an imported image, and what is known of it.
const DISK: &str = "disk.raw";
const ABOUT: &str = "about.json";
/// How the name of a disk begins, among what is not finished, that is being exported.
pub const EXPORT: &str = "export-";
/// What is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A disk, byte by byte; of its partitions this one, or all of it.
    Raw {
        /// Counted from 1.
        partition: Option<u32>,
    },
    /// A qcow2 disk, likewise.
    Qcow2 {
        /// Counted from 1.
        partition: Option<u32>,
    },
    /// A container image.
    Oci {
        /// Size of the disk; made up from what is in the image if absent.
        size: Option<ByteCount>,
    },
}

impl Source {
    fn origin(self) -> ImageOrigin {
        match self {
            Self::Raw { .. } => ImageOrigin::Raw,
            Self::Qcow2 { .. } => ImageOrigin::Qcow2,
            Self::Oci { .. } => ImageOrigin::Oci,
        }
    }
}

/// An image that was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Its disk.
    pub file: ImageFile,
    /// What it is imported from.
    pub origin: ImageOrigin,
    /// What it is, in a line.
    pub summary: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    origin: ImageOrigin,
    summary: String,
}

/// Says that an import is no longer wanted.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The import ends soon, and leaves nothing.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), ImportError> {
        match self.is_set() {
            true => Err(ImportError::Cancelled),
            false => Ok(()),
        }
    }
}

impl Cache {
    /// Imports an image, all that can be read of `from`. Takes root, room for
    /// what comes in and for the disk, and as long as that takes.
    pub fn import(
        &self,
        name: &ImageName,
        source: Source,
        from: impl Read,
        cancel: &Cancel,
        mut progress: impl FnMut(Event<'_>),
    ) -> Result<Imported, ImportError> {
        as_root()?;
        let work = Workplace::enter(&self.dir, &format!("import-{name}"), &mut progress)?;
        // What container images hold may run as root for whoever starts it.
        fs::set_permissions(work.dir(), Permissions::from_mode(0o700))
            .map_err(io_error("close", work.dir()))?;
        if self
            .imported()?
            .iter()
            .any(|image| image.file.name == name.as_str())
        {
            let name = name.to_string();
            return Err(ImportError::Taken { name });
        }
        progress(Event::Step("taking it in"));
        let incoming = work.dir().join("incoming");
        let key = take_in(name, source, from, &incoming, cancel)?;
        let job = Job {
            name,
            work: &work,
            incoming: &incoming,
            cancel,
        };
        let whole = work.dir().join("whole");
        DirBuilder::new()
            .mode(0o700)
            .create(&whole)
            .map_err(io_error("make", &whole))?;
        let disk = whole.join(DISK);
        let summary = match source {
            Source::Raw { partition } => job.raw(partition, &disk)?,
            Source::Qcow2 { partition } => job.qcow2(partition, &disk, &mut progress)?,
            Source::Oci { size } => job.oci(size, &disk, &mut progress)?,
        };
        let about = About {
            origin: source.origin(),
            summary,
        };
        let text = serde_json::to_vec(&about).unwrap_or_default();
        let place = whole.join(ABOUT);
        fs::write(&place, text).map_err(io_error("write", &place))?;
        cancel.check()?;
        let home = self.imported_dir().join(format!("{name}-{key}"));
        publish(&whole, &home)?;
        load(&home, name.as_str(), key)?.ok_or_else(|| {
            let gone = io::ErrorKind::NotFound.into();
            io_error("find", home)(gone).into()
        })
    }

    /// Every image that was imported, by name.
    pub fn imported(&self) -> Result<Vec<Imported>, BuildError> {
        let dir = self.imported_dir();
        let mut images = Vec::new();
        for entry in list(&dir)? {
            let path = entry.map_err(io_error("list", &dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let parts = name.and_then(|name| name.rsplit_once('-'));
            if let Some((name, Ok(key))) = parts.map(|(name, key)| (name, key.parse::<Key>())) {
                images.extend(load(&path, name, key)?);
            }
        }
        images.sort_by(|a, b| a.file.name.cmp(&b.file.name));
        Ok(images)
    }

    /// Removes an imported image. One that has gone already is no error.
    pub fn remove_imported(&self, image: &Imported) -> Result<(), BuildError> {
        let Some(home) = image.file.path.parent() else {
            return Ok(());
        };
        // What is left of a folder without its disk is nobody's image.
        for name in [DISK, ABOUT] {
            let path = home.join(name);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", path)(e));
                }
                Ok(()) | Err(_) => {}
            }
        }
        match fs::remove_dir_all(home) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("remove", home)(e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes what imports and exports have left that were killed, here or elsewhere.
    pub fn sweep(&self) -> Result<(), BuildError> {
        let dir = self.dir.join("tmp");
        for entry in list(&dir)? {
            let path = entry.map_err(io_error("list", &dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with(EXPORT)) {
                // One that is being made is held by its daemon.
                if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                    fs::remove_file(&path).map_err(io_error("remove", &path))?;
                }
                continue;
            }
            let Some(name) = name.filter(|name| name.starts_with("import-")) else {
                continue;
            };
            let lock = self.dir.join("lock").join(name);
            let lock = File::open(&lock).map_err(io_error("open", &lock))?;
            match lock.try_lock() {
                Ok(()) => fs::remove_dir_all(&path).map_err(io_error("remove", &path))?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
            }
        }
        for entry in list(&self.imported_dir())? {
            let path = entry.map_err(io_error("list", &dir))?.path();
            if !path.join(DISK).exists() {
                fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }

    fn imported_dir(&self) -> PathBuf {
        self.dir.join("imported")
    }
}

/// What is known of an image; none if its removal broke off.
fn load(home: &Path, name: &str, key: Key) -> Result<Option<Imported>, BuildError> {
    let path = home.join(DISK);
    let about = home.join(ABOUT);
    let text = match fs::read(&about) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(io_error("read", &about))?,
    };
    let facts = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        facts => facts.map_err(io_error("look at", &path))?,
    };
    let about: About = serde_json::from_slice(&text)
        .map_err(|error| io_error("read", &about)(io::Error::other(error)))?;
    Ok(Some(Imported {
        file: ImageFile {
            name: name.to_owned(),
            key,
            path,
            size: ByteCount(facts.len()),
        },
        origin: about.origin,
        summary: about.summary,
    }))
}

/// Writes what comes in to a file, an archive unpacked; the key of what will be made
/// of it.
fn take_in(
    name: &ImageName,
    source: Source,
    from: impl Read,
    to: &Path,
    cancel: &Cancel,
) -> Result<Key, ImportError> {
    let Source::Oci { size } = source else {
        let too_large = |size| DiskError::TooLarge { size, most: MOST }.into();
        let incoming = |source| ImportError::Incoming { source };
        return write_down(
            name,
            source,
            from,
            to,
            cancel,
            (MOST, &too_large),
            &incoming,
        );
    };
    // What broke off on its way is not to be told from what was cut off before.
    let unreadable = |source: io::Error| match source.kind() == io::ErrorKind::UnexpectedEof {
        true => ImportError::Incoming { source },
        false => ArchiveError::Tar { source }.into(),
    };
    let unpacked = compressed::unpacked(from).map_err(unreadable)?;
    let most = match unpacked.by {
        None => MOST,
        Some(_) => job::unpacked_at_most(size),
    };
    let too_large = |_| ArchiveError::Unpacks { most }.into();
    let most = (most, &too_large as _);
    write_down(name, source, unpacked.from, to, cancel, most, &unreadable)
}

fn write_down(
    name: &ImageName,
    source: Source,
    mut from: impl Read,
    to: &Path,
    cancel: &Cancel,
    (most, too_large): (ByteCount, &dyn Fn(ByteCount) -> ImportError),
    unreadable: &dyn Fn(io::Error) -> ImportError,
) -> Result<Key, ImportError> {
    let file = File::create_new(to).map_err(io_error("create", to))?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        cancel.check()?;
        let mut filled = 0;
        while filled < piece.len() {
            let read = from.read(&mut piece[filled..]);
            match read.map_err(unreadable)? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            break;
        }
        if size + filled as u64 > most.0 {
            return Err(too_large(ByteCount(size + filled as u64)));
        }
        hasher.update(&piece[..filled]);
        write_sparse(&file, &piece[..filled], size).map_err(io_error("write", to))?;
        size += filled as u64;
    }
    file.set_len(size).map_err(io_error("write", to))?;
    let mut key = KeyMaker::new(BUILDER);
    key.add(name.as_str().as_bytes());
    key.add(format!("{source:?}").as_bytes());
    key.add(hasher.finalize().as_bytes());
    Ok(key.finish())
}

/// Writes the pages that are not zero; `at` is a whole number of pages.
fn write_sparse(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    for (page, at) in bytes.chunks(PAGE).zip((at..).step_by(PAGE)) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
