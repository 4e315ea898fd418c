//! The first file system a guest sees: its agent, the modules to load, and what
//! guest programs are given to work with.
//!
//! ```text
//! /init -> forkyard/bin/forkyard-guest
//! /modules                  names of files in /lib/modules, in loading order
//! /lib/modules/*.ko
//! /forkyard/bin/vmfork -> forkyard-guest
//! /forkyard/{bin,lib,include,python}/…
//! ```
//!
//! Not compressed: every byte saved on the host would cost the guest's CPU at
//! every boot. Each program is there once, for this is the guest's memory.

use crate::{
    cpio::{Archive, Entry},
    error::{BuildError, io_error},
    kernel::GuestKernel,
    key::{CacheKey, KeyMaker},
};
use std::{
    fs,
    io::BufWriter,
    path::{Path, PathBuf},
};

/// Raised whenever the same content is to give another archive.
const BUILDER: &str = "initramfs 1";

/// Empty directories: where the agent mounts things.
const MOUNT_POINTS: [&str; 5] = ["dev", "proc", "sys", "run", "newroot"];
/// Directories with something in them, parents first.
const DIRECTORIES: [&str; 7] = [
    "lib",
    "lib/modules",
    "forkyard",
    "forkyard/bin",
    "forkyard/lib",
    "forkyard/include",
    "forkyard/python",
];
/// The agent's binary is also what these names run.
const LINKS: [(&str, &str); 2] = [
    ("init", "forkyard/bin/forkyard-guest"),
    ("forkyard/bin/vmfork", "forkyard-guest"),
];

/// The programs and files a guest is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFiles {
    /// The agent: a static program, which is also `vmfork`.
    pub agent: PathBuf,
    /// The library for C programs, `libforkyard.so`.
    pub library: Option<PathBuf>,
    /// Header of the library, `forkyard.h`.
    pub header: Option<PathBuf>,
    /// The module for Python programs, `forkyard.py`.
    pub python: Option<PathBuf>,
    /// Library that reseeds generators of random numbers in clones.
    pub reseed: Option<Reseed>,
}

/// Files that reseed generators of random numbers in user space in clones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reseed {
    /// For OpenSSL, preloaded: `libforkyard-reseed.so`.
    pub library: PathBuf,
    /// For Python: `forkyard_reseed.py`.
    pub python: PathBuf,
    /// File that makes every Python program load it: `forkyard_reseed.pth`.
    pub python_path: PathBuf,
}

impl GuestFiles {
    /// Those of a directory laid out as it is installed: `bin/forkyard-guest`,
    /// `lib/libforkyard.so`, `include/forkyard.h`, `python/forkyard.py` and
    /// so on.
    pub fn in_dir(dir: &Path) -> Self {
        Self {
            agent: dir.join("bin/forkyard-guest"),
            library: Some(dir.join("lib/libforkyard.so")),
            header: Some(dir.join("include/forkyard.h")),
            python: Some(dir.join("python/forkyard.py")),
            reseed: Some(Reseed {
                library: dir.join("lib/libforkyard-reseed.so"),
                python: dir.join("python/forkyard_reseed.py"),
                python_path: dir.join("python/forkyard_reseed.pth"),
            }),
        }
    }

    fn places(&self) -> impl Iterator<Item = (&'static str, u32, &Path)> {
        let reseed = self.reseed.as_ref();
        let optional = [
            ("forkyard/lib/libforkyard.so", self.library.as_ref()),
            ("forkyard/include/forkyard.h", self.header.as_ref()),
            ("forkyard/python/forkyard.py", self.python.as_ref()),
            (
                "forkyard/lib/libforkyard-reseed.so",
                reseed.map(|reseed| &reseed.library),
            ),
            (
                "forkyard/python/forkyard_reseed.py",
                reseed.map(|reseed| &reseed.python),
            ),
            (
                "forkyard/python/forkyard_reseed.pth",
                reseed.map(|reseed| &reseed.python_path),
            ),
        ];
        std::iter::once(("forkyard/bin/forkyard-guest", 0o755, self.agent.as_path())).chain(
            optional
                .into_iter()
                .filter_map(|(place, path)| Some((place, 0o644, path?.as_path()))),
        )
    }
}

/// A file of the archive.
#[derive(Debug)]
struct Item {
    place: String,
    mode: u32,
    origin: PathBuf,
    bytes: Vec<u8>,
}

/// Everything that goes into one archive.
#[derive(Debug)]
pub(crate) struct Content {
    items: Vec<Item>,
}

impl Content {
    pub(crate) fn read(kernel: &GuestKernel, guest: &GuestFiles) -> Result<Self, BuildError> {
        let item = |place: String, mode, origin: &Path| {
            let bytes = fs::read(origin).map_err(io_error("read", origin))?;
            Ok(Item {
                place,
                mode,
                origin: origin.to_owned(),
                bytes,
            })
        };
        let mut items = guest
            .places()
            .map(|(place, mode, path)| item(place.to_owned(), mode, path))
            .collect::<Result<Vec<_>, BuildError>>()?;
        let mut order = String::new();
        for path in &kernel.modules {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            order.extend([&name, "\n"]);
            items.push(item(format!("lib/modules/{name}"), 0o644, path)?);
        }
        items.push(Item {
            place: "modules".into(),
            mode: 0o644,
            origin: "modules".into(),
            bytes: order.into_bytes(),
        });
        Ok(Self { items })
    }

    pub(crate) fn key(&self) -> CacheKey {
        let mut key = KeyMaker::new(BUILDER);
        for item in &self.items {
            key.add(item.place.as_bytes());
            key.add(&item.bytes);
        }
        key.finish()
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), BuildError> {
        let mut archive = Archive::new();
        let mut add = |place: &str, origin: &Path, entry: Entry<'_>| {
            archive.add(place, entry).map_err(|_| BuildError::TooLarge {
                path: origin.to_owned(),
            })
        };
        for place in MOUNT_POINTS.into_iter().chain(DIRECTORIES) {
            add(place, Path::new(place), Entry::Directory)?;
        }
        // The kernel opens this for /init before anything can make it.
        let console = Entry::Device { major: 5, minor: 1 };
        add("dev/console", Path::new("dev/console"), console)?;
        for (place, target) in LINKS {
            add(place, Path::new(place), Entry::Link { target })?;
        }
        for item in &self.items {
            let entry = Entry::File {
                mode: item.mode,
                content: &item.bytes,
            };
            add(&item.place, &item.origin, entry)?;
        }
        fs::File::create(path)
            .and_then(|file| archive.write_to(BufWriter::new(file)))
            .map_err(io_error("write", path))
    }
}

#[cfg(test)]
mod tests;
