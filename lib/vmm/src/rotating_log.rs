//! A log that is kept to its last MiB: two files, of which the older goes when
//! the newer is full.

use crate::VmmError;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Most bytes of each of the two files.
pub(crate) const HALF: u64 = 512 << 10;

/// Names of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) older: &'static str,
    pub(crate) newer: &'static str,
}

/// The two files of one log.
#[derive(Debug)]
pub(crate) struct RotatingLog {
    dir: PathBuf,
    names: Names,
    /// The newer file, and its length.
    newer: Option<(File, u64)>,
}

impl RotatingLog {
    /// Those of this folder, whether there are any yet or not.
    pub(crate) fn new(dir: &Path, names: Names) -> Self {
        Self {
            dir: dir.to_owned(),
            names,
            newer: None,
        }
    }

    /// Their folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a piece, which must be smaller than a half. Blocks for that.
    pub(crate) fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let path = self.dir.join(self.names.newer);
        let (mut file, mut len) = match self.newer.take() {
            Some(newer) => newer,
            None => open(&path)?,
        };
        if len + piece.len() as u64 > HALF {
            fs::rename(&path, self.dir.join(self.names.older))?;
            (file, len) = open(&path)?;
        }
        file.write_all(piece)?;
        self.newer = Some((file, len + piece.len() as u64));
        Ok(())
    }
}

/// All that is kept. Blocks for a read of 1 MiB at most.
pub(crate) fn kept(dir: &Path, names: Names) -> Result<Vec<u8>, VmmError> {
    let mut all = Vec::new();
    for name in [names.older, names.newer] {
        let path = dir.join(name);
        match fs::read(&path) {
            Ok(half) => all.extend(half),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(VmmError::io("read", path)(error)),
        }
    }
    Ok(all)
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut options = File::options();
    let file = options.create(true).append(true).mode(0o600).open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}
