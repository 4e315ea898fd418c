//! The folders of a host: made, checked, locked.
//!
//! A folder that is there and holds other things than Forkyard's is refused, before anything is
//! changed in it. Folders that a start made go again if it fails.

use crate::{Folders, PartsError};
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf, absolute},
};

/// Mode of folders: QEMUs run as users of their own, and may pass through, not list.
const MODE: u32 = 0o711;
/// File that the living daemon has locked.
const LOCK: &str = "lock";
/// Entries of a folder of sockets or of records that is Forkyard's, be they what came there before
/// the daemon.
const OURS: [&str; 16] = [
    LOCK,
    "api.sock",
    "blockd.log",
    "cluster",
    "daemon.log",
    "e2b.key",
    "faults",
    "forkyard.db",
    "links.json",
    "pager.log",
    "steps",
    "substrates",
    "substrate.key",
    "tls",
    "volume-keys",
    "volumes",
];

/// Folders of a daemon that starts, which has them alone.
#[derive(Debug)]
pub struct OwnedFolders {
    folders: Folders,
    /// Those that this start made, the upper ones first, and then the locks that it made.
    made: Vec<PathBuf>,
    /// The kernel lets go of them if we die.
    locks: [File; 2],
}

impl OwnedFolders {
    /// Makes them, and locks that of sockets and that of records. Of those that it makes none stays
    /// if it fails.
    pub fn take(folders: &Folders) -> Result<Self, PartsError> {
        for folder in [&folders.state, &folders.cache] {
            not_too_long(folder)?;
        }
        if absolute(&folders.state).ok() == absolute(&folders.run).ok() {
            let text = "the run folder and the folder of records are one: choose another for either \
                (FORKYARD_RUN_DIR, FORKYARD_STATE_DIR)";
            return Err(PartsError::Invalid(text.to_owned()));
        }
        let mut made = Vec::new();
        match hold(folders, &mut made) {
            Ok(locks) => Ok(Self {
                folders: folders.clone(),
                made,
                locks,
            }),
            Err(error) => {
                remove(&made);
                Err(error)
            }
        }
    }

    /// Returns their paths.
    pub fn folders(&self) -> &Folders {
        &self.folders
    }

    /// Keeps the folders for as long as what this returns is open.
    pub fn keep(self) -> [File; 2] {
        self.locks
    }

    /// Removes what the start made of them that failed.
    pub fn undo(self) {
        if self.made.contains(&self.folders.state) {
            let records = self.folders.database();
            for end in ["", "-shm", "-wal"] {
                let mut file = records.clone().into_os_string();
                file.push(end);
                let _ = fs::remove_file(file);
            }
        }
        // Where there is no VM.
        let _ = fs::remove_dir(self.folders.all_sockets());
        remove(&self.made);
    }
}

/// Removes locks, and folders that are empty, the lower ones first.
fn remove(made: &[PathBuf]) {
    for path in made.iter().rev() {
        let _ = match path.ends_with(LOCK) {
            true => fs::remove_file(path),
            false => fs::remove_dir(path),
        };
    }
}

/// Makes the folders that are missing, notes those, makes sure that QEMUs may pass them, and locks two. Each
/// is locked before another is made: of two starts at the same moment one finds nothing but the lock.
fn hold(folders: &Folders, made: &mut Vec<PathBuf>) -> Result<[File; 2], PartsError> {
    let Folders { run, state, .. } = folders;
    make_own(run, made)?;
    let run_lock = lock(&run.join(LOCK), made)?.ok_or(PartsError::Locked { run: run.clone() })?;
    make_own(state, made)?;
    let path = state.join(LOCK);
    let state_lock = lock(&path, made)?.ok_or_else(|| PartsError::StateLocked {
        state: state.clone(),
        run: fs::read_to_string(&path).unwrap_or_default().into(),
    })?;
    // For the daemon that is refused; a write that fails costs it the name alone.
    let _ = state_lock.set_len(0);
    let _ = (&state_lock).write_all(run.as_os_str().as_bytes());
    // Others may have put images there for all hosts.
    make_one(&folders.cache, made)?;
    passable(&folders.cache)?;
    make_one(&folders.all_disks(), made)?;
    make_one(&folders.all_sockets(), made)?;
    Ok([run_lock, state_lock])
}

/// Makes a folder that is to hold nothing of others.
fn make_own(folder: &Path, made: &mut Vec<PathBuf>) -> Result<(), PartsError> {
    refuse_foreign(folder)?;
    make_one(folder, made)?;
    passable(folder)
}

fn make_one(folder: &Path, made: &mut Vec<PathBuf>) -> Result<(), PartsError> {
    let mode = match fs::metadata(folder) {
        Ok(there) => there.permissions().mode() & 0o7777 | MODE,
        Err(_) => {
            let missing = folder.ancestors().take_while(|above| !above.exists());
            let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
            missing.reverse();
            made.append(&mut missing);
            fs::create_dir_all(folder).map_err(PartsError::io("create", folder))?;
            MODE
        }
    };
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(folder, mode).map_err(PartsError::io("open up", folder))
}

