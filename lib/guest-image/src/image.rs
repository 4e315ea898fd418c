//! From a recipe to a file system, without a mount or a loop device: packages
//! into a directory, files on top, and mke2fs makes a disk of it.

use crate::{
    apt,
    cache::Workplace,
    error::{BuildError, io_error},
    progress::{BuildEvent, Progress},
    recipe::{Body, Recipe},
    run::{MKE2FS, MMDEBSTRAP, Program},
};
use forkyard_confine::{Confinement, Lifespan, Network, Who};
use forkyard_files::inside;
use forkyard_types::ByteCount;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

/// Files that mmdebstrap copies from the host or leaves for itself.
const LEFT_OVERS: [&str; 3] = [
    "etc/hostname",
    "etc/resolv.conf",
    "etc/apt/apt.conf.d/99mmdebstrap",
];

/// Options by which a guest's file system is made:
/// - no blocks reserved for root, which is its only user;
/// - a journal, so that a disk frozen under a running guest mounts as after a
///   power cut, but the smallest there is: it is written over and over, and
///   each block of it that was written becomes part of a clone's own disk;
/// - tables zeroed now (holes in the file), not by a thread in every clone.
const MKE2FS_OPTIONS: [&str; 11] = [
    "-q",
    "-F",
    "-t",
    "ext4",
    "-b",
    "4096",
    "-m",
    "0",
    "-J",
    "size=4",
    "-Elazy_itable_init=0,lazy_journal_init=0,root_owner=0:0",
];

/// Builds the image; returns where it is.
pub(crate) fn build(
    recipe: &Recipe,
    work: &Workplace,
    progress: Progress<'_>,
) -> Result<PathBuf, BuildError> {
    as_root()?;
    let root = work.dir().join("root");
    progress(BuildEvent::Step("unpacking packages"));
    unpack(recipe.body(), work, &root, progress)?;
    progress(BuildEvent::Step("adding files"));
    furnish(recipe, &root, progress)?;
    progress(BuildEvent::Step("making the file system"));
    let image = work.dir().join("image");
    make_file_system(
        recipe.name(),
        &root,
        &image,
        Room::of(recipe.size()),
        work,
        progress,
    )?;
    Ok(image)
}

/// Refuses to go on without root.
pub(crate) fn as_root() -> Result<(), BuildError> {
    let me = fs::metadata("/proc/self").map_err(io_error("look at", "/proc/self"))?;
    match me.uid() {
        0 => Ok(()),
        _ => Err(BuildError::NotRoot),
    }
}

/// Room of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes, a whole number of KiB.
    pub size: ByteCount,
    /// Files; as many as usual for its size if not said.
    pub inodes: Option<u64>,
}

impl Room {
    /// The usual room in a disk of this size.
    pub fn of(size: ByteCount) -> Self {
        Self { size, inodes: None }
    }
}

/// Makes `image` a disk with what is in `root`.
pub(crate) fn make_file_system(
    name: &str,
    root: &Path,
    image: &Path,
    room: Room,
    work: &Workplace,
    progress: Progress<'_>,
) -> Result<(), BuildError> {
    let inodes = room.inodes.map(|count| format!("-N{count}"));
    // There already, for a folder that it could make files in is none of its business.
    File::create(image)
        .and_then(|file| file.set_len(room.size.0))
        .map_err(io_error("make", image))?;
    MKE2FS
        .call()
        .args(MKE2FS_OPTIONS)
        .args(inodes)
        .arg("-L")
        .arg(label(name))
        .args([Path::new("-d"), root, image])
        .arg(format!("{}K", room.size.0 >> 10))
        .confined(Confinement {
            who: Who::Reader,
            reads: &[root],
            writes: &[image],
            largest: room.size.0,
            network: Network::None,
            ends: Lifespan::WithStarter,
        })?
        .holding(work.lock())
        .run(progress)
        .map(drop)
}

/// A file system's label holds 16 bytes; a recipe's name is ASCII.
fn label(name: &str) -> &str {
    name.get(..16).unwrap_or(name)
}

fn unpack(
    body: &Body,
    work: &Workplace,
    root: &Path,
    progress: Progress<'_>,
) -> Result<(), BuildError> {
    let settings = work.dir().join("apt.conf");
    fs::write(&settings, apt::fetch_settings(progress)?).map_err(io_error("write", &settings))?;
    // Apart, for it mounts the host's /sys and /proc inside the tree: left
    // behind, these would be taken for part of it by the process that removes it.
    let mut call = MMDEBSTRAP
        .call_apart()
        .args(["--mode=root", "--format=directory"])
        .arg(format!("--variant={}", body.variant.as_str()))
        .arg(format!("--aptopt={}", settings.display()));
    if !body.packages.is_empty() {
        call = call.arg(format!("--include={}", body.packages.join(",")));
    }
    call.arg(&body.suite)
        .arg(root)
        .args(apt::sources(&body.suite)?.iter().map(apt::Source::line))
        .holding(work.lock())
        .run(progress)?;
    for name in LEFT_OVERS {
        let path = root.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", path)(e));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Adds what the recipe says beyond packages. Later entries win over earlier
/// ones, and all of them over what packages brought; applets fill the gaps.
fn furnish(recipe: &Recipe, root: &Path, progress: Progress<'_>) -> Result<(), BuildError> {
    let body = recipe.body();
    for path in &body.directories {
        inside::directory(root, path).map_err(io_error("make", path))?;
    }
    for file in &body.files {
        let content = recipe.content(file)?;
        let write = || -> io::Result<()> {
            let place = clear(root, &file.path)?;
            fs::write(&place, content)?;
            fs::set_permissions(&place, fs::Permissions::from_mode(file.mode))
        };
        write().map_err(io_error("write", &file.path))?;
    }
    for link in &body.links {
        clear(root, &link.path)
            .and_then(|place| symlink(&link.target, place))
            .map_err(io_error("link", &link.path))?;
    }
    match &body.busybox {
        Some(path) => link_applets(path, root, progress),
        None => Ok(()),
    }
}

/// Links every applet of the busybox at `path` to it, where nothing else is.
fn link_applets(path: &Path, root: &Path, progress: Progress<'_>) -> Result<(), BuildError> {
    let place = inside::place(root, path).map_err(io_error("find", path))?;
    let applets = Program::new("busybox", "busybox-static")
        .call_at(&place)
        .arg("--list-full")
        .run(progress)?;
    for applet in String::from_utf8_lossy(&applets).lines() {
        let link = || -> io::Result<()> {
            let place = inside::place(root, &Path::new("/").join(applet))?;
            match symlink(path, place) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            }
        };
        link().map_err(io_error("link", applet))?;
    }
    Ok(())
}

/// Returns where `path` is, with nothing there any more: writing through a link that a
/// package left would end up elsewhere.
fn clear(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let place = inside::place(root, path)?;
    match fs::remove_file(&place) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(place),
    }
}
