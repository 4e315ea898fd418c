//! The kernel a guest boots: Debian's for clouds, or one of the user's own.
//!
//! Debian's is fetched as a package and unpacked, never installed: the host's
//! boot loader, its initramfs hooks and its own kernel are not touched. Apt
//! works on lists of its own, so that it neither needs the host's to be
//! fresh nor changes them, and needs no privilege.

use crate::{
    apt,
    cache::Workplace,
    error::{BuildError, io_error},
    key::KeyMaker,
    modules::{self, Found, ModuleError},
    progress::{BuildEvent, Progress},
    run::{APT_CACHE, APT_GET, Call, DPKG_DEB, Program, XZ},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Depends on whatever kernel for clouds is current.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Release whose kernel it is.
const SUITE: &str = "bookworm";
/// Raised whenever the same package is to give other files.
const BUILDER: &str = "kernel 1";
/// Raised whenever other modules are wanted.
pub(crate) const WANTS: u32 = 2;

/// Kernel to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// Debian's kernel for clouds.
    Debian,
    /// This file, a bzImage or a vmlinux with virtio and ext4 built in.
    File(PathBuf),
}

/// A kernel, and the modules its guest must load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// File that QEMU boots.
    pub image: PathBuf,
    /// Modules as files, in the order in which to load them.
    pub modules: Vec<PathBuf>,
    /// Version by its own account; unknown for a file of the user's.
    pub release: Option<String>,
}

/// A kernel that was unpacked, in a directory that may be moved.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
}

/// Reasons for which a file is not there, whatever was meant.
const ABSENT: [io::ErrorKind; 4] = [
    io::ErrorKind::InvalidFilename,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::NotADirectory,
    io::ErrorKind::NotFound,
];

impl GuestKernel {
    pub(crate) fn from_file(path: &Path) -> Result<Self, BuildError> {
        // Not opened: a FIFO would hold up its reader, and there are devices that do something.
        let unfit = |why| BuildError::UnfitKernel {
            path: path.into(),
            why,
        };
        let facts = match fs::metadata(path) {
            Err(error) if ABSENT.contains(&error.kind()) => {
                return Err(unfit("there is no such file"));
            }
            found => found.map_err(io_error("find", path))?,
        };
        if !facts.is_file() {
            return Err(BuildError::NoFile { path: path.into() });
        }
        // It is read as its VM's own user.
        if facts.mode() & 0o004 == 0 {
            return Err(unfit("VMs, which have users of their own, may not read it"));
        }
        let mut head = [0; 0x206];
        let read = File::options()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .and_then(|mut file| file.read_exact(&mut head));
        let has_magic = head[0x202..] == *b"HdrS" || head.starts_with(b"\x7fELF");
        match read {
            Ok(()) if has_magic => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(io_error("read", path)(error));
            }
            Ok(()) | Err(_) => return Err(unfit("it is neither a bzImage nor an ELF file")),
        }
        Ok(Self {
            image: path.to_owned(),
            modules: Vec::new(),
            release: None,
        })
    }

    /// Reads what [`fetch`] left in a directory.
    pub(crate) fn load(dir: &Path) -> Result<Self, BuildError> {
        // Through the link to what it means now: it may be turned elsewhere.
        let dir = fs::canonicalize(dir).map_err(io_error("open", dir))?;
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(io_error("read", path))
        };
        Ok(Self {
            image: dir.join("vmlinuz"),
            modules: read("modules.order")?
                .lines()
                .map(|file| dir.join("modules").join(file))
                .collect(),
            release: Some(read("release")?.trim().to_owned()),
        })
    }
}

/// Fetches Debian's current kernel and unpacks what a guest needs of it.
pub(crate) fn fetch(work: &Workplace, progress: Progress<'_>) -> Result<Fetched, BuildError> {
    progress(BuildEvent::Step("fetching Debian's kernel"));
    let apt = Apt::set_up(work, progress)?;
    let package = apt.current_kernel(progress)?;
    let deb = apt.download(&package, progress)?;
    progress(BuildEvent::Step("unpacking the kernel"));
    let tree = work.dir().join("tree");
    DPKG_DEB
        .call()
        .arg("--extract")
        .args([&deb, &tree])
        .holding(work.lock())
        .run(progress)?;
    gather(&tree, &work.dir().join("kernel"), progress)
}

/// Apt with lists and a cache of its own.
struct Apt<'a> {
    work: &'a Workplace,
    options: Vec<String>,
}

impl<'a> Apt<'a> {
    fn set_up(work: &'a Workplace, progress: Progress<'_>) -> Result<Self, BuildError> {
        let dir = work.dir();
        let path = dir.join("sources.list");
        let sources = apt::sources(SUITE)?;
        let text: String = sources.iter().map(|s| s.line() + "\n").collect();
        fs::write(&path, text).map_err(io_error("write", &path))?;
        for name in ["lists/partial", "archives/partial"] {
            let path = dir.join(name);
            fs::create_dir_all(&path).map_err(io_error("make", &path))?;
        }
        let at = |key: &str, name: &str| format!("-o{key}={}", dir.join(name).display());
        let apt = Self {
            work,
            options: vec![
                at("Dir::Etc::sourcelist", "sources.list"),
                at("Dir::State::lists", "lists"),
                at("Dir::Cache", "."),
                "-oDir::Etc::sourceparts=-".into(),
                "-oAcquire::Languages=none".into(),
                "-oAPT::Architecture=amd64".into(),
                // The user apt would become may not enter this directory.
                "-oAPT::Sandbox::User=root".into(),
            ],
        };
        // A list that cannot be had is a warning to apt, and an error to us.
        let strict = "-oAPT::Update::Error-Mode=any";
        apt.call(APT_GET).args([strict, "update"]).run(progress)?;
        Ok(apt)
    }

