//! Files of this guest, for the host: a command of the agent's own, so that it is
//! held still in a fork as every other, and needs no program of the image's.
//!
//! It ends if its input ends early, and leaves nothing half done: the hang-up of a
//! host that went away is blocked, the end of input is not.

mod usage;
mod watch;

use forkyard_files::{
    CopyTarget, FilesError, Half, Noted, Reader, TarWriter, WantedMembers, cannot_be_replaced,
    pack, unpack,
};
use forkyard_types::{FileEntry, FileKind, FilesWritten};
use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown},
        },
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Exit code for a path that is not there.
const NOT_FOUND: u8 = 3;
/// Exit code for a request that cannot be done as it stands.
const REFUSED: u8 = 4;
/// Bytes written to the pipe at once.
const PIECE: usize = 64 << 10;
/// Most bytes of a setting of the kernel's.
const SETTING: usize = 1 << 20;
/// Most notes of one copy.
const MOST_NOTES: usize = 100;

/// Reason for a request that failed.
#[derive(Debug)]
struct Failure {
    code: u8,
    said: String,
}

/// Does what the host asks: an operation, a path, and more words.
pub fn main(words: &[OsString]) -> ExitCode {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    let _ = hangup.thread_block();
    // What is written there is told to people.
    std::panic::set_hook(Box::new(|bug| {
        let place = bug.location().map(ToString::to_string).unwrap_or_default();
        eprintln!("the agent's program for files has a bug at {place}");
    }));
    let text = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.to_str())
            .unwrap_or_default()
    };
    let path = absolute(words.get(1).map_or(OsStr::new(""), OsString::as_os_str));
    let done = match text(0) {
        "send" => send(&path),
        "receive" => receive(&path),
        "read" => read(&path, text(2), text(3)),
        "write" => write(&path, text(2), text(3) == "parents"),
        "stat" => stat(&path),
        "list" => list(&path),
        "remove" => remove(&path, text(2) == "recursive"),
        "move" => rename(
            &path,
            &absolute(words.get(2).map_or(OsStr::new(""), OsString::as_os_str)),
        ),
        "usage" => usage::usage(&path),
        "watch" => watch::watch(&path, text(2) == "recursive"),
        "folder" => fs::create_dir_all(&path).map_err(|error| failed("make", &path, &error)),
        other => Err(refused(format!("unknown operation {other:?}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", failure.said);
            ExitCode::from(failure.code)
        }
    }
}

/// A path from the root: the folder that commands start in is the image's matter.
fn absolute(path: &OsStr) -> PathBuf {
    match path.as_bytes() {
        [b'/', ..] => path.into(),
        relative => OsStr::from_bytes(&[b"/", relative].concat()).into(),
    }
}

/// Moves a file or folder, into folders that are made if need be; what is there is replaced.
fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| failed("make", folder, &error))?;
    }
    fs::rename(from, to).map_err(|error| failed("move", from, &error))
}

fn send(path: &Path) -> Result<(), Failure> {
    let bytes = path.as_os_str().as_bytes();
    let name = path
        .file_name()
        .filter(|_| !bytes.ends_with(b"/.") && !bytes.ends_with(b"/.."));
    let top = name.map_or(b".".to_vec(), |name| name.as_bytes().to_vec());
    let about = path
        .symlink_metadata()
        .map_err(|error| failed("read", path, &error))?;
    // A link that is asked for by name: what it leads to.
    let from = match about.is_symlink() {
        true => fs::canonicalize(path).map_err(|error| failed("read", path, &error))?,
        false => path.to_owned(),
    };
    if bytes.ends_with(b"/") && !fs::metadata(&from).is_ok_and(|about| about.is_dir()) {
        return Err(refused(format!("{} is no folder", path.display())));
    }
    let mut out = CountedOut {
        to: BufWriter::with_capacity(
            PIECE,
            output().map_err(|error| said(&FilesError::Stream(error)))?,
        ),
        any: false,
    };
    let mut writer = TarWriter::new(&mut out);
    let packed = pack(&from, &top, &mut writer, Noted::InStream);
    match packed {
        Ok(()) => writer.finish().map_err(|error| said(&error)),
        Err(error) => {
            let failure = said(&error);
            // To the reader of the stream, if there is any of it; and as any other failure.
            if out.any {
                let _ = TarWriter::new(&mut out).word("FORKYARD.failure", &failure.said);
                let _ = out.flush();
            }
            Err(failure)
        }
    }
}

