//! Files that an image, or root in this guest, can have made: anything may lie where a small file is
//! expected.
//!
//! A FIFO would hold up for ever what opens it, and a link to /dev/zero never ends. So such a file is opened
//! without waiting, must be a regular one, and is read up to a bound.
//!
//! Files of the kernel's in /proc and /sys can be read so as well: something may be mounted over them.

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    libc::{S_IFCHR, S_IFMT},
    sys::stat::makedev,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    process::Stdio,
};

/// Most bytes of a text.
pub const MOST: u64 = 4 << 20;
/// Neither waits, nor makes a terminal this process's own.
const AT_ONCE: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOCTTY);

/// Reads a regular file of at most so many bytes.
pub fn bytes(path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    let file = regular(File::options().read(true), path.as_ref())?;
    let mut bytes = Vec::new();
    // Not by its length: it may grow meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it is too long: more than {most} bytes"
        )));
    }
    Ok(bytes)
}

/// Reads a regular file of at most [`MOST`] bytes. What is not UTF-8 in it is replaced.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let text = String::from_utf8(bytes(path, MOST)?);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Opens a regular file that is there to write to it in place.
pub fn to_write(path: impl AsRef<Path>) -> io::Result<File> {
    regular(File::options().write(true), path.as_ref())
}

/// Writes a regular file whole, in place; made if it is missing. Not emptied first: a file system that finds
/// a file emptied and written again takes care that it is on the disk when it
/// is closed (ext4's `auto_da_alloc`), and all that runs in a clone before its
/// user code does.
pub fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    let text = text.as_ref();
    let mut options = File::options();
    let file = regular(
        options.write(true).create(true).truncate(false),
        path.as_ref(),
    )?;
    let before = file.metadata()?.len();
    file.write_all_at(text, 0)?;
    let now = text.len() as u64;
    if before > now {
        file.set_len(now)?;
    }
    Ok(())
}

/// Opens anything but a FIFO without waiting. It is used as any other file then: a device may still hold
/// up what reads or writes it.
pub fn open(options: &mut OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    let file = at_once(options, path.as_ref())?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a FIFO"));
    }
    let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
    fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

/// Returns an input that is empty, or an output that goes nowhere: /dev/null, which root in the guest can
/// replace, too.
pub fn null() -> io::Result<Stdio> {
    null_at(Path::new("/dev/null")).map(Stdio::from)
}

fn null_at(path: &Path) -> io::Result<File> {
    let failed =
        |why: &dyn std::fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
    let file = open(File::options().read(true).write(true), path);
    let file = file.map_err(|error| failed(&error))?;
    let facts = file.metadata().map_err(|error| failed(&error))?;
    if facts.mode() & S_IFMT != S_IFCHR || facts.rdev() != makedev(1, 3) {
        return Err(failed(&"it is not the kernel's device of that name"));
    }
    Ok(file)
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = at_once(options, path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

fn at_once(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(AT_ONCE.bits()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_file_is_what_was_put_there_last_whatever_its_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("name");
        for words in ["short\n", "a good deal longer\n", "p\n", ""] {
            put(&path, words).expect("written");
            assert_eq!(text(&path).expect("there"), words);
        }
    }

    #[test]
    fn what_is_no_regular_file_is_neither_waited_for_nor_read_nor_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let [fifo, zero, inside] = ["fifo", "zero", "inside"].map(|name| folder.path().join(name));
        mkfifo(&fifo, Mode::S_IRWXU).expect("made");
        symlink("/dev/zero", &zero).expect("linked");
        fs::create_dir(&inside).expect("made");
        for path in [&fifo, &zero, &inside] {
            text(path).expect_err("no regular file");
            bytes(path, 1).expect_err("no regular file");
            to_write(path).expect_err("no regular file");
            put(path, "x").expect_err("no regular file");
        }
        open(File::options().append(true), &fifo).expect_err("a FIFO");
        // As well as one that has a reader: it may take nothing.
        let _reader = File::options().read(true).write(true).open(&fifo);
        open(File::options().append(true), &fifo).expect_err("a FIFO");
        put(&fifo, "x").expect_err("a FIFO");
        let missing = text(folder.path().join("missing")).expect_err("nothing there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_never_in_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, b"12\xff").expect("written");
        assert_eq!(bytes(&path, 3).expect("short enough"), b"12\xff");
        bytes(&path, 2).expect_err("too long");
        assert_eq!(text(&path).expect("short enough"), "12\u{fffd}");
        let file = File::options().write(true).open(&path).expect("there");
        file.set_len(MOST + 1).expect("grown");
        text(&path).expect_err("too long");
    }

    #[test]
    fn a_file_that_is_opened_at_once_waits_as_usual_afterwards() {
        let null = null_at(Path::new("/dev/null")).expect("there");
        let flags = fcntl(&null, FcntlArg::F_GETFL).expect("told");
        assert!(!OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK));
    }

    #[test]
    fn an_input_that_is_not_empty_is_not_taken_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("null");
        for target in ["/dev/zero", "/proc/self/status", "/nowhere"] {
            symlink(target, &path).expect("linked");
            null_at(&path).expect_err(target);
            fs::remove_file(&path).expect("removed");
        }
        mkfifo(&path, Mode::S_IRWXU).expect("made");
        null_at(&path).expect_err("a FIFO");
    }
}
