//! From an archive of a container image to a tree: all that is done with what others have
//! packed, and nothing else. A process of its own does it ([`super::apart`]), that can do
//! nothing else either.
//!
//! ```text
//! archive --gzip, xz, zstd--> tar --parts, digests--> layers --one over the other--> tree
//! ```

use super::{
    ArchiveError, Cancel, ImportError, MOST, PAGE, PIECE,
    archive::Parts,
    compressed,
    error::LayerError,
    layer::{Budget, Tree},
    oci, write_sparse,
};
use crate::{
    cache::list,
    error::{BuildError, io_error},
};
use forkyard_files::inside;
use forkyard_types::{ByteCount, EntryPoint, Start};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Most bytes in a container image, unless its disk is said to be larger.
const UNPACKED: ByteCount = ByteCount(32 << 30);
/// Most entries in all layers of a container image.
const ENTRIES: u64 = 4_000_000;
/// Bytes of headers and padding that an entry of an archive may have on average.
const HEADERS: u64 = 4096;
/// Folders that a container expects, with their modes.
const FOLDERS: [(&str, u32); 6] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/proc", 0o555),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
];

/// Folders on which the guest's init mounts file systems of the kernel's, one after the other.
const MOUNTED: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Archive to be unpacked, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The archive, as it came in.
    pub archive: PathBuf,
    /// A file to be made of an archive that is compressed.
    pub expanded: PathBuf,
    /// An empty folder that nothing else uses, for the tree.
    pub root: PathBuf,
    /// Size of the disk that it is for.
    pub size: Option<ByteCount>,
    /// Time at which the image's entry point is run.
    pub start: Start,
    /// Level of the architecture that guests have.
    pub level: u8,
}

/// A tree that was unpacked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unpacked {
    /// Entry point of the image, which is in the tree, too.
    pub(super) entry: EntryPoint,
    /// The platform that it is for.
    pub(super) platform: String,
    pub(super) taken: Taken,
}

/// Room that a tree takes on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taken {
    pub bytes: u64,
    pub files: u64,
}

/// Most bytes of an archive that is unpacked as it comes in: its layers, unless its
/// disk is said to be larger, and their headers.
pub(super) fn unpacked_at_most(size: Option<ByteCount>) -> ByteCount {
    ByteCount(size.unwrap_or(UNPACKED).0 + ENTRIES * HEADERS)
}

/// Unpacks it. What is there after a failure is of no use.
pub(super) fn unpack(order: &Order, cancel: &Cancel) -> Result<Unpacked, ImportError> {
    let parts = Parts::of(opened(order, cancel)?)?;
    let chosen = oci::choose(&parts, order.level)?;
    let root = &order.root;
    fs::set_permissions(root, Permissions::from_mode(0o755)).map_err(io_error("make", root))?;
    let budget = Budget::new(order.size.unwrap_or(UNPACKED), ENTRIES);
    let mut tree = Tree::new(root, budget, cancel);
    for (layer, number) in chosen.layers.iter().zip(1..) {
        let (from, _) = parts.open(&layer.part)?;
        let wanted = layer.unpacked;
        let found = tree
            .apply(from)
            .map_err(|source| in_layer(number, source))?;
        if found != wanted {
            let name = format!("layer {number}, unpacked,");
            return Err(ArchiveError::Digest {
                name,
                found,
                wanted,
            }
            .into());
        }
    }
    tree.finish().map_err(|source| in_layer(0, source))?;
    let entry = EntryPoint {
        start: order.start,
        ..chosen.entry
    };
    furnish(root, &entry)?;
    cancel.check()?;
    Ok(Unpacked {
        entry,
        platform: chosen.platform,
        taken: measure(root)?,
    })
}

/// Opens the archive, expanded if it is compressed.
fn opened(order: &Order, cancel: &Cancel) -> Result<File, ImportError> {
    let path = &order.archive;
    let file = File::open(path).map_err(io_error("read", path))?;
    let by = compressed::unpacked(&file).map_err(unreadable)?.by;
    (&file).rewind().map_err(io_error("read", path))?;
    match by {
        None => Ok(file),
        Some(_) => {
            let most = unpacked_at_most(order.size).min(MOST);
            expand(&file, &order.expanded, most, cancel)
        }
    }
}

/// Writes down what a compressed archive unpacks to.
pub(super) fn expand(
    from: impl Read,
    path: &Path,
    most: ByteCount,
    cancel: &Cancel,
) -> Result<File, ImportError> {
    let mut from = compressed::unpacked(from).map_err(unreadable)?.from;
    let to = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(io_error("create", path))?;
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        cancel.check()?;
        let filled = fill(&mut from, &mut piece).map_err(unreadable)?;
        if filled == 0 {
            break;
        }
        let at = size;
        size += filled as u64;
        if size > most.0 {
            return Err(ArchiveError::Unpacks { most }.into());
        }
        write_sparse(&to, &piece[..filled], at).map_err(io_error("write", path))?;
    }
    to.set_len(size).map_err(io_error("write", path))?;
    Ok(to)
}

