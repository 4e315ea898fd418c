//! A tree, written as a tar stream while others may change it.
//!
//! A file has as many bytes as were read of it: one that ends early is filled up
//! with zeros, one that grows is cut, and both are noted. Files of /proc, whose
//! size is not known before they are read, are read first. Sockets, FIFOs, devices and
//! what went away meanwhile are left out and noted; one that was asked for by its name is an error.

use crate::{Entry, EntryKind, FilesError, PIECE, TarWriter, reader::NOTE, special::is_made_up};
use nix::{
    errno::Errno,
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{Whence, lseek},
};
use std::{
    collections::HashMap,
    fs::{self, File, Metadata},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

/// Most notes of one stream.
const MOST_NOTES: u32 = 100;
/// Most bytes of a file whose size cannot be known before it is read.
const MOST_UNSIZED: u64 = 64 << 20;
/// Most extents of a file that is sent with its holes.
const MOST_EXTENTS: usize = 1 << 16;
/// Most files with several names whose names are kept together.
const MOST_NAMES: usize = 100_000;
/// Deepest folder.
const DEEPEST: u32 = 400;

/// Receiver of notes.
pub enum Noted<'a> {
    /// Into the stream, for its reader.
    InStream,
    /// To the caller.
    Apart(&'a mut dyn FnMut(String)),
}

impl std::fmt::Debug for Noted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InStream => "InStream",
            Self::Apart(_) => "Apart",
        })
    }
}

/// Writes a file or a folder, under the name `top`, which is `.` for the content of
/// a folder alone. Links in it are written as links; `from` itself is followed
/// if it ends in a slash.
pub fn pack<'a, W: Write>(
    from: &Path,
    top: &[u8],
    writer: &'a mut TarWriter<W>,
    noted: Noted<'a>,
) -> Result<(), FilesError> {
    let about = from.symlink_metadata().map_err(failed(from))?;
    let mut packer = Packer {
        writer,
        noted,
        notes: 0,
        names: HashMap::new(),
        buffer: vec![0; PIECE],
    };
    packer.any(from, top.to_vec(), &about, 0)?;
    if packer.notes > MOST_NOTES {
        let more = packer.notes - MOST_NOTES;
        packer.say(format!("{more} more were left out or changed"))?;
    }
    Ok(())
}

struct Packer<'a, W> {
    writer: &'a mut TarWriter<W>,
    noted: Noted<'a>,
    notes: u32,
    /// First path of each file with several names.
    names: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
}

