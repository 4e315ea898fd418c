//! From what came in to a disk that a guest can have.

use super::{
    ArchiveError, Cancel, DiskError, ImportError, MOST, PAGE, PIECE,
    archive::Parts,
    cpu,
    error::LayerError,
    layer::{Budget, Tree},
    oci, qcow2, volume, write_sparse,
};
use crate::{
    cache::{Workplace, list},
    error::{BuildError, io_error},
    image::{Room, make_file_system},
    progress::{Event, Progress},
    run::QEMU_IMG,
};
use forkyard_confine::{Confinement, Ends, NOBODY, Network, Who};
use forkyard_files::inside;
use forkyard_types::{ByteCount, EntryPoint, ImageName, Start};
use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, fchown},
    path::Path,
};

/// Smallest disk made for a container image, and the step of sizes.
const LEAST: ByteCount = ByteCount(16 << 20);
const MIB: u64 = 1 << 20;
/// Most bytes in a container image, unless its disk is said to be larger.
const UNPACKED: ByteCount = ByteCount(32 << 30);
/// Most entries in all layers of a container image.
const ENTRIES: u64 = 4_000_000;
/// Bytes of headers and padding that an entry of an archive may have on average.
const HEADERS: u64 = 4096;
/// Room to work in that a disk has beside what is in the image.
const SPARE: u64 = 512 << 20;
/// Files there is room for beside those of the image.
const SPARE_FILES: u64 = 32_768;
/// Where a container expects folders, with the modes they have.
const FOLDERS: [(&str, u32); 6] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/proc", 0o555),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
];

/// Most bytes of an archive that is unpacked as it comes in: its layers, unless its
/// disk is said to be larger, and their headers.
pub(super) fn unpacked_at_most(size: Option<ByteCount>) -> ByteCount {
    ByteCount(size.unwrap_or(UNPACKED).0 + ENTRIES * HEADERS)
}

/// One import.
pub(super) struct Job<'a> {
    pub name: &'a ImageName,
    pub work: &'a Workplace,
    pub incoming: &'a Path,
    pub cancel: &'a Cancel,
}

