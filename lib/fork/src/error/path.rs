//! Paths that requests name. A fault of such a path is the request's; all other errors of using it are
//! the host's.

use super::HostError;
use nix::errno::Errno;
use std::{
    fs::{self, File},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Path that a request names, and that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.told())]
pub struct PathError {
    /// Purpose of the path.
    purpose: Purpose,
    /// Operation that was tried.
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Purpose of a path that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Folder that is an object store.
    Store,
    /// Folder that a substrate is pulled from.
    Pull,
    /// Folder that substrates are pushed to.
    Push,
    /// Raw disk that a volume is a copy of.
    Import,
    /// File that a volume is copied into.
    Export,
}

impl PathError {
    fn told(&self) -> String {
        let (what, path) = (self.what, self.path.display());
        let missing = self.source.kind() == io::ErrorKind::NotFound;
        match self.purpose {
            Purpose::Store if missing => format!("there is no folder {path}"),
            Purpose::Pull | Purpose::Import if missing => format!("there is no file {path}"),
            Purpose::Store | Purpose::Pull | Purpose::Push | Purpose::Import | Purpose::Export => {
                format!("cannot {what} {path}")
            }
        }
    }

    /// Returns advice to the client.
    pub(super) fn hint(&self) -> &'static str {
        match self.purpose {
            Purpose::Store => {
                "name a folder of the daemon's host: make it first, or check the path"
            }
            Purpose::Pull => {
                "name a folder of the daemon's host that `forkyard substrate push NAME FOLDER` has made: it is FOLDER/NAME"
            }
            Purpose::Push => {
                "name a folder of the daemon's host that can be written, by its absolute path"
            }
            Purpose::Import => {
                "name a raw disk, which is a regular file of the daemon's host, by its absolute path"
            }
            Purpose::Export => {
                "name a file that is not there yet, by its absolute path, in a folder of the daemon's host that can be written"
            }
        }
    }
}

impl Purpose {
    /// Converts an error of using a path that a request names.
    fn failed(self, what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostError {
        let path = path.to_owned();
        move |source| match is_of_path(&source) {
            true => PathError {
                purpose: self,
                what,
                path,
                source,
            }
            .into(),
            false => HostError::Io { what, path, source },
        }
    }
}

impl HostError {
    /// Blames the request for a fault of what lies at a path that it names.
    pub(crate) fn of_request(self, purpose: Purpose, named: &Path) -> Self {
        if let Self::Io { what, path, source } = self {
            match path.starts_with(named) {
                true => purpose.failed(what, &path)(source),
                false => Self::Io { what, path, source },
            }
        } else {
            self
        }
    }
}

/// Tells whether an error is a fault of the path itself: another path, or another file there, has no
/// such error. A host that is short of something, or whose disk fails, has other errors.
fn is_of_path(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::NotFound,
        io::ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::AlreadyExists,
        io::ErrorKind::DirectoryNotEmpty,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::InvalidFilename,
        io::ErrorKind::ReadOnlyFilesystem,
    ];
    // Of a link that is not followed or leads to itself, and of a socket.
    let numbers = [Errno::ELOOP, Errno::ENXIO].map(|errno| errno as i32);
    let number = error.raw_os_error();
    kinds.contains(&error.kind()) || number.is_some_and(|it| numbers.contains(&it))
}

/// Refuses a path that is no folder which can be a store. Blocks for a moment.
pub(crate) fn check_store(folder: &Path) -> Result<(), HostError> {
    let failed = || Purpose::Store.failed("use", folder);
    match fs::metadata(folder).map_err(failed())?.is_dir() {
        true => Ok(()),
        false => Err(failed()(Errno::ENOTDIR.into())),
    }
}

/// Refuses a path at which there is no raw disk that can be read. Blocks for a moment.
pub(crate) fn check_import(file: &Path) -> Result<(), HostError> {
    let failed = || Purpose::Import.failed("read", file);
    // Before it is opened: a FIFO would be waited for, and a device would notice.
    if !fs::metadata(file).map_err(failed())?.is_file() {
        let why = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(failed()(why));
    }
    File::open(file).map(drop).map_err(failed())
}