impl<W: Write> Packer<'_, W> {
    fn any(
        &mut self,
        at: &Path,
        path: Vec<u8>,
        about: &Metadata,
        depth: u32,
    ) -> Result<(), FilesError> {
        let kind = about.file_type();
        if kind.is_dir() {
            return self.folder(at, path, about, depth);
        }
        if kind.is_file() || kind.is_symlink() {
            let inode = (about.dev(), about.ino());
            if about.nlink() > 1 {
                if let Some(first) = self.names.get(&inode) {
                    let kind = EntryKind::Same(first.clone());
                    self.writer.header(&entry(path, kind, about))?;
                    return Ok(());
                }
                if self.names.len() < MOST_NAMES {
                    self.names.insert(inode, path.clone());
                }
            }
            let sent = match kind.is_symlink() {
                true => self.link(at, path, about, depth),
                false => self.file(at, path, about, depth),
            };
            // Others must not be told that they are this one.
            if let Ok(false) = sent {
                self.names.remove(&inode);
            }
            return sent.map(drop);
        }
        let what = match () {
            () if kind.is_socket() => "a socket",
            () if kind.is_fifo() => "a FIFO",
            () => "a device",
        };
        match depth {
            0 => Err(FilesError::Read {
                path: at.into(),
                source: refused(format!("it is {what}, which cannot be copied")),
            }),
            _ => self.note(at, &format!("{what}, left out")),
        }
    }

    /// Leaves out what cannot be read, unless it is all that was asked for. Returns that it was
    /// not sent.
    fn leave_out(&mut self, at: &Path, depth: u32, why: io::Error) -> Result<bool, FilesError> {
        match depth {
            0 => Err(failed(at)(why)),
            _ => self.note(at, &format!("{why}, left out")).map(|()| false),
        }
    }

    fn folder(
        &mut self,
        at: &Path,
        path: Vec<u8>,
        about: &Metadata,
        depth: u32,
    ) -> Result<(), FilesError> {
        if depth > DEEPEST {
            return Err(FilesError::Read {
                path: at.into(),
                source: io::Error::other("it lies too deep"),
            });
        }
        let inside = match fs::read_dir(at) {
            Ok(inside) => inside,
            Err(error) if depth > 0 && is_gone(&error) => {
                return self.note(at, "went away, left out");
            }
            Err(error) => return Err(failed(at)(error)),
        };
        self.writer
            .header(&entry(path.clone(), EntryKind::Folder, about))?;
        for found in inside {
            let found = found.map_err(failed(at))?;
            let at = found.path();
            let inner = match at.symlink_metadata() {
                Ok(inner) => inner,
                Err(error) if is_gone(&error) => {
                    self.note(&at, "went away, left out")?;
                    continue;
                }
                Err(error) => return Err(failed(&at)(error)),
            };
            if inner.is_dir() && inner.dev() != about.dev() && is_made_up(&at) {
                self.note(&at, "a file system of the kernel's, left out")?;
                continue;
            }
            let name = found.file_name();
            let mut path = path.clone();
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
            self.any(&at, path, &inner, depth + 1)?;
        }
        Ok(())
    }

    fn link(
        &mut self,
        at: &Path,
        path: Vec<u8>,
        about: &Metadata,
        depth: u32,
    ) -> Result<bool, FilesError> {
        let to = match fs::read_link(at) {
            Ok(to) => to,
            Err(error) if is_gone(&error) => return self.leave_out(at, depth, went_away()),
            Err(error) => return Err(failed(at)(error)),
        };
        let to = to.into_os_string().as_bytes().to_vec();
        self.writer
            .header(&entry(path, EntryKind::Link(to), about))?;
        Ok(true)
    }

    fn file(
        &mut self,
        at: &Path,
        path: Vec<u8>,
        told: &Metadata,
        depth: u32,
    ) -> Result<bool, FilesError> {
        let mut open = File::options();
        // Not one that became a FIFO, or a link, meanwhile.
        open.read(true)
            .custom_flags((nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOFOLLOW).bits());
        let begun = open.open(at).and_then(|mut file| {
            let head = fill(&mut file, &mut self.buffer)?;
            Ok((file.metadata()?, file, head))
        });
        let (about, mut file, head) = match begun {
            Ok((about, ..)) if !about.is_file() => {
                return self.leave_out(at, depth, refused("changed its kind"));
            }
            Ok(begun) => begun,
            Err(error) if is_gone(&error) => return self.leave_out(at, depth, went_away()),
            // Made up by the kernel, and not to be read.
            Err(error) if told.blocks() == 0 => return self.leave_out(at, depth, endless(error)),
            Err(error) => return Err(failed(at)(error)),
        };
        if head < self.buffer.len() {
            let kind = EntryKind::File {
                size: head as u64,
                extents: None,
            };
            let data = self.writer.header(&entry(path, kind, &about))?;
            self.writer.data(&self.buffer[..head])?;
            self.writer.pad(data)?;
            return Ok(true);
        }
        let mut size = about.len();
        let mut extents = None;
        if size < head as u64 {
            match self.spooled(at, file, head) {
                // Made up by the kernel, and not to be read to its end: /proc/PID/pagemap, say.
                Err(FilesError::Read { source, .. }) if about.blocks() == 0 => {
                    return self.leave_out(at, depth, endless(source));
                }
                spooled => (file, size) = spooled?,
            }
        } else if size > MOST_UNSIZED && is_made_up(at) {
            // /proc/kcore has the size of all addresses.
            let why = "the kernel makes it up, and its size says nothing";
            return self.leave_out(at, depth, refused(why));
        } else if about.blocks().saturating_mul(512) < size {
            extents = extents_of(&file, size);
        }
        let every = extents.clone().unwrap_or_else(|| vec![(0, size)]);
        let kind = EntryKind::File { size, extents };
        let data = self.writer.header(&entry(path, kind, &about))?;
        let mut missing = 0;
        for (offset, length) in every {
            missing += self
                .extent(&mut file, offset, length)
                .map_err(|error| match error {
                    Failed::Read(error) => failed(at)(error),
                    Failed::Write(error) => error,
                })?;
        }
        self.writer.pad(data)?;
        if missing > 0 {
            self.note(at, "became shorter while it was read: its end is zeros")?;
        }
        Ok(true)
    }

    /// Writes an extent; returns how much of it was not there.
    fn extent(&mut self, file: &mut File, offset: u64, length: u64) -> Result<u64, Failed> {
        file.seek(SeekFrom::Start(offset)).map_err(Failed::Read)?;
        let mut left = length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let read = match file.read(&mut self.buffer[..most]) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failed::Read(error)),
            };
            self.writer
                .data(&self.buffer[..read])
                .map_err(Failed::Write)?;
            left -= read as u64;
        }
        let missing = left;
        if missing > 0 {
            self.buffer.fill(0);
        }
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            self.writer
                .data(&self.buffer[..most])
                .map_err(Failed::Write)?;
            left -= most as u64;
        }
        Ok(missing)
    }

    /// Reads a file of unknown size into one whose size is known.
    fn spooled(
        &mut self,
        at: &Path,
        mut file: File,
        head: usize,
    ) -> Result<(File, u64), FilesError> {
        let mut spool = || -> io::Result<(File, u64, bool)> {
            let mut spool = File::from(memfd_create(c"forkyard-files", MFdFlags::MFD_CLOEXEC)?);
            spool.write_all(&self.buffer[..head])?;
            let most = MOST_UNSIZED - head as u64;
            let more = io::copy(&mut Read::by_ref(&mut file).take(most), &mut spool)?;
            let cut = more == most && file.read(&mut [0])? > 0;
            Ok((spool, head as u64 + more, cut))
        };
        let (spool, size, cut) = spool().map_err(failed(at))?;
        if cut {
            self.note(at, "has no known size: cut at 64 MiB")?;
        }
        Ok((spool, size))
    }

    fn note(&mut self, at: &Path, what: &str) -> Result<(), FilesError> {
        self.notes = self.notes.saturating_add(1);
        match self.notes {
            ..=MOST_NOTES => self.say(format!("{}: {what}", at.display())),
            _ => Ok(()),
        }
    }

    fn say(&mut self, text: String) -> Result<(), FilesError> {
        match &mut self.noted {
            Noted::InStream => self.writer.word(&String::from_utf8_lossy(NOTE), &text),
            Noted::Apart(say) => {
                say(text);
                Ok(())
            }
        }
    }
}

