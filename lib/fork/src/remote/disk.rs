//! The disk of an instant as a page image: what its frozen slices hold, over the
//! image they lie over. So it goes to another host as memory does.

use crate::{Host, HostError, blocking};
use forkyard_disk::{Backing, ChangedRange, Format, SliceContent};
use forkyard_image::{Checksum, LayerBuilder, Lineage, Slot};
use forkyard_snapshot::Disk;
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, PageCount, PageNo, PageOrder, RemotePages};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const PAGE: u64 = PAGE_SIZE as u64;

/// Data of a disk over the image that it lies over.
#[derive(Debug)]
pub(crate) struct DiskLayer {
    /// Image, and the one below.
    pub lineage: Lineage,
    /// Size of the disk.
    pub pages: PageCount,
    /// The layer, in a file without a name.
    pub layer: File,
}

impl Host {
    /// Has the pager serve what frozen slices show, the upper ones first. Nothing
    /// may write to them, nor take them away, until this returns.
    pub(crate) async fn disk_image(&self, disk: &Disk) -> Result<RemotePages, HostError> {
        let DiskLayer {
            lineage,
            pages,
            layer,
        } = self.disk_layer(disk).await?;
        self.parts
            .pager_call(move |pager| pager.publish(lineage, layer))
            .await?;
        Ok(RemotePages {
            image: lineage.image,
            pages,
            order: PageOrder::OnDemand,
        })
    }

    /// Makes a layer of what frozen slices show. They stay as they are until this returns.
    pub(crate) async fn disk_layer(&self, disk: &Disk) -> Result<DiskLayer, HostError> {
        let base = self.below(disk).await?;
        let (changes, raw) = self.held(disk, base).await?;
        let lineage = Lineage {
            image: ImageId::random(),
            parent: Some(base),
        };
        self.layer_of(changes, disk.slices(), lineage, raw).await
    }

    /// Finds what the slices of a disk hold over a page image, which is returned, too.
    async fn held(
        &self,
        disk: &Disk,
        base: ImageId,
    ) -> Result<(Vec<ChangedRange>, Backing), HostError> {
        let slices = disk.slices().iter().map(|path| Backing {
            path: path.clone(),
            format: Format::Qcow2,
        });
        let raw = Backing {
            path: self.parts.folders.page_image(base),
            format: Format::Raw,
        };
        let changes = match self.is_whole(disk).await? {
            true => {
                self.parts
                    .images
                    .contents(&slices.collect::<Vec<_>>())
                    .await?
            }
            false => {
                let all: Vec<_> = slices.chain([raw.clone()]).collect();
                self.parts.images.changes(&all).await?
            }
        };
        Ok((changes, raw))
    }

    async fn layer_of(
        &self,
        changes: Vec<ChangedRange>,
        chain: &[PathBuf],
        lineage: Lineage,
        raw: Backing,
    ) -> Result<DiskLayer, HostError> {
        let (folder, chain) = (self.parts.folders.all_disks(), chain.to_vec());
        let (pages, layer) = blocking(move || {
            let facts = fs::metadata(&raw.path).map_err(HostError::io("look at", &raw.path))?;
            // The upper ones may be larger than what they lie over.
            let top = chain.first().map(|path| Backing {
                path: path.clone(),
                format: Format::Qcow2,
            });
            let top = top.map_or(Ok(ByteCount(0)), |top| top.size())?;
            let pages = ByteCount(facts.len()).max(top).pages();
            // Without a name: it goes when the last process closes it, which is the pager.
            let layer = tempfile::tempfile_in(&folder);
            let layer = layer.map_err(HostError::io("write in", &folder))?;
            write_layer(&changes, &chain, lineage, pages, &layer)?;
            Ok::<_, HostError>((pages, layer))
        })
        .await?;
        Ok(DiskLayer {
            lineage,
            pages,
            layer,
        })
    }

    /// Makes a layer of what the upper slice of a disk holds over an image of all below it.
    pub(crate) async fn upper_slice(
        &self,
        disk: &Disk,
        lineage: Lineage,
    ) -> Result<DiskLayer, HostError> {
        let base = self.below(disk).await?;
        let (mut changes, raw) = self.held(disk, base).await?;
        // Zeros of any slice: those of lower ones are zero below as well.
        changes.retain(|change| match change.content {
            SliceContent::Data { slice, .. } => slice == 0,
            SliceContent::Zero => true,
        });
        self.layer_of(changes, disk.slices(), lineage, raw).await
    }

    /// Checks that a disk's slices have all of it: the lowest lies over nothing.
    pub(crate) async fn is_whole(&self, disk: &Disk) -> Result<bool, HostError> {
        let own = disk.base().is_none() && disk.volume().is_none();
        let Some(bottom) = disk.slices().last().filter(|_| own).cloned() else {
            return Ok(false);
        };
        let read =
            move || forkyard_host::backing_of(&bottom).map_err(HostError::io("read", &bottom));
        Ok(blocking(read).await?.is_none())
    }

    /// The page image that a disk's lowest slice lies over. Of one that is whole, one of its size: the slices
    /// show nothing of it.
    pub(crate) async fn below(&self, disk: &Disk) -> Result<ImageId, HostError> {
        if let Some(image) = disk.base() {
            return Ok(image);
        }
        // After a restart of the host the pager may not serve it yet.
        self.parts.bases().serve_built().await?;
        let bottom = disk.slices().last().cloned();
        let bottom = bottom.ok_or_else(|| HostError::Broken("its record has no disk".into()))?;
        let bases = self.parts.bases().clone();
        let path = blocking(move || bases.below(&bottom)).await?;
        let name = path.file_name().and_then(|name| name.to_str());
        let id = name.and_then(|name| name.parse().ok());
        id.ok_or_else(|| HostError::Broken(format!("{} is no page image", path.display())))
    }
}