/// Refuses a path at which no new file can be made. Blocks for a moment.
pub(crate) fn check_export(file: &Path) -> Result<(), HostError> {
    let failed = |path| Purpose::Export.failed("make", path);
    match fs::symlink_metadata(file) {
        Ok(_) => return Err(failed(file)(Errno::EEXIST.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(file)(error)),
    }
    let folder = match file.parent() {
        Some(folder) if file.file_name().is_some() => folder,
        Some(_) | None => return Err(failed(file)(Errno::ENOENT.into())),
    };
    if file.as_os_str().as_bytes().ends_with(b"/") {
        return Err(failed(file)(Errno::EISDIR.into()));
    }
    // Has no name, or only for a moment: some folders, as those of /proc, take no file.
    let made = tempfile::tempfile_in(folder).map(drop);
    made.map_err(Purpose::Export.failed("make a file in", folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::ErrorKind;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::os::unix::fs::symlink;

    fn of(errno: Errno) -> HostError {
        HostError::io("read", Path::new("/a/b"))(errno.into())
    }

    /// Kind, message and hint of a refusal.
    fn told(refused: Result<(), HostError>) -> (ErrorKind, String, String) {
        let told = refused.expect_err("refused").to_api();
        (told.kind, told.message, told.hint.unwrap_or_default())
    }

    #[test]
    fn faults_of_a_path_are_the_requests_and_those_of_the_host_are_not() {
        for errno in [
            Errno::ENOENT,
            Errno::ENOTDIR,
            Errno::EISDIR,
            Errno::EACCES,
            Errno::EPERM,
            Errno::EEXIST,
            Errno::ENOTEMPTY,
            Errno::EINVAL,
            Errno::ENAMETOOLONG,
            Errno::EROFS,
            Errno::ELOOP,
            Errno::ENXIO,
        ] {
            assert_eq!(of(errno).kind(), ErrorKind::Host, "nothing names its path");
            for purpose in [Purpose::Pull, Purpose::Push] {
                let error = of(errno).of_request(purpose, Path::new("/a"));
                let told = error.to_api();
                assert_eq!(told.kind, ErrorKind::Invalid, "{errno}");
                assert!(told.message.contains("/a/b: "), "{}", told.message);
                assert!(told.hint.is_some_and(|hint| hint.contains("folder")));
            }
        }
        for errno in [
            Errno::EIO,
            Errno::ENOSPC,
            Errno::EDQUOT,
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOMEM,
            Errno::ESTALE,
        ] {
            let error = of(errno).of_request(Purpose::Pull, Path::new("/a"));
            assert_eq!(error.kind(), ErrorKind::Host, "{errno}");
            assert_eq!(error.to_api(), of(errno).to_api());
        }
    }

    #[test]
    fn a_file_of_the_hosts_own_that_is_missing_is_a_fault_of_the_host() {
        let error = of(Errno::ENOENT).of_request(Purpose::Pull, Path::new("/other"));
        assert_eq!(error.kind(), ErrorKind::Host);
    }

    #[test]
    fn a_store_is_a_folder_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        check_store(folder.path()).expect("a store");
        let file = folder.path().join("file");
        fs::write(&file, "x").expect("a file");

        let missing = folder.path().join("a");
        let (kind, message, hint) = told(check_store(&missing));
        assert_eq!(kind, ErrorKind::Invalid);
        let wanted = format!(
            "there is no folder {}: No such file or directory (os error 2)",
            missing.display()
        );
        assert_eq!(message, wanted);
        assert!(hint.contains("make it") && !hint.contains("AWS"), "{hint}");

        for path in [file.clone(), file.join("x")] {
            let (kind, message, _) = told(check_store(&path));
            assert_eq!(kind, ErrorKind::Invalid, "{message}");
            assert!(message.contains("Not a directory"), "{message}");
        }
    }

    #[test]
    fn a_volume_is_a_copy_of_a_regular_file_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::write(place("disk"), "x").expect("a file");
        check_import(&place("disk")).expect("a disk");
        mkfifo(&place("fifo"), Mode::S_IRUSR).expect("a FIFO");
        symlink("loop", place("loop")).expect("a link");
        for (path, why) in [
            (place("f"), "there is no file"),
            (place("disk/f"), "Not a directory"),
            (place("fifo"), "it is no regular file"),
            (place(""), "it is no regular file"),
            (place("loop"), "symbolic links"),
        ] {
            let (kind, message, hint) = told(check_import(&path));
            assert_eq!(kind, ErrorKind::Invalid, "{message}");
            assert!(message.contains(why), "{message}");
            assert!(hint.contains("absolute path"), "{hint}");
        }
    }

    #[test]
    fn a_volume_is_copied_into_a_new_file_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::write(place("file"), "x").expect("a file");
        symlink("nowhere", place("link")).expect("a link");
        check_export(&place("new")).expect("a place");
        for (path, why) in [
            (place("file"), "File exists"),
            (place(""), "File exists"),
            (place("link"), "File exists"),
            (place("new/"), "Is a directory"),
            (place("none/.."), "No such file"),
            (place("none/new"), "No such file"),
            (place("file/new"), "Not a directory"),
            ("/".into(), "File exists"),
            ("/proc/x".into(), "/proc: No such file"),
        ] {
            let (kind, message, hint) = told(check_export(&path));
            assert_eq!(kind, ErrorKind::Invalid, "{message}");
            assert!(message.contains(why), "{message}");
            assert!(hint.contains("not there yet"), "{hint}");
        }
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 2, "nothing is left of the attempt");
    }
}
