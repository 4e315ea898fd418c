//! From what came in to a disk that a guest can have.

use super::{
    ArchiveError, Cancel, DiskImportError, ImportError, MOST, PAGE, PIECE, apart, cpu, qcow2,
    unpack::{self, Order, Taken, Unpacked},
    volume, write_sparse,
};
use crate::{
    cache::Workplace,
    error::{BuildError, io_error},
    image::{Room, make_file_system},
    progress::{BuildEvent, Progress},
    run::QEMU_IMG,
};
use forkyard_confine::{Confinement, Lifespan, NOBODY, Network, Who};
use forkyard_types::{ByteCount, EntryPoint, ImageName, Start};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, chown, fchown},
    path::Path,
};

/// Smallest disk made for a container image, and the step of sizes.
const LEAST: ByteCount = ByteCount(16 << 20);
const MIB: u64 = 1 << 20;
/// Room to work in that a disk has beside what is in the image.
const SPARE: u64 = 512 << 20;
/// Files there is room for beside those of the image.
const SPARE_FILES: u64 = 32_768;
/// One import.
pub(super) struct Job<'a> {
    pub name: &'a ImageName,
    pub work: &'a Workplace,
    pub incoming: &'a Path,
    pub cancel: &'a Cancel,
    /// The program that unpacks archives; this process if there is none.
    pub unpacker: Option<&'a Path>,
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
            return Err(DiskImportError::IsQcow2.into());
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
            return Err(DiskImportError::TooLarge { size, most: MOST }.into());
        }
        progress(BuildEvent::Step("converting the disk"));
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
                ends: Lifespan::WithStarter,
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
        let root = self.work.dir().join("root");
        let order = Order {
            archive: self.incoming.to_owned(),
            expanded: self.work.dir().join("expanded"),
            root: root.clone(),
            size,
            start,
            level: cpu::level(),
        };
        fs::create_dir(&root).map_err(io_error("make", &root))?;
        progress(BuildEvent::Step("unpacking the archive"));
        let unpacked = match self.unpacker {
            Some(program) => apart::unpack(program, &order, (self.work, self.cancel), progress),
            None => unpack::unpack(&order, self.cancel),
        };
        let Unpacked {
            entry,
            platform,
            taken,
        } = unpacked?;
        self.cancel.check()?;
        let room = taken.room(size)?;
        progress(BuildEvent::Step("making the file system"));
        make_file_system(self.name.as_str(), &root, disk, room, self.work, progress)?;
        let words = entry.argv.iter().map(|word| word.replace('\n', " "));
        let runs = words.collect::<Vec<_>>().join(" ");
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
