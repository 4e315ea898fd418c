//! Folder of finished things, and how several builders share it.
//!
//! ```text
//! DIR/images/NAME-KEY.raw     disks
//!     imported/NAME-KEY/      disks that were imported, and what is known of them
//!     kernels/RELEASE-KEY/    kernels; `debian` links to the one in use
//!     initramfs/KEY.cpio
//!     lock/WHAT               held while WHAT is being built
//!     tmp/WHAT/               where it is built
//! ```
//!
//! A name appears only when its content is complete and on disk. Nothing here
//! knows whether a VM uses a file: the caller that removes one must.

use crate::{
    error::{BuildError, io_error},
    image,
    initramfs::{self, GuestFiles},
    kernel::{self, GuestKernel, KernelChoice},
    key::CacheKey,
    progress::{BuildEvent, Progress},
    recipe::Recipe,
};
use forkyard_sys_host::private;
use forkyard_types::ByteCount;
use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// A directory of things already built. Any number of processes may use one.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(crate) dir: PathBuf,
    pub(crate) unpacker: Option<PathBuf>,
}

/// A guest's disk: a raw ext4 file system, to be read and never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Name of the recipe it was made from, or the one it was imported under.
    pub name: String,
    /// Key of its inputs.
    pub key: CacheKey,
    /// Path.
    pub path: PathBuf,
    /// Size of the disk as the guest sees it; the file has holes.
    pub size: ByteCount,
}

impl Cache {
    /// Folder of the daemon's cache unless told otherwise.
    pub const DEFAULT_DIR: &str = "/var/cache/forkyard";