impl Job<'_> {
    fn open_incoming(&self) -> Result<File, BuildError> {
        File::open(self.incoming).map_err(io_error("read", self.incoming))
    }

    pub fn raw(
        &self,
        partition: Option<u32>,
        what: &str,
        disk: &Path,
    ) -> Result<String, ImportError> {
        let file = self.open_incoming()?;
        let mut head = [0; 4];
        let there = file
            .read_at(&mut head, 0)
            .map_err(io_error("read", self.incoming))?;
        if qcow2::begins(&head[..there]) {
            return Err(DiskError::IsQcow2.into());
        }
        self.cut(self.incoming, partition, disk)?;
        Ok(described(what, partition))
    }

    pub fn qcow2(
        &self,
        partition: Option<u32>,
        what: &str,
        disk: &Path,
        progress: Progress<'_>,
    ) -> Result<String, ImportError> {
        let file = self.open_incoming()?;
        let size = qcow2::alone(&file).map_err(io_error("read", self.incoming))??;
        if size > MOST {
            return Err(DiskError::TooLarge { size, most: MOST }.into());
        }
        progress(Event::Step("converting the disk"));
        let raw = self.work.dir().join("raw");
        let to = File::create_new(&raw).map_err(io_error("create", &raw))?;
        // Of zeros, as it is told, so that it writes nothing but what is not.
        let to_be_read = chown(self.incoming, Some(NOBODY), Some(NOBODY));
        to.set_len(size.0.next_multiple_of(512))
            .and_then(|()| fchown(&to, Some(NOBODY), Some(NOBODY)))
            .and(to_be_read)
            .map_err(io_error("make", &raw))?;
        QEMU_IMG
            .call()
            .args(["convert", "-q", "-n", "--target-is-zero"])
            .args(["-f", "qcow2", "-O", "raw"])
            .args([self.incoming, &raw])
            .confined(Confinement {
                who: Who::Nobody,
                reads: &[self.incoming],
                writes: &[&raw],
                largest: MOST.0,
                network: Network::None,
                ends: Ends::WithStarter,
            })?
            .holding(self.work.lock())
            .run(progress)?;
        self.cancel.check()?;
        self.cut(&raw, partition, disk)?;
        Ok(described(what, partition))
    }

    /// Makes the root file system on a disk a disk.
    fn cut(&self, from: &Path, partition: Option<u32>, disk: &Path) -> Result<(), ImportError> {
        let read = |error| io_error("read", from)(error);
        let source = File::open(from).map_err(read)?;
        let read = |error| io_error("read", from)(error);
        let bytes = volume::find(&source, partition).map_err(read)??;
        let length = bytes.end - bytes.start;
        if partition.is_none() {
            fs::rename(from, disk).map_err(io_error("move", from))?;
        } else {
            let to = File::create_new(disk).map_err(io_error("create", disk))?;
            let mut piece = vec![0; PIECE];
            let mut done = 0;
            while done < length {
                self.cancel.check()?;
                let most = usize::try_from(length - done).unwrap_or(PIECE).min(PIECE);
                source
                    .read_exact_at(&mut piece[..most], bytes.start + done)
                    .map_err(io_error("read", from))?;
                write_sparse(&to, &piece[..most], done).map_err(io_error("write", disk))?;
                done += most as u64;
            }
        }
        // A guest's disk is whole pages, and the file system need not know.
        File::options()
            .write(true)
            .open(disk)
            .and_then(|file| file.set_len(length.next_multiple_of(PAGE as u64)))
            .map_err(io_error("write", disk))?;
        Ok(())
    }

    pub fn oci(
        &self,
        (size, start): (Option<ByteCount>, Start),
        what: &str,
        disk: &Path,
        progress: Progress<'_>,
    ) -> Result<(String, EntryPoint), ImportError> {
        if let Some(size) = size
            && !(LEAST..=MOST).contains(&size)
        {
            return Err(ArchiveError::DiskSize(size).into());
        }
        progress(Event::Step("checking the archive"));
        let parts = Parts::of(self.open_incoming()?)?;
        let chosen = oci::choose(&parts, cpu::level())?;
        let root = self.work.dir().join("root");
        fs::create_dir(&root)
            .and_then(|()| fs::set_permissions(&root, Permissions::from_mode(0o755)))
            .map_err(io_error("make", &root))?;
        let budget = Budget::new(size.unwrap_or(UNPACKED), ENTRIES);
        let mut tree = Tree::new(&root, budget, self.cancel);
        for (layer, number) in chosen.layers.iter().zip(1..) {
            progress(Event::Step("unpacking a layer"));
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
            start,
            ..chosen.entry
        };
        furnish(&root, &entry)?;
        self.cancel.check()?;
        let taken = measure(&root)?;
        let room = taken.room(size)?;
        progress(Event::Step("making the file system"));
        make_file_system(self.name.as_str(), &root, disk, room, self.work, progress)?;
        let words = entry.argv.iter().map(|word| word.replace('\n', " "));
        let runs = words.collect::<Vec<_>>().join(" ");
        let platform = chosen.platform;
        let summary = match (runs.is_empty(), start) {
            (true, _) => format!("{what} for {platform} that runs nothing"),
            (false, Start::AtBoot) => format!("{what} for {platform}; runs {runs}"),
            (false, Start::Never) => format!("{what} for {platform}; {runs} is not started"),
        };
        Ok((summary, entry))
    }
}

fn described(what: &str, partition: Option<u32>) -> String {
    match partition {
        Some(number) => format!("{what}, its partition {number}"),
        None => what.to_owned(),
    }
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

/// Room that a tree takes on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    bytes: u64,
    files: u64,
}

impl Taken {
    /// Room for it, with some to spare unless the size is given.
    fn room(self, size: Option<ByteCount>) -> Result<Room, ImportError> {
        // A file's list of blocks, and the disk's own tables.
        let wants = ByteCount(self.bytes + self.bytes / 32 + self.files * 256 + (8 << 20));
        let made_up = (wants.0 + wants.0 / 4 + SPARE).next_multiple_of(MIB);
        let size = size.unwrap_or(ByteCount(made_up));
        if size < wants {
            return Err(ArchiveError::NoRoom { wants, size }.into());
        }
        let usual = size.0 / 16_384;
        let inodes = usual.max(self.files + self.files / 4 + SPARE_FILES.min(usual));
        Ok(Room {
            size,
            inodes: Some(inodes),
        })
    }
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