/// Standard output as it is: that of the library looks for ends of lines in all that is written.
fn output() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// Standard output, and whether anything has gone there.
struct CountedOut<W: Write> {
    to: BufWriter<W>,
    any: bool,
}

impl<W: Write> Write for CountedOut<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.any = true;
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn receive(path: &Path) -> Result<(), Failure> {
    let target = CopyTarget {
        path,
        wanted: WantedMembers::Any,
    };
    let mut notes = Vec::new();
    let mut note = |text| {
        if notes.len() < MOST_NOTES {
            notes.push(text);
        }
    };
    // As it is: what the library reads ahead would be missing in the pipe.
    let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let stream = stdin.and_then(Reader::of_pipe).map_err(FilesError::Stream);
    let done = stream.and_then(|stream| unpack(stream, target, &mut note));
    let done = done.map_err(|error| said(&error))?;
    tell(&FilesWritten {
        files: done.files,
        bytes: done.bytes,
        notes,
    })
}

fn read(path: &Path, offset: &str, limit: &str) -> Result<(), Failure> {
    let fault = |error: io::Error| failed("read", path, &error);
    let mut file = File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(fault)?;
    let about = file.metadata().map_err(fault)?;
    if about.is_dir() {
        return Err(refused(format!("{} is a folder", path.display())));
    }
    if !about.is_file() {
        return Err(refused(format!(
            "{} is no file, but a FIFO or device",
            path.display()
        )));
    }
    let offset = offset.parse().unwrap_or(0);
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).map_err(fault)?;
    }
    let mut left: u64 = limit.parse().unwrap_or(u64::MAX);
    let mut out = output().map_err(fault)?;
    let mut buffer = vec![0; PIECE];
    // To the end of what there is, whatever size it is said to have.
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let read = match file.read(&mut buffer[..most]) {
            // More may come, as of /proc/kmsg: that is all there is now.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            read => read.map_err(fault)?,
        };
        if read == 0 {
            break;
        }
        out.write_all(&buffer[..read]).map_err(fault)?;
        left -= read as u64;
    }
    out.flush().map_err(fault)
}

/// Replaces a file as a whole; where a link leads, if the path is one.
fn write(path: &Path, mode: &str, parents: bool) -> Result<(), Failure> {
    let fault = |error: io::Error| failed("write", path, &error);
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(refused(format!("{} names a folder", path.display())));
    }
    let (path, old) = match fs::metadata(path) {
        Ok(about) if about.is_dir() => {
            return Err(refused(format!("{} is a folder", path.display())));
        }
        Ok(about) if !about.is_file() => {
            return Err(refused(format!(
                "{} is no file, but a FIFO or device",
                path.display()
            )));
        }
        Ok(about) => (fs::canonicalize(path).map_err(fault)?, Some(about)),
        Err(_) if path.is_symlink() => {
            return Err(refused(format!(
                "{} is a link that leads nowhere",
                path.display()
            )));
        }
        Err(_) => (path.to_owned(), None),
    };
    if old.is_some() && cannot_be_replaced(&path) {
        let file = File::options().write(true).truncate(true).open(&path);
        // At once, if it can be: the kernel takes a setting by the write.
        let mut file = BufWriter::with_capacity(SETTING, file.map_err(fault)?);
        let written = pieces(|piece| io::copy(piece, &mut file));
        return written.and_then(|()| file.flush()).map_err(fault);
    }
    let above = path.parent().unwrap_or(Path::new("/"));
    if parents {
        fs::create_dir_all(above).map_err(fault)?;
    }
    let half = match &old {
        Some(_) => Half::Over,
        None => Half::New,
    };
    let half = above.join(half.name());
    let written = fill(&half, mode, old.as_ref()).and_then(|()| fs::rename(&half, &path));
    written.map_err(|error| {
        let _ = fs::remove_file(&half);
        fault(error)
    })
}