    /// The cache in `dir`, which is made when something is built.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            unpacker: None,
        }
    }

    /// Has `program` (`forkyard-unpack`) unpack what others have packed, in a
    /// process that can do nothing else. Without it, this process does.
    pub fn unpacking_by(self, program: PathBuf) -> Self {
        Self {
            unpacker: Some(program),
            ..self
        }
    }

    /// The image of `recipe`, built if it is not there: then this takes root,
    /// Debian's archive and up to a few minutes.
    pub fn image(
        &self,
        recipe: &Recipe,
        mut progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<ImageFile, BuildError> {
        let key = recipe.key()?;
        let file = ImageFile {
            name: recipe.name().to_owned(),
            key,
            path: self
                .images_dir()
                .join(format!("{}-{key}.raw", recipe.name())),
            size: recipe.size(),
        };
        self.make(
            &format!("image-{}", recipe.name()),
            &file.path,
            &mut progress,
            |work, p| image::build(recipe, work, p),
        )?;
        Ok(file)
    }

    /// The kernel of `choice`. Debian's is fetched once and then kept; see
    /// [`Cache::forget_kernel`] for a newer one.
    pub fn kernel(
        &self,
        choice: &KernelChoice,
        mut progress: impl FnMut(BuildEvent<'_>),
    ) -> Result<GuestKernel, BuildError> {
        match choice {
            KernelChoice::File(path) => GuestKernel::from_file(path),
            KernelChoice::Debian => {
                let current = self.current_kernel();
                self.make("kernel", &current, &mut progress, |work, p| {
                    let built = kernel::fetch(work, p)?;
                    self.keep_kernel(work, &built)
                })?;
                GuestKernel::load(&current)
            }
        }
    }

    /// Makes the next request for Debian's kernel fetch its present one. The
    /// files of the old one stay, for what is built on them.
    pub fn forget_kernel(&self) -> Result<(), BuildError> {
        remove(&self.current_kernel())
    }

    /// The initramfs with `kernel`'s modules and the guest's programs.
    pub fn initramfs(
        &self,
        kernel: &GuestKernel,
        guest: &GuestFiles,
    ) -> Result<PathBuf, BuildError> {
        let content = initramfs::Content::read(kernel, guest)?;
        let path = self.dir.join(format!("initramfs/{}.cpio", content.key()));
        self.make("initramfs", &path, &mut |_| {}, |work, _| {
            let built = work.dir().join("initramfs");
            content.write(&built)?;
            Ok(built)
        })?;
        Ok(path)
    }

    /// Every image there is, by name. Several may have one name: older ones
    /// stay until they are removed, for a VM may run on them.
    pub fn images(&self) -> Result<Vec<ImageFile>, BuildError> {
        let dir = self.images_dir();
        let mut images = Vec::new();
        for entry in list(&dir)? {
            let path = entry.map_err(io_error("list", &dir))?.path();
            let stem = path
                .file_name()
                .and_then(|n| n.to_str()?.strip_suffix(".raw"));
            let parts = stem.and_then(|s| s.rsplit_once('-'));
            let Some((name, Ok(key))) = parts.map(|(n, k)| (n.to_owned(), k.parse())) else {
                continue;
            };
            let meta = fs::metadata(&path).map_err(io_error("look at", &path))?;
            let size = ByteCount(meta.len());
            images.push(ImageFile {
                name,
                key,
                path,
                size,
            });
        }
        images.sort_by(|a, b| (&a.name, a.key).cmp(&(&b.name, b.key)));
        Ok(images)
    }

    /// Removes an image. One that has gone already is no error.
    pub fn remove(&self, image: &ImageFile) -> Result<(), BuildError> {
        remove(&image.path)
    }

    fn images_dir(&self) -> PathBuf {
        self.dir.join("images")
    }

    fn current_kernel(&self) -> PathBuf {
        // One that an older version has fetched may lack what this one wants.
        self.dir.join(format!("kernels/debian-{}", kernel::WANTS))
    }

    /// Gives a kernel the name of its content; returns a link to it, not yet in
    /// its place.
    fn keep_kernel(
        &self,
        work: &Workplace,
        built: &kernel::Fetched,
    ) -> Result<PathBuf, BuildError> {
        let home = self.dir.join("kernels").join(&built.name);
        if !home.exists() {
            publish(&built.dir, &home)?;
        }
        let link = work.dir().join("debian");
        std::os::unix::fs::symlink(&built.name, &link).map_err(io_error("make", &link))?;
        Ok(link)
    }

    /// Sees to it that `path` exists. If it does not, waits for the process that is
    /// building `what`, looks again, and has it built.
    fn make(
        &self,
        what: &str,
        path: &Path,
        progress: Progress<'_>,
        build: impl FnOnce(&Workplace, Progress<'_>) -> Result<PathBuf, BuildError>,
    ) -> Result<(), BuildError> {
        if path.exists() {
            return Ok(());
        }
        let work = Workplace::enter(&self.dir, what, progress)?;
        if path.exists() {
            return Ok(());
        }
        let built = build(&work, progress)?;
        publish(&built, path)
    }
}

/// A directory to build in, all its own while it lives, and gone afterwards.
#[derive(Debug)]
pub(crate) struct Workplace {
    dir: PathBuf,
    lock: File,
    /// Dropped after the lock.
    _spent: SpentLock,
}

/// File of a lock that was held.
#[derive(Debug)]
struct SpentLock(PathBuf);

impl Drop for SpentLock {
    fn drop(&mut self) {
        // A program that was left over may hold it still, and then keeps others out.
        remove_free(&self.0);
    }
}

/// Removes the file of a lock, unless it is held.
pub(crate) fn remove_free(path: &Path) {
    if let Ok(lock) = private::open(path)
        && lock.try_lock().is_ok()
        && is_at(&lock, path)
    {
        // One that cannot be removed is used again.
        let _ = fs::remove_file(path);
    }
}

/// Tells whether a path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(found)) => (file.dev(), file.ino()) == (found.dev(), found.ino()),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

impl Workplace {
    pub(crate) fn enter(
        cache: &Path,
        what: &str,
        progress: Progress<'_>,
    ) -> Result<Self, BuildError> {
        let locks = cache.join("lock");
        fs::create_dir_all(&locks).map_err(io_error("make", &locks))?;
        let path = locks.join(what);
        let lock = loop {
            // A user that could open it could hold the lock.
            let lock = private::open(&path).map_err(io_error("open", &path))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    progress(BuildEvent::Waiting);
                    lock.lock().map_err(io_error("lock", &path))?;
                }
                Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
            }
            // The one before may have removed it.
            if is_at(&lock, &path) {
                break lock;
            }
        };
        // What is here now was left by a build that was interrupted.
        let dir = cache.join("tmp").join(what);
        match fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &dir)(e));
            }
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(&dir).map_err(io_error("make", &dir))?;
        Ok(Self {
            dir,
            lock,
            _spent: SpentLock(path),
        })
    }

    /// Returns the folder to build in.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lock that makes it ours, for programs that work in it.
    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // What cannot be removed now, the next build removes or complains of.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Gives a finished file, directory or link its name, once and whole.
pub(crate) fn publish(built: &Path, path: &Path) -> Result<(), BuildError> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    if !built.is_symlink() {
        sync(built)?;
    }
    fs::rename(built, path).map_err(io_error("make", path))?;
    sync_one(dir)
}

/// Puts a file, or a directory and what is in it, on disk.
fn sync(path: &Path) -> Result<(), BuildError> {
    if path.is_dir() {
        for entry in list(path)? {
            sync(&entry.map_err(io_error("list", path))?.path())?;
        }
    }
    sync_one(path)
}

fn sync_one(path: &Path) -> Result<(), BuildError> {
    File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(io_error("sync", path))
}

/// Lists a directory; nothing if there is no such directory.
pub(crate) fn list(dir: &Path) -> Result<Vec<io::Result<fs::DirEntry>>, BuildError> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(io_error("list", dir)(e)),
    }
}

fn remove(path: &Path) -> Result<(), BuildError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
