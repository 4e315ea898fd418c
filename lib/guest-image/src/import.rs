//! Images that come from elsewhere: disks, and archives of container images.
//!
//! ```text
//! raw, qcow2 --one that needs no other file--> the ext4 in it ----+
//!                                                                 +--> disk
//! OCI archive --unpacked, apart--> tree ----------------> mke2fs -+
//!     ^-- a registry (pull), a Dockerfile (build)
//! ```
//!
//! Nothing here is believed. What a disk is, its owner says; no file but the
//! one that came in is read; and everything that is made lies in a folder that
//! only root can pass, and that goes whatever happens. Once it is whole it takes
//! its name, beside the images from recipes.

mod apart;
mod archive;
mod build;
mod compressed;
mod cpu;
mod digest;
mod error;
mod incoming;
mod job;
mod layer;
mod oci;
mod provenance;
mod pull;
mod qcow2;
mod scrub;
mod unpack;
mod volume;

pub use apart::unpack_as_told;
pub use build::{Dockerfile, InvalidDockerfile};
pub use error::{ArchiveError, DiskImportError, ImportError};
pub use provenance::Provenance;
pub use scrub::Scrub;

use crate::{
    cache::{Cache, ImageFile, Workplace, list, publish, remove_free},
    error::{BuildError, io_error},
    image::as_root,
    key::{CacheKey, KeyMaker},
    progress::{BuildEvent, Progress},
};
use forkyard_confine::FetchReach;
use forkyard_types::{ByteCount, EntryPoint, ImageName, ImageOrigin, ImageReference, Start};
use incoming::{take_in, write_sparse};
use job::Job;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Raised whenever the same content is to give another image.
const BUILDER: &str = "import 2";
/// Largest disk: 1 TiB, as for recipes.
const MOST: ByteCount = ByteCount(1 << 40);
/// Bytes of a file in one read; a page of zeros becomes a hole.
const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;
/// The disk of an imported image, and what is known of it.
const DISK: &str = "disk.raw";
const ABOUT: &str = "about.json";
/// Prefix of the name of a disk, among unfinished files, that is being
/// exported.
pub const EXPORT: &str = "export-";
/// Source of an import.
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
        /// Condition under which its entry point is run.
        start: Start,
    },
}

/// An image that was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Disk of the image.
    pub file: ImageFile,
    /// Origin of the image.
    pub from: Provenance,
    /// Description of the image, in a line.
    pub summary: String,
    /// Entry point of a container image.
    pub entry: Option<EntryPoint>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    #[serde(flatten)]
    from: Provenance,
    summary: String,
    #[serde(default)]
    entry: Option<EntryPoint>,
}

/// Key and origin of what came in.
struct Arrived {
    key: CacheKey,
    from: Provenance,
    /// Entry point that is on the disk already.
    entry: Option<EntryPoint>,
}