/// An archive that cannot be read. What broke off on its way is not to be told from what was
/// cut off before.
fn unreadable(source: io::Error) -> ImportError {
    match source.kind() == io::ErrorKind::UnexpectedEof {
        true => ImportError::Incoming { source },
        false => ArchiveError::Tar { source }.into(),
    }
}

/// Reads as much as there is room for, less at the end alone.
pub(super) fn fill(from: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

fn in_layer(number: usize, source: LayerError) -> ImportError {
    if matches!(source, LayerError::Cancelled) {
        return ImportError::Cancelled;
    }
    ArchiveError::Layer { number, source }.into()
}

/// Adds what a guest has and a container image need not: folders to mount
/// things on, and what is to run.
fn furnish(root: &Path, entry: &EntryPoint) -> Result<(), ImportError> {
    for (path, mode) in FOLDERS {
        inside::directory_with(root, Path::new(path), mode).map_err(io_error("make", path))?;
    }
    check_mounted(root)?;
    if *entry == EntryPoint::default() {
        return Ok(());
    }
    if !entry.dir.is_empty() {
        inside::directory(root, Path::new(&entry.dir)).map_err(io_error("make", &entry.dir))?;
    }
    let write = || -> io::Result<()> {
        let place = inside::place(root, Path::new(EntryPoint::PLACE))?;
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = File::create_new(place)?;
        file.write_all(&serde_json::to_vec_pretty(entry).map_err(io::Error::other)?)?;
        file.set_permissions(Permissions::from_mode(0o644))
    };
    write().map_err(io_error("write", EntryPoint::PLACE))?;
    Ok(())
}

/// Refuses links by which a guest's file systems would hide what is in the image, or each other.
fn check_mounted(root: &Path) -> Result<(), ImportError> {
    let mut mounted: Vec<(&str, PathBuf)> = Vec::new();
    for place in MOUNTED {
        let found = inside::directory(root, Path::new(place)).map_err(io_error("make", place))?;
        let led = found.strip_prefix(root).unwrap_or(&found);
        let led = Path::new("/").join(led);
        let refuse = |why| Err(ArchiveError::Mount { place, why }.into());
        if led != Path::new(place) && !list(&found)?.is_empty() {
            let led = led.display();
            return refuse(format!("is a link to {led}, which is not empty"));
        }
        let other = mounted.iter().find(|(_, other)| {
            // The link to the folder may be either of the two.
            found.starts_with(other) || other.starts_with(&found)
        });
        if let Some((other, _)) = other {
            return refuse(format!(
                "is a link into the folder of {other}, or the reverse"
            ));
        }
        mounted.push((place, found));
    }
    Ok(())
}

fn measure(root: &Path) -> Result<Taken, BuildError> {
    let mut taken = Taken::default();
    let mut seen = HashSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in list(&folder)? {
            let path = entry.map_err(io_error("list", &folder))?.path();
            let facts = path
                .symlink_metadata()
                .map_err(io_error("look at", &path))?;
            if facts.nlink() > 1 && !facts.is_dir() && !seen.insert(facts.ino()) {
                continue;
            }
            taken.files += 1;
            taken.bytes += facts.len().next_multiple_of(PAGE as u64);
            if facts.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn refusal(links: &[(&str, &str)]) -> Option<&'static str> {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for folder in ["bin", "etc", "var"] {
            fs::create_dir(root.join(folder)).expect("made");
        }
        fs::write(root.join("bin/sh"), "").expect("written");
        for (place, target) in links {
            symlink(target, root.join(place)).expect("linked");
        }
        match furnish(root, &EntryPoint::default()) {
            Ok(()) => None,
            Err(ImportError::Archive(ArchiveError::Mount { place, .. })) => Some(place),
            Err(other) => panic!("{links:?}: {other}"),
        }
    }

    #[test]
    fn links_are_refused_by_which_what_is_mounted_would_hide_something() {
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&[("dev", "/var/dev"), ("run", "bin")]), None);
        assert_eq!(refusal(&[("dev", "/bin")]), Some("/dev"));
        assert_eq!(refusal(&[("sys", "bin")]), Some("/sys"));
        assert_eq!(refusal(&[("proc", "/")]), Some("/proc"));
        assert_eq!(refusal(&[("sys", "proc")]), Some("/sys"));
        assert_eq!(refusal(&[("dev", "sys/dev")]), Some("/dev"));
    }
}