/// Reads a file's content from standard input: pieces by length, the last of none. An end without it is a host
/// that went away.
fn pieces(
    mut take: impl FnMut(&mut io::Take<&mut io::StdinLock<'_>>) -> io::Result<u64>,
) -> io::Result<()> {
    let mut input = io::stdin().lock();
    loop {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        if length == 0 {
            return Ok(());
        }
        if take(&mut input.by_ref().take(length))? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn fill(half: &Path, mode: &str, old: Option<&Metadata>) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(half)?;
    pieces(|piece| io::copy(piece, &mut file))?;
    if let Some(old) = old {
        chown(half, Some(old.uid()), Some(old.gid()))?;
    }
    let kept = old.map_or(0o644, |old| old.mode() & 0o7777);
    let mode = u32::from_str_radix(mode, 8).unwrap_or(kept);
    file.set_permissions(fs::Permissions::from_mode(mode))
}

fn stat(path: &Path) -> Result<(), Failure> {
    let about = path
        .symlink_metadata()
        .map_err(|error| failed("read", path, &error))?;
    let name = path.file_name().unwrap_or(OsStr::new("/"));
    tell(&entry(name, path, &about))
}

/// Tells of each file in a folder, one a line.
fn list(path: &Path) -> Result<(), Failure> {
    let fault = |error: io::Error| failed("list", path, &error);
    for found in fs::read_dir(path).map_err(fault)? {
        let found = found.map_err(fault)?;
        // One that went away meanwhile is not there.
        if let Ok(about) = found.path().symlink_metadata() {
            tell(&entry(&found.file_name(), &found.path(), &about))?;
        }
    }
    Ok(())
}

fn entry(name: &OsStr, path: &Path, about: &Metadata) -> FileEntry {
    let kind = match about.file_type() {
        kind if kind.is_dir() => FileKind::Folder,
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    };
    let target = fs::read_link(path)
        .ok()
        .map(|to| to.to_string_lossy().into_owned());
    FileEntry {
        name: name.to_string_lossy().into_owned(),
        kind,
        size: about.len(),
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
        mtime_ns: about
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(about.mtime_nsec()),
        target: target.filter(|_| kind == FileKind::Link),
    }
}

fn remove(path: &Path, recursive: bool) -> Result<(), Failure> {
    let about = path
        .symlink_metadata()
        .map_err(|error| failed("remove", path, &error))?;
    let removed = match (about.is_dir(), recursive) {
        (true, true) if path.parent().is_none() => {
            return Err(refused("the root cannot be removed".into()));
        }
        (true, true) => fs::remove_dir_all(path),
        (true, false) => fs::remove_dir(path),
        (false, _) => fs::remove_file(path),
    };
    removed.map_err(|error| failed("remove", path, &error))
}

fn tell(what: &impl serde::Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(what).map_err(|error| refused(error.to_string()))?;
    line.push(b'\n');
    let told = io::stdout().write_all(&line);
    told.map_err(|error| refused(error.to_string()))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure {
        code: code_of(error),
        said: format!("cannot {what} {}: {error}", path.display()),
    }
}

/// Exit code for an error: whether what was asked for is not there, is not as it was thought to
/// be, or the guest failed.
fn code_of(error: &io::Error) -> u8 {
    if error.raw_os_error() == Some(libc::ELOOP) {
        return REFUSED;
    }
    let error = error.kind();
    let asked = [
        io::ErrorKind::AlreadyExists,
        io::ErrorKind::CrossesDevices,
        io::ErrorKind::DirectoryNotEmpty,
        io::ErrorKind::InvalidFilename,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::IsADirectory,
        io::ErrorKind::NotADirectory,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
        io::ErrorKind::ResourceBusy,
    ];
    match (error == io::ErrorKind::NotFound, asked.contains(&error)) {
        (true, _) => NOT_FOUND,
        (false, true) => REFUSED,
        (false, false) => 1,
    }
}

fn refused(said: String) -> Failure {
    Failure {
        code: REFUSED,
        said,
    }
}

fn said(error: &FilesError) -> Failure {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    let code = match error {
        FilesError::Read { source, .. } | FilesError::Write { source, .. } => code_of(source),
        FilesError::Place { .. }
        | FilesError::Format(_)
        | FilesError::Unasked { .. }
        | FilesError::Short => REFUSED,
        // The enum may grow.
        FilesError::Stream(_) | FilesError::Sender(_) | _ => 1,
    };
    Failure { code, said }
}