    fn call(&self, program: Program) -> Call<'a> {
        program
            .call()
            .current_dir(self.work.dir())
            .holding(self.work.lock())
            .args(&self.options)
    }

    /// The kernel that [`PACKAGE`] stands for today.
    fn current_kernel(&self, progress: Progress<'_>) -> Result<String, BuildError> {
        let shown = self
            .call(APT_CACHE)
            .args(["show", "--no-all-versions", PACKAGE])
            .run(progress)?;
        kernel_of(&String::from_utf8_lossy(&shown)).ok_or(BuildError::NoKernel { package: PACKAGE })
    }

    /// Fetches one package; apt checks it against the archive's signature.
    fn download(&self, package: &str, progress: Progress<'_>) -> Result<PathBuf, BuildError> {
        self.call(APT_GET)
            .args(["download", package])
            .run(progress)?;
        let dir = self.work.dir();
        let is_deb = |path: &PathBuf| path.extension().is_some_and(|e| e == "deb");
        let mut files = entries(dir)?;
        files.retain(is_deb);
        files.pop().ok_or(BuildError::NoKernel { package: PACKAGE })
    }
}

/// The kernel a package depends on, from what `apt-cache show` says of it.
fn kernel_of(shown: &str) -> Option<String> {
    let depends = shown.lines().find_map(|l| l.strip_prefix("Depends:"))?;
    let names = depends
        .split([',', '|'])
        .filter_map(|d| d.split_whitespace().next());
    names
        .filter(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .next()
}

/// Picks from an unpacked package what a guest needs.
fn gather(tree: &Path, dir: &Path, progress: Progress<'_>) -> Result<Fetched, BuildError> {
    let vmlinuz = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        Some((path.clone(), name.strip_prefix("vmlinuz-")?.to_owned()))
    };
    let boot = entries(&tree.join("boot"))?;
    let (image, release) = boot
        .iter()
        .find_map(vmlinuz)
        .ok_or(BuildError::NoKernel { package: PACKAGE })?;
    let index = Index::read(&tree.join("lib/modules").join(&release))?;

    let mut bytes = BTreeMap::new();
    let order = modules::load_order(&modules::WANTED, &mut |name| {
        index.find(name, &mut bytes, progress)
    })?;

    let mut key = KeyMaker::new(BUILDER);
    let put =
        |path: PathBuf, content: &[u8]| fs::write(&path, content).map_err(io_error("write", path));
    let modules_dir = dir.join("modules");
    fs::create_dir_all(&modules_dir).map_err(io_error("make", &modules_dir))?;
    let kernel = fs::read(&image).map_err(io_error("read", &image))?;
    key.add(&kernel);
    put(dir.join("vmlinuz"), &kernel)?;
    for (name, content) in &bytes {
        key.add(name.as_bytes());
        key.add(content);
        put(modules_dir.join(format!("{name}.ko")), content)?;
    }
    let list: String = order.iter().map(|name| format!("{name}.ko\n")).collect();
    put(dir.join("modules.order"), list.as_bytes())?;
    put(dir.join("release"), release.as_bytes())?;
    Ok(Fetched {
        dir: dir.to_owned(),
        name: format!("{release}-{}", key.finish()),
    })
}

/// Index of a kernel's modules.
#[derive(Debug)]
struct Index {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Index {
    fn read(dir: &Path) -> Result<Self, BuildError> {
        let list = dir.join("modules.builtin");
        let text = fs::read_to_string(&list).map_err(io_error("read", list))?;
        let mut files = BTreeMap::new();
        collect(dir, &mut files)?;
        Ok(Self {
            files,
            built_in: text.lines().filter_map(modules::name_of_file).collect(),
        })
    }

    /// Finds a module, keeps its bytes, and says what it needs.
    fn find(
        &self,
        name: &str,
        bytes: &mut BTreeMap<String, Vec<u8>>,
        progress: Progress<'_>,
    ) -> Result<Found, BuildError> {
        let Some(path) = self.files.get(name) else {
            return if self.built_in.contains(name) {
                Ok(Found::BuiltIn)
            } else {
                Err(ModuleError::Missing { name: name.into() }.into())
            };
        };
        let content = match path.extension().and_then(|e| e.to_str()) {
            Some("ko") => fs::read(path).map_err(io_error("read", path))?,
            Some("xz") => XZ.call().args(["-dc"]).arg(path).run(progress)?,
            Some(_) | None => {
                return Err(ModuleError::Compression { name: name.into() }.into());
            }
        };
        let needs = modules::needs_of(name, &content)?;
        bytes.insert(name.to_owned(), content);
        Ok(Found::Module { needs })
    }
}

/// Finds every module below `dir`.
fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), BuildError> {
    for path in entries(dir)? {
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = path.to_str().and_then(modules::name_of_file) {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(dir)?.map(|e| e.map(|e| e.path()));
        entries.collect()
    };
    read().map_err(io_error("list", dir))
}

#[cfg(test)]
mod tests;
