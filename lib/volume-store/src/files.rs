//! Files of a volume.

use crate::StoreError;
use forkyard_volume::Sequence;
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

const SUFFIX: &str = ".seg";

/// Folder of a volume.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn segment(&self, sequence: Sequence) -> PathBuf {
        self.0.join(format!("{:010}{SUFFIX}", sequence.0))
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// Takes the lock; `None` if another process has it.
    pub fn lock(&self) -> Result<Option<File>, StoreError> {
        let path = self.0.join("lock");
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| StoreError::io("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(e)) => Err(StoreError::io("lock", &path, e)),
        }
    }

    /// Segments there are files of.
    pub fn segments(&self) -> Result<BTreeMap<Sequence, PathBuf>, StoreError> {
        let failed = |e| StoreError::io("list", &self.0, e);
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|it| it.to_str());
            let number = name.and_then(|it| it.strip_suffix(SUFFIX)?.parse().ok());
            if let Some(number) = number {
                found.insert(Sequence(number), path);
            }
        }
        Ok(found)
    }

    pub fn open(&self, sequence: Sequence) -> Result<Arc<File>, StoreError> {
        let path = self.segment(sequence);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        opened
            .map(Arc::new)
            .map_err(|e| StoreError::io("open", path, e))
    }

    /// Makes a segment's file, in place of one that came to nothing.
    pub fn create(&self, sequence: Sequence, header: &[u8]) -> Result<Arc<File>, StoreError> {
        let path = self.segment(sequence);
        let make = || {
            let mut options = OpenOptions::new();
            let mut file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)?;
            file.write_all(header)?;
            Ok(Arc::new(file))
        };
        make().map_err(|e| {
            // An empty file would be taken for a segment.
            let _ = fs::remove_file(&path);
            StoreError::io("make", &path, e)
        })
    }

    pub fn remove(&self, sequence: Sequence) -> Result<(), StoreError> {
        let path = self.segment(sequence);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io("remove", path, e))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Replaces the checkpoint, durably.
    pub fn store_checkpoint(&self, bytes: &[u8]) -> Result<(), StoreError> {
        self.replace("checkpoint", bytes)
    }

    /// Replaces a file of this name with a value as JSON, durably.
    pub fn store(&self, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(value);
        let bytes = bytes.map_err(|e| StoreError::io("write", self.0.join(name), e.into()))?;
        self.replace(name, &bytes)
    }

    /// Reads a value that was stored so; the default if there is none.
    pub fn load<T: Default + serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<T, StoreError> {
        let path = self.0.join(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| StoreError::io("understand", &path, error.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(StoreError::io("read", path, error)),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let fresh = self.0.join(format!("{name}.new"));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|e| StoreError::io("write", &fresh, e))?;
        let path = self.0.join(name);
        fs::rename(&fresh, &path).map_err(|e| StoreError::io("replace", path, e))?;
        self.sync()
    }

    /// Makes durable which files there are.
    pub fn sync(&self) -> Result<(), StoreError> {
        sync(&self.0)
    }
}

/// Makes durable what is in a folder.
pub fn sync(folder: &Path) -> Result<(), StoreError> {
    let synced = File::open(folder).and_then(|it| it.sync_all());
    synced.map_err(|e| StoreError::io("flush", folder, e))
}