/// Says that an import is no longer wanted.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// The import ends soon, and leaves nothing.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
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
        progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<Imported, ImportError> {
        let bring = |_: &Workplace, incoming: &Path, progress: Progress<'_>| {
            progress(BuildEvent::Step("taking it in"));
            let key = take_in(name, source, from, incoming, cancel)?;
            let from = Provenance::of(source);
            let entry = None;
            Ok(Arrived { key, from, entry })
        };
        self.arrive(name, source, cancel, bring, progress)
    }

    /// Fetches a container image from its registry and makes it one of guests. Takes root,
    /// skopeo, and what [`Cache::import`] takes.
    pub fn pull(
        &self,
        name: &ImageName,
        (reference, reach): (&ImageReference, FetchReach),
        (size, start): (Option<ByteCount>, Start),
        cancel: &Cancel,
        progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<Imported, ImportError> {
        let source = Source::Oci { size, start };
        let bring = |work: &Workplace, incoming: &Path, progress: Progress<'_>| {
            let digest = pull::fetch((reference, reach), work, incoming, (size, cancel), progress)?;
            let mut key = key_of(name, source);
            key.add(digest.to_string().as_bytes());
            Ok(Arrived {
                key: key.finish(),
                from: Provenance {
                    origin: ImageOrigin::Registry,
                    source: Some(reference.to_string()),
                    digest: Some(digest.to_string()),
                },
                entry: None,
            })
        };
        self.arrive(name, source, cancel, bring, progress)
    }

    /// Builds a container image from a Dockerfile, whose context is a tar archive, all that can be
    /// read of `context`, and makes it one of guests. Takes root, buildah, and what
    /// [`Cache::import`] takes.
    pub fn build(
        &self,
        name: &ImageName,
        dockerfile: &Dockerfile,
        (size, start): (Option<ByteCount>, Start),
        context: impl Read,
        cancel: &Cancel,
        progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<Imported, ImportError> {
        let source = Source::Oci { size, start };
        let bring = |work: &Workplace, incoming: &Path, progress: Progress<'_>| {
            progress(BuildEvent::Step("taking the context in"));
            let place = work.dir().join("context");
            let raw = Source::Raw { partition: None };
            take_in(name, raw, context, &place, cancel)?;
            let places = (work, incoming);
            let built = build::build(&place, dockerfile, places, (size, cancel), progress)?;
            let mut key = key_of(name, source);
            key.add(built.to_string().as_bytes());
            Ok(Arrived {
                key: key.finish(),
                from: Provenance {
                    origin: ImageOrigin::Dockerfile,
                    source: Some(dockerfile.to_string()),
                    digest: None,
                },
                entry: None,
            })
        };
        self.arrive(name, source, cancel, bring, progress)
    }

    /// Makes an image of a VM's disk, raw, all that can be read of it: without what was that
    /// VM's alone. `entry` is what its image runs.
    pub fn commit(
        &self,
        name: &ImageName,
        (vm, entry): (&str, Option<EntryPoint>),
        disk: impl Read,
        what: &Scrub,
        progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<Imported, ImportError> {
        let source = Source::Raw { partition: None };
        let cancel = &Cancel::default();
        let bring = |work: &Workplace, incoming: &Path, progress: Progress<'_>| {
            progress(BuildEvent::Step("reading the disk"));
            let key = take_in(name, source, disk, incoming, cancel)?;
            scrub::scrub(incoming, what, work, cancel, progress)?;
            let from = Provenance {
                origin: ImageOrigin::Vm,
                source: Some(vm.to_owned()),
                digest: None,
            };
            Ok(Arrived { key, from, entry })
        };
        self.arrive(name, source, cancel, bring, progress)
    }

    /// Makes an image of what `bring` has brought.
    fn arrive(
        &self,
        name: &ImageName,
        source: Source,
        cancel: &Cancel,
        bring: impl FnOnce(&Workplace, &Path, Progress<'_>) -> Result<Arrived, ImportError>,
        mut progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<Imported, ImportError> {
        as_root()?;
        let work = Workplace::enter(&self.dir, &format!("import-{name}"), &mut progress)?;
        // What container images hold may run as root in a VM.
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
        let incoming = work.dir().join("incoming");
        let arrived = bring(&work, &incoming, &mut progress);
        // A program that was ended because of that says something else.
        cancel.check()?;
        let Arrived { key, from, entry } = arrived?;
        let job = Job {
            name,
            work: &work,
            incoming: &incoming,
            cancel,
            unpacker: self.unpacker.as_deref(),
        };
        let whole = work.dir().join("whole");
        DirBuilder::new()
            .mode(0o700)
            .create(&whole)
            .map_err(io_error("make", &whole))?;
        let disk = whole.join(DISK);
        let what = from.told();
        let (summary, entry) = match source {
            Source::Raw { partition } => (job.raw(partition, &what, &disk)?, entry),
            Source::Qcow2 { partition } => {
                (job.qcow2(partition, &what, &disk, &mut progress)?, entry)
            }
            Source::Oci { size, start } => {
                let (summary, entry) = job.oci((size, start), &what, &disk, &mut progress)?;
                (summary, Some(entry))
            }
        };
        let about = About {
            from,
            summary,
            entry,
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
            if let Some((name, Ok(key))) = parts.map(|(name, key)| (name, key.parse::<CacheKey>()))
            {
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
        // What is left of a folder without its disk is no image.
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
            let lock = match File::open(&lock) {
                Ok(lock) => lock,
                // Removed by hand: none that is under way lacks it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::remove_dir_all(&path).map_err(io_error("remove", &path))?;
                    continue;
                }
                Err(error) => return Err(io_error("open", &lock)(error)),
            };
            match lock.try_lock() {
                Ok(()) => fs::remove_dir_all(&path).map_err(io_error("remove", &path))?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
            }
        }
        let locks = self.dir.join("lock");
        for entry in list(&locks)? {
            let entry = entry.map_err(io_error("list", &locks))?;
            if entry.file_name().as_bytes().starts_with(b"import-") {
                remove_free(&entry.path());
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

/// Reads the record of an image; none if its removal broke off.
fn load(home: &Path, name: &str, key: CacheKey) -> Result<Option<Imported>, BuildError> {
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
        from: about.from,
        summary: about.summary,
        entry: about.entry,
    }))
}

/// Begins a key by the way an image is made and its name.
fn key_of(name: &ImageName, source: Source) -> KeyMaker {
    let mut key = KeyMaker::new(BUILDER);
    key.add(name.as_str().as_bytes());
    key.add(format!("{source:?}").as_bytes());
    key
}

#[cfg(test)]
mod tests;
