//! Folder of volumes.

use crate::{Facts, Store, StoreError, files::sync, store::blocks};
use forkyard_volume::{Geometry, Opening, Refusal, Volume, VolumeId};
use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Volumes of a folder. Each is opened when it is first asked for, and stays open.
#[derive(Debug)]
pub struct Library {
    folder: PathBuf,
    geometry: Geometry,
    open: Mutex<BTreeMap<String, Arc<Store>>>,
}

impl Library {
    /// Looks after a folder, which is made if it is missing.
    pub fn new(folder: &Path) -> Result<Self, StoreError> {
        Self::with_geometry(folder, Geometry::USUAL)
    }

    /// Looks after a folder, and makes volumes with segments of another size.
    pub fn with_geometry(folder: &Path, geometry: Geometry) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(|e| StoreError::io("make", folder, e))?;
        Ok(Self {
            folder: folder.to_owned(),
            geometry,
            open: Mutex::default(),
        })
    }

    fn stores(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Store>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a volume of zeroes.
    pub fn create(&self, name: &str, size: u64) -> Result<Arc<Store>, StoreError> {
        check_name(name)?;
        let blocks = blocks(size)?;
        let mut stores = self.stores();
        let place = self.folder.join(name);
        if place.exists() {
            return Err(StoreError::Exists(name.to_owned()));
        }
        // Names of volumes have no dot: what is left of an attempt is in nobody's way.
        let fresh = self.folder.join(format!("{name}.new"));
        let failed = |e| StoreError::io("make", &place, e);
        match fs::remove_dir_all(&fresh) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            Ok(()) | Err(_) => {}
        }
        fs::create_dir(&fresh).map_err(failed)?;
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|e| failed(std::io::Error::other(e)))?;
        let volume = Volume::create(VolumeId(id), blocks, self.geometry);
        Store::make(&fresh, &volume)?;
        fs::rename(&fresh, &place).map_err(failed)?;
        sync(&self.folder)?;
        let store = Arc::new(Store::recover(&place, name)?);
        stores.insert(name.to_owned(), Arc::clone(&store));
        Ok(store)
    }

    /// Opens a volume, or returns it if it is open.
    pub fn open(&self, name: &str) -> Result<Arc<Store>, StoreError> {
        check_name(name)?;
        let mut stores = self.stores();
        if let Some(store) = stores.get(name) {
            return Ok(Arc::clone(store));
        }
        let place = self.folder.join(name);
        if !place.is_dir() {
            return Err(StoreError::Unknown(name.to_owned()));
        }
        let store = Arc::new(Store::recover(&place, name)?);
        stores.insert(name.to_owned(), Arc::clone(&store));
        Ok(store)
    }

    /// Names of all volumes, sorted.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let failed = |e| StoreError::io("list", &self.folder, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().into_string();
            names.extend(
                name.ok()
                    .filter(|it| check_name(it).is_ok() && entry.path().is_dir()),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Tells what there is to tell of a volume.
    pub fn inspect(&self, name: &str) -> Result<Facts, StoreError> {
        Ok(self.open(name)?.facts())
    }

    /// Removes a volume that is not open for writing.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let store = self.open(name)?;
        let (epoch, opening) = store.writer();
        if opening == Opening::Open {
            return Err(Refusal::Open(epoch).into());
        }
        let mut stores = self.stores();
        let place = self.folder.join(name);
        let gone = self.folder.join(format!("{name}.gone"));
        let failed = |e| StoreError::io("remove", &place, e);
        match fs::remove_dir_all(&gone) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            Ok(()) | Err(_) => {}
        }
        fs::rename(&place, &gone).map_err(failed)?;
        stores.remove(name);
        sync(&self.folder)?;
        fs::remove_dir_all(&gone).map_err(failed)
    }

    /// Volumes that are open.
    pub fn opened(&self) -> Vec<Arc<Store>> {
        self.stores().values().cloned().collect()
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match (1..=64).contains(&name.len()) && name.chars().all(fine) {
        true => Ok(()),
        false => Err(StoreError::Name(name.to_owned())),
    }
}