/// Writes a layer of what slices hold. Blocks for a copy of it.
fn write_layer(
    changes: &[ChangedRange],
    slices: &[PathBuf],
    lineage: Lineage,
    pages: PageCount,
    layer: &File,
) -> Result<(), HostError> {
    let files = slices
        .iter()
        .map(|path| File::open(path).map_err(HostError::io("read", path)));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let mut builder = LayerBuilder::new(lineage, pages);
    let mut next = Slot(0);
    for change in changes {
        let first = first_page(change, pages)?;
        let count = change.length.div_ceil(PAGE);
        for nth in 0..count {
            let page = PageNo(first.0 + nth);
            let mut bytes = [0; PAGE_SIZE];
            if let SliceContent::Data { slice, offset } = change.content {
                // The last page of a disk may be partly there.
                let length = usize::try_from((change.length - nth * PAGE).min(PAGE));
                let part = &mut bytes[..length.unwrap_or(PAGE_SIZE)];
                let read = match files.get(slice) {
                    Some(file) => file.read_exact_at(part, offset + nth * PAGE),
                    None => Err(io::ErrorKind::NotFound.into()),
                };
                read.map_err(|source| unreadable(slices, slice)(source))?;
            }
            match bytes.iter().all(|byte| *byte == 0) {
                true => builder.zero(page),
                false => {
                    let too_far = || io::Error::from(io::ErrorKind::FileTooLarge);
                    let written = next.offset().ok_or_else(too_far);
                    let written = written.and_then(|at| layer.write_all_at(&bytes, at));
                    written.map_err(HostError::io("write", Path::new("the disk's image")))?;
                    builder.data(page, next, Checksum::of(&bytes));
                    next.0 += 1;
                }
            }
        }
    }
    builder.finish(layer)?;
    Ok(())
}

/// Slices are in parts of a page each; what is not, or beyond the disk, is not
/// theirs to say.
fn first_page(change: &ChangedRange, pages: PageCount) -> Result<PageNo, HostError> {
    let first = change.start / PAGE;
    let end = first.checked_add(change.length.div_ceil(PAGE));
    let inside = end.is_some_and(|end| end <= pages.0);
    match change.start.is_multiple_of(PAGE) && inside {
        true => Ok(PageNo(first)),
        false => Err(HostError::Broken(format!(
            "the disk's slices hold {} bytes at {}, which are no pages of it",
            change.length, change.start
        ))),
    }
}

fn unreadable(slices: &[PathBuf], slice: usize) -> impl FnOnce(io::Error) -> HostError {
    let path = slices.get(slice).cloned().unwrap_or_default();
    move |source| HostError::io("read", &path)(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_image::{Image, Layer};
    use std::sync::Arc;

    #[test]
    fn a_layer_of_changes_shows_them_and_what_is_below() {
        let folder = tempfile::tempdir().expect("folder");
        let slice = folder.path().join("slice");
        let mut bytes = vec![7; 3 * PAGE_SIZE];
        bytes[PAGE_SIZE..2 * PAGE_SIZE].fill(0);
        fs::write(&slice, bytes).expect("written");
        let pages = PageCount(8);
        let base = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        let raw = tempfile::tempfile().expect("file");
        raw.write_all_at(&[1; 8 * PAGE_SIZE], 0).expect("written");
        let below = tempfile::tempfile().expect("file");
        forkyard_image::write_file(&raw, base, &below).expect("a layer");
        let below = Image::new(Arc::new(Layer::open(below).expect("whole")), None);
        let below = below.expect("an image");
        let changes = [
            ChangedRange {
                start: 2 * PAGE,
                length: 3 * PAGE,
                content: SliceContent::Data {
                    slice: 0,
                    offset: 0,
                },
            },
            ChangedRange {
                start: 6 * PAGE,
                length: PAGE,
                content: SliceContent::Zero,
            },
        ];
        let lineage = Lineage {
            image: ImageId::random(),
            parent: Some(base.image),
        };
        let layer = tempfile::tempfile().expect("file");
        write_layer(&changes, &[slice], lineage, pages, &layer).expect("written");
        let layer = Arc::new(Layer::open(layer).expect("whole"));
        let image = Image::new(layer, Some(&below)).expect("an image");
        let seen: Vec<_> = (0..8)
            .map(|page| {
                let mut bytes = [9; PAGE_SIZE];
                image.read(PageNo(page), &mut bytes).expect("read");
                bytes[0]
            })
            .collect();
        assert_eq!(seen, [1, 1, 7, 0, 7, 1, 0, 1]);
    }

    #[test]
    fn what_is_no_page_of_the_disk_is_refused() {
        let change = |start, length| ChangedRange {
            start,
            length,
            content: SliceContent::Zero,
        };
        let refused = |start, length| first_page(&change(start, length), PageCount(2)).is_err();
        assert!(!refused(0, 2 * PAGE) && !refused(PAGE, 100));
        assert!(refused(1, PAGE) && refused(PAGE, 2 * PAGE) && refused(0, u64::MAX));
    }
}