/// Refuses a folder that holds something, and nothing of Forkyard's.
fn refuse_foreign(folder: &Path) -> Result<(), PartsError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PartsError::io("read", folder)(error)),
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    // Of a disk of its own.
    let mut names = names.filter(|name| name != "lost+found").peekable();
    let is_ours = names.peek().is_none()
        || names.any(|name| OURS.iter().any(|ours| name.as_bytes() == ours.as_bytes()));
    match is_ours {
        true => Ok(()),
        false => Err(PartsError::ForeignFolder {
            folder: folder.into(),
        }),
    }
}

/// Most bytes of the path of a folder with records or disks: SQLite takes paths of 512, and what
/// lies in the folder has names of its own.
const LONGEST: usize = 400;

/// Refuses a folder in which files could have paths that are too long, before anything is made.
fn not_too_long(folder: &Path) -> Result<(), PartsError> {
    let path = absolute(folder).unwrap_or_else(|_| folder.to_owned());
    match path.as_os_str().len() {
        ..=LONGEST => Ok(()),
        length => Err(PartsError::Invalid(format!(
            "the path of the folder {}… has {length} bytes, and {LONGEST} at most: choose a shorter one \
             (FORKYARD_STATE_DIR, FORKYARD_CACHE_DIR)",
            folder
                .display()
                .to_string()
                .chars()
                .take(40)
                .collect::<String>()
        ))),
    }
}

/// QEMUs run as users of their own: every folder above their files must let
/// them through.
fn passable(folder: &Path) -> Result<(), PartsError> {
    let folder = folder
        .canonicalize()
        .map_err(PartsError::io("find", folder))?;
    for above in folder.ancestors() {
        let mode = fs::metadata(above)
            .map_err(PartsError::io("look at", above))?
            .permissions()
            .mode();
        if mode & 0o001 == 0 {
            return Err(PartsError::NotPassable {
                folder: above.into(),
            });
        }
    }
    Ok(())
}

/// Locks a file, and notes it if it had to be made; none if another process has it.
fn lock(path: &Path, made: &mut Vec<PathBuf>) -> Result<Option<File>, PartsError> {
    loop {
        let is_new = !path.exists();
        // A user that could open it could hold the lock.
        let file =
            forkyard_sys_host::private::open(path).map_err(PartsError::io("create", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(source)) => {
                return Err(PartsError::io("lock", path)(source));
            }
        }
        let number = |about: io::Result<fs::Metadata>| about.ok().map(|about| about.ino());
        // A start that failed may have removed it between the two.
        if number(file.metadata()) == number(fs::metadata(path)) {
            if is_new {
                made.push(path.to_owned());
            }
            return Ok(Some(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_holds_other_things_is_refused_and_a_new_disk_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let add = |name: &str| fs::create_dir(folder.path().join(name)).expect("made");
        let verdict = || refuse_foreign(folder.path());
        verdict().expect("empty");
        add("lost+found");
        verdict().expect("a new disk");
        add("vms");
        let refused = verdict().expect_err("anybody may have a folder of that name");
        assert!(refused.to_string().contains("other things"), "{refused}");
        // All that a start left which failed once its pager had begun.
        fs::write(folder.path().join("pager.log"), "").expect("written");
        verdict().expect("ours");
        refuse_foreign(&folder.path().join("none")).expect("none yet");
    }

    #[test]
    fn what_a_failed_start_made_goes_again_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("there")).expect("made");
        let folders = Folders {
            bin: at("bin"),
            state: at("new/state"),
            run: at("there"),
            cache: at("cache"),
            share: at("share"),
        };
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let held = OwnedFolders::take(&folders).expect("taken");
        assert!(matches!(
            OwnedFolders::take(&folders),
            Err(PartsError::Locked { .. })
        ));
        let other = Folders {
            run: at("other"),
            ..folders.clone()
        };
        let refused = OwnedFolders::take(&other).expect_err("the records are taken");
        assert!(matches!(refused, PartsError::StateLocked { run, .. } if run == folders.run));
        assert!(!at("other").exists());
        held.undo();
        let left: Vec<_> = fs::read_dir(folder.path())
            .expect("read")
            .flatten()
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(fs::read_dir(at("there")).expect("read").count(), 0);
        let one = Folders {
            run: folders.state.clone(),
            ..folders
        };
        let refused = OwnedFolders::take(&one).expect_err("one folder for both");
        assert!(refused.to_string().contains("are one"), "{refused}");
    }

    #[test]
    fn of_starts_at_the_same_moment_one_has_the_folders_and_the_others_hear_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
        for number in 0..20 {
            let at = |name: &str| folder.path().join(number.to_string()).join(name);
            let folders = Folders {
                bin: at("bin"),
                state: at("state"),
                run: at("run"),
                cache: at("cache"),
                share: at("share"),
            };
            let starts = std::thread::scope(|scope| {
                let starts = [(); 8].map(|()| scope.spawn(|| OwnedFolders::take(&folders)));
                starts.map(|start| start.join().expect("ended"))
            });
            let (held, late): (Vec<_>, Vec<_>) = starts.into_iter().partition(Result::is_ok);
            assert_eq!(held.len(), 1, "{late:?}");
            for refused in late {
                let refused = refused.expect_err("late");
                assert!(matches!(refused, PartsError::Locked { .. }), "{refused}");
            }
        }
    }
}
