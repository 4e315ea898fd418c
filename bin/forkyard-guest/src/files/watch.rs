//! Watching a folder: a line of JSON for each change, an empty one once it is watched. A file that the host
//! writes has its name once it is whole, and is told of then.

use super::{Failure, failed, refused};
use forkyard_files::Half;
use forkyard_types::{FileChange, FileEvent};
use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};
use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Most folders that are watched at once.
const MOST: usize = 4096;

/// The folders that are watched, by what the kernel calls them.
struct Watched<'a> {
    inotify: Inotify,
    top: &'a Path,
    recursive: bool,
    /// Seen from the top.
    folders: HashMap<WatchDescriptor, PathBuf>,
    /// A file of ours that is whole and gets its name, as the kernel counts moves.
    becomes: Option<(u32, Half)>,
}

/// Watches until the folder is gone, or the reader is.
pub fn watch(top: &Path, recursive: bool) -> Result<(), Failure> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC);
    let inotify = inotify.map_err(|error| failed("watch", top, &error.into()))?;
    let mut watched = Watched {
        inotify,
        top,
        recursive,
        folders: HashMap::new(),
        becomes: None,
    };
    watched.add(PathBuf::new(), &mut Vec::new())?;
    let mut out = io::stdout().lock();
    if writeln!(out).and_then(|()| out.flush()).is_err() {
        return Ok(());
    }
    while !watched.folders.is_empty() {
        let events = match watched.inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(failed("watch", top, &error.into())),
        };
        let mut told = Vec::new();
        for event in events {
            watched.hear(event, &mut told)?;
        }
        for event in told {
            let line = serde_json::to_string(&event).unwrap_or_default();
            if writeln!(out, "{line}").is_err() {
                return Ok(());
            }
        }
        if out.flush().is_err() {
            return Ok(());
        }
    }
    Ok(())
}

impl Watched<'_> {
    /// Watches a folder and, if that is wanted, those below it; what is in one that was just made is
    /// told of, for it may be older than its watch.
    fn add(&mut self, from_top: PathBuf, told: &mut Vec<FileEvent>) -> Result<(), Failure> {
        let path = self.top.join(&from_top);
        let is_top = from_top.as_os_str().is_empty();
        let wanted = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_ONLYDIR;
        if self.folders.len() >= MOST {
            return Err(refused(format!(
                "more than {MOST} folders are to be watched"
            )));
        }
        match self.inotify.add_watch(&path, wanted) {
            Ok(number) => drop(self.folders.insert(number, from_top.clone())),
            // Gone meanwhile.
            Err(Errno::ENOENT | Errno::ENOTDIR) if !is_top => return Ok(()),
            Err(error) => return Err(failed("watch", &path, &error.into())),
        }
        if !self.recursive {
            return Ok(());
        }
        let Ok(entries) = fs::read_dir(&path) else {
            return Ok(());
        };
        let whole = |entry: &fs::DirEntry| Half::of(&entry.file_name()).is_none();
        for entry in entries.flatten().filter(whole) {
            let below = from_top.join(entry.file_name());
            if !is_top {
                told.push(event(FileChange::Created, &below));
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add(below, told)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, heard: InotifyEvent, told: &mut Vec<FileEvent>) -> Result<(), Failure> {
        if heard.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return Err(refused(
                "changes came faster than they could be told".to_owned(),
            ));
        }
        if heard.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.folders.remove(&heard.wd);
            return Ok(());
        }
        let (Some(folder), Some(name)) = (self.folders.get(&heard.wd), heard.name) else {
            return Ok(());
        };
        if let Some(half) = Half::of(&name) {
            if heard.mask.contains(AddWatchFlags::IN_MOVED_FROM) {
                self.becomes = Some((heard.cookie, half));
            }
            return Ok(());
        }
        let path = folder.join(name);
        let is_folder = heard.mask.contains(AddWatchFlags::IN_ISDIR);
        if heard.mask.contains(AddWatchFlags::IN_MOVED_TO)
            && !is_folder
            && let Some((_, half)) = self.becomes.take_if(|(move_, _)| *move_ == heard.cookie)
        {
            if half == Half::New {
                told.push(event(FileChange::Created, &path));
            }
            told.push(event(FileChange::Written, &path));
            return Ok(());
        }
        for (flag, change) in [
            (AddWatchFlags::IN_CREATE, FileChange::Created),
            (AddWatchFlags::IN_MOVED_TO, FileChange::Created),
            (AddWatchFlags::IN_MODIFY, FileChange::Written),
            (AddWatchFlags::IN_DELETE, FileChange::Removed),
            (AddWatchFlags::IN_MOVED_FROM, FileChange::MovedAway),
            (AddWatchFlags::IN_ATTRIB, FileChange::Attributes),
        ] {
            if heard.mask.contains(flag) {
                told.push(event(change, &path));
            }
        }
        let made = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        match self.recursive && is_folder && heard.mask.intersects(made) {
            true => self.add(path, told),
            false => Ok(()),
        }
    }
}

fn event(change: FileChange, path: &Path) -> FileEvent {
    FileEvent {
        change,
        name: path.to_string_lossy().into_owned(),
    }
}