enum Failed {
    Read(io::Error),
    Write(FilesError),
}

fn entry(path: Vec<u8>, kind: EntryKind, about: &Metadata) -> Entry {
    Entry {
        path,
        kind,
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
        mtime: (
            about.mtime(),
            u32::try_from(about.mtime_nsec()).unwrap_or(0),
        ),
        attributes: Vec::new(),
    }
}

/// Fills a buffer, or as much of it as there is.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Extents with data; none if they cannot be told, or are too many.
fn extents_of(file: &File, size: u64) -> Option<Vec<(u64, u64)>> {
    let size = i64::try_from(size).ok()?;
    let (mut extents, mut at) = (Vec::new(), 0);
    while at < size {
        let data = match lseek(file, at, Whence::SeekData) {
            Ok(data) if data < size => data,
            Ok(_) | Err(Errno::ENXIO) => break,
            Err(_) => return None,
        };
        let hole = lseek(file, data, Whence::SeekHole).ok()?.min(size);
        if hole <= data || extents.len() == MOST_EXTENTS {
            return None;
        }
        extents.push((data.unsigned_abs(), (hole - data).unsigned_abs()));
        at = hole;
    }
    Some(extents)
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

fn went_away() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "went away")
}

/// Explains an error of a file that has no end for now, as /proc/kmsg.
fn endless(error: io::Error) -> io::Error {
    match error.kind() == io::ErrorKind::WouldBlock {
        true => refused("it has no end: more may come"),
        false => error,
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> FilesError + '_ {
    move |source| FilesError::Read {
        path: path.into(),
        source,
    }
}
