//! Packing: the files of a substrate, as small as they may be.
//!
//! A substrate's memory is written over that of another one that has much of it already, its disk
//! over the page image that it lies over. What the lower one has, wherever in it, is not stored
//! again; the rest is compressed.

use super::{DEVICES, DISK, Entry, MEMORY, size};
use crate::{Host, HostError, blocking};
use forkyard_image::{Image, Layer, Temper, rewrite};
use forkyard_records::VmRecord;
use forkyard_snapshot::Disk;
use forkyard_sys_host::private;
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, SubstrateKind, SubstratePart, SubstrateParts};
use std::{
    fs::{self, DirBuilder, File},
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Substrates whose memory is looked at for what a new one has in common with them.
const CANDIDATES: usize = 8;
/// Layers of a substrate's memory.
const LAYERS: usize = 4;
/// One in so many pages must be in the lower image, or it is not worth depending on it.
const WORTH: u64 = 4;

/// Files that a substrate is packed of.
struct Sources {
    memory: Image,
    /// Memory of others that it may be written over.
    candidates: Vec<Image>,
    disk: Image,
    base: Image,
    devices: PathBuf,
}

impl Host {
    /// Makes the files of a substrate of a checkpoint, and has the pager serve them. The memory of
    /// a kept boot depends on no other substrate's.
    pub(super) async fn pack(
        &self,
        taken: &VmRecord,
        entry: &Entry,
        woken_from: Option<ImageId>,
    ) -> Result<SubstrateParts, HostError> {
        let image = taken.memory_image.ok_or_else(|| {
            HostError::Broken(format!("the record of {} has no memory", taken.name))
        })?;
        let disk = self.disk_layer(&Disk::at_rest(taken)).await?;
        let base = self.below(&Disk::at_rest(taken)).await?;
        let [memory, devices] = forkyard_snapshot::files(&self.parts.folders.disks(taken.id));
        let layer = File::open(&memory).map_err(HostError::io("read", &memory))?;
        let base = self.stack(base)?;
        let sources = Sources {
            memory: Image::new(Arc::new(Layer::open(layer)?), None)?,
            candidates: match entry.boot {
                true => Vec::new(),
                false => self.candidates(entry, woken_from)?,
            },
            disk: Image::new(Arc::new(Layer::open(disk.layer)?), Some(&base))?,
            base,
            devices,
        };
        let folder = self.parts.folders.substrate(image);
        let written = folder.clone();
        let made = async {
            let parts = blocking(move || write(sources, &written)).await?;
            // What the checkpoint published is larger, and goes with its file.
            self.snapshots.drop_image(parts.memory.image).await?;
            self.serve_parts(&parts).await?;
            Ok(parts)
        };
        let made: Result<_, HostError> = made.await;
        if made.is_err() {
            let _ = fs::remove_dir_all(&folder);
            let _ = self.snapshots.drop_image(disk.lineage.image).await;
        }
        made
    }

    /// Memory of the substrate that the VM was woken from, and of others that were of the same guest
    /// image, and no larger, the latest ones. None that lies over many others: it depends on them all. And
    /// no private one of another user, which could not remove it, and whose memory its size would
    /// tell of.
    fn candidates(
        &self,
        new: &Entry,
        woken_from: Option<ImageId>,
    ) -> Result<Vec<Image>, HostError> {
        let all = self.all_substrates()?.into_iter().rev();
        let alike = all.filter(|it| {
            let old = &it.entry;
            let shared = old.kind != SubstrateKind::Private || old.owner == new.owner;
            shared && old.image == new.image && old.memory <= new.memory
        });
        let woken_from = woken_from.map(|image| self.smaller(image).unwrap_or(image));
        let latest = alike.filter_map(|it| Some(it.entry.parts?.memory.image));
        let mut images: Vec<_> = latest.collect();
        // First of all, wherever it stands.
        images.sort_by_key(|image| Some(*image) != woken_from);
        // One that is damaged is no reason not to dock another.
        let opened = images
            .into_iter()
            .filter_map(|image| self.stack(image).ok());
        let low = opened.filter(|image| image.layers().len() < LAYERS);
        Ok(low.take(CANDIDATES).collect())
    }

    /// A page image that is a substrate's, or a guest image, read from its files.
    pub(super) fn stack(&self, image: ImageId) -> Result<Image, HostError> {
        let all = self.all_substrates()?.into_iter();
        let own = all.filter_map(|it| it.entry.parts).find_map(|parts| {
            let folder = self.parts.folders.substrate(parts.memory.image);
            let parts = [(MEMORY, parts.memory), (DISK, parts.disk)];
            let found = parts.into_iter().find(|(_, part)| part.image == image);
            found.map(|(name, part)| (folder.join(name), part.over))
        });
        let (path, over) = match own {
            Some(own) => own,
            None => (self.parts.bases().layer_of(image)?, None),
        };
        let below = over.map(|over| self.stack(over)).transpose()?;
        let file = File::open(&path).map_err(HostError::io("read", &path))?;
        Ok(Image::new(Arc::new(Layer::open(file)?), below.as_ref())?)
    }
}

/// Writes all files of a substrate into a new folder, to the disk. Blocks.
fn write(sources: Sources, folder: &Path) -> Result<SubstrateParts, HostError> {
    let parent = folder.parent().unwrap_or(Path::new("/"));
    make_private(&[parent, folder])?;
    let over = best(&sources.memory, &sources.candidates);
    let memory = part(&sources.memory, over, &folder.join(MEMORY))?;
    let disk = part(&sources.disk, Some(&sources.base), &folder.join(DISK))?;
    let devices = &sources.devices;
    let state = fs::read(devices).map_err(HostError::io("read", devices))?;
    let to = folder.join(DEVICES);
    private::create_new(&to)
        .and_then(|mut file| {
            file.write_all(&state)?;
            file.sync_all()
        })
        .map_err(HostError::io("write", &to))?;
    for folder in [folder, parent] {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(HostError::io("write", folder))?;
    }
    Ok(SubstrateParts {
        memory,
        disk,
        devices: size(&to)?,
    })
}

/// Makes folders that their owner alone may enter: they hold all of a guest's memory.
pub(super) fn make_private(folders: &[&Path]) -> Result<(), HostError> {
    for path in folders {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(HostError::io("create", path))?,
        }
    }
    Ok(())
}

/// The one that has most of an image's pages, if it has enough of them.
fn best<'a>(image: &Image, candidates: &'a [Image]) -> Option<&'a Image> {
    // Of two alike the first one, which `max_by_key` would take last.
    let counted = candidates.iter().rev().map(|it| (image.pages_in(it), it));
    let (most, best) = counted.max_by_key(|(pages, _)| *pages)?;
    (most.0 * WORTH >= image.data_pages().0).then_some(best)
}

pub(super) fn part(
    image: &Image,
    over: Option<&Image>,
    path: &Path,
) -> Result<SubstratePart, HostError> {
    let file = private::create_new(path).map_err(HostError::io("create", path))?;
    rewrite(image, over, |_| Temper::Kept, &file)?;
    file.sync_all().map_err(HostError::io("write", path))?;
    let own = Layer::open(file)?.data_pages();
    Ok(SubstratePart {
        image: image.lineage().image,
        over: over.map(|over| over.lineage().image),
        raw: ByteCount(image.data_pages().0 * PAGE_SIZE as u64),
        own: ByteCount(own.0 * PAGE_SIZE as u64),
        file: size(path)?,
    })
}
