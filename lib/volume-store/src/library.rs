//! Folder of volumes.

use crate::{
    AtRest, BaseFacts, Facts, Store, StoreError,
    base::Base,
    encryption::{Encryption, Keys, random},
    files::sync,
    store::blocks,
};
use forkyard_volume::{ChangeRefusal, Geometry, Opening, Volume, VolumeId};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Suffix of the names of folders that are no volumes yet, or no more.
const FRESH: &str = "new";
const GONE: &str = "gone";
/// Folder of keys, unless there is another.
const KEYS: &str = ".keys";

/// Volumes of a folder. Each is opened when it is first asked for, and stays open.
#[derive(Debug)]
pub struct Library {
    pub(crate) folder: PathBuf,
    geometry: Geometry,
    pub(crate) keys: Keys,
    open: Mutex<BTreeMap<String, Arc<Store>>>,
    /// Volumes that were begun.
    made: AtomicU64,
    /// Names of those that have none yet, and whether they were given up.
    making: Mutex<BTreeMap<PathBuf, (String, bool)>>,
}

impl Library {
    /// Looks after a folder, which is made if it is missing. Keys are in its folder `.keys`.
    pub fn new(folder: &Path) -> Result<Self, StoreError> {
        Self::with_geometry(folder, Geometry::USUAL)
    }

    /// Looks after a folder, and makes volumes with segments of another size.
    pub fn with_geometry(folder: &Path, geometry: Geometry) -> Result<Self, StoreError> {
        Self::with_keys(folder, geometry, &folder.join(KEYS))
    }

    /// Looks after a folder, with the keys of encrypted volumes in another one, which is made with
    /// the first of them.
    pub fn with_keys(folder: &Path, geometry: Geometry, keys: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(|e| StoreError::io("make", folder, e))?;
        let library = Self {
            folder: folder.to_owned(),
            geometry,
            keys: Keys(keys.to_owned()),
            open: Mutex::default(),
            made: AtomicU64::default(),
            making: Mutex::default(),
        };
        library.sweep()?;
        Ok(library)
    }

    /// Removes what was being made, or removed, when a server died.
    fn sweep(&self) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("list", &self.folder, e);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let kind = path.extension().and_then(OsStr::to_str);
            if matches!(kind, Some(FRESH | GONE)) && path.is_dir() {
                self.keys.discard(&path)?;
            }
        }
        Ok(())
    }

    fn stores(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Store>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a volume of zeroes.
    pub fn create(
        &self,
        name: &str,
        size: u64,
        at_rest: &AtRest,
    ) -> Result<Arc<Store>, StoreError> {
        check_name(name)?;
        let fresh = self.fresh(name, (random_id()?, size), at_rest)?;
        self.keep(&fresh, name)
    }

    /// Makes a volume with a copy of a raw disk in it, of a size that is at least the disk's. Has
    /// its name once all of it is there.
    pub fn import(
        &self,
        name: &str,
        file: &Path,
        size: Option<u64>,
        at_rest: &AtRest,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        let facts = fs::metadata(file).map_err(|e| StoreError::io("read", file, e))?;
        if !facts.is_file() {
            return Err(StoreError::NoDisk(file.to_owned()));
        }
        let (have, least) = (facts.len(), facts.len().next_multiple_of(4096).max(4096));
        let room = size.unwrap_or(least);
        if have > room {
            return Err(StoreError::TooLarge { have, room });
        }
        let what = (random_id()?, room);
        self.make(name, what, at_rest, |store| store.import(file))
    }

    /// Makes a volume and fills it. Has its name once all of it is there.
    pub(crate) fn make(
        &self,
        name: &str,
        what: (VolumeId, u64),
        at_rest: &AtRest,
        fill: impl FnOnce(Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        self.refuse_taken(name)?;
        let fresh = self.fresh(name, what, at_rest)?;
        self.making()
            .insert(fresh.clone(), (name.to_owned(), false));
        let filled = Store::recover(&fresh, name, &self.keys).and_then(fill);
        // Held until it has its name: a removal finds it here or there.
        let mut making = self.making();
        let is_wanted = making.remove(&fresh).is_some_and(|(_, given_up)| !given_up);
        let kept = match is_wanted {
            true => filled.and_then(|()| self.keep(&fresh, name).map(drop)),
            false => filled.and(Err(StoreError::Unknown(name.to_owned()))),
        };
        drop(making);
        if kept.is_err() {
            // What cannot be removed now goes when the next server starts.
            let _ = self.keys.discard(&fresh);
        }
        kept
    }

    fn refuse_taken(&self, name: &str) -> Result<(), StoreError> {
        match self.folder.join(name).exists() {
            true => Err(StoreError::Exists(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Makes a volume of zeroes that has no name yet.
    pub(crate) fn fresh(
        &self,
        name: &str,
        (id, size): (VolumeId, u64),
        at_rest: &AtRest,
    ) -> Result<PathBuf, StoreError> {
        let blocks = blocks(size)?;
        // Names of volumes have no dot: it can be taken for none.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let fresh = self.folder.join(format!("{name}.{number}.{FRESH}"));
        let failed = |e| StoreError::io("make", &fresh, e);
        fs::create_dir(&fresh).map_err(failed)?;
        let made = match at_rest {
            AtRest::Plain => Ok(self.geometry),
            AtRest::Encrypted { key } => {
                let begun = Encryption::begin(&self.keys, &fresh, name, key.as_deref());
                begun.map(|()| self.geometry.sealed())
            }
        };
        let made =
            made.and_then(|geometry| Store::make(&fresh, &Volume::create(id, blocks, geometry)));
        if let Err(error) = made {
            let _ = self.keys.discard(&fresh);
            return Err(error);
        }
        Ok(fresh)
    }

    /// Gives a volume its name, and opens it.
    pub(crate) fn keep(&self, fresh: &Path, name: &str) -> Result<Arc<Store>, StoreError> {
        let mut stores = self.stores();
        let place = self.folder.join(name);
        let kept = self.refuse_taken(name).and_then(|()| {
            fs::rename(fresh, &place).map_err(|e| StoreError::io("make", &place, e))
        });
        if let Err(error) = kept {
            let _ = self.keys.discard(fresh);
            return Err(error);
        }
        sync(&self.folder)?;
        self.open_in(&mut stores, name)
    }

    /// Opens a volume, or returns it if it is open.
    pub fn open(&self, name: &str) -> Result<Arc<Store>, StoreError> {
        check_name(name)?;
        self.open_in(&mut self.stores(), name)
    }

    /// Opens a volume, and what it lies over.
    fn open_in(
        &self,
        stores: &mut BTreeMap<String, Arc<Store>>,
        name: &str,
    ) -> Result<Arc<Store>, StoreError> {
        if let Some(store) = stores.get(name) {
            return Ok(Arc::clone(store));
        }
        let place = self.folder.join(name);
        if !place.is_dir() {
            return Err(StoreError::Unknown(name.to_owned()));
        }
        let mut store = Store::recover(&place, name, &self.keys)?;
        if let Some(facts) = BaseFacts::of(&place)? {
            // Not over itself, in however many steps: its lock is taken.
            let below = self.open_in(stores, &facts.volume)?;
            store.base = Some(Base::new(facts, below));
        }
        let store = Arc::new(store);
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

    fn making(&self) -> MutexGuard<'_, BTreeMap<PathBuf, (String, bool)>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a volume that is not open for writing. One that is being made, or comes, never is.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let mut given_up = false;
        for (making, is_given_up) in self.making().values_mut() {
            if making == name {
                (*is_given_up, given_up) = (true, true);
            }
        }
        match self.open(name) {
            Ok(_) => {}
            Err(StoreError::Unknown(_)) if given_up => return Ok(()),
            // Of no use to any program.
            Err(StoreError::Damaged(_) | StoreError::Key { .. }) => {}
            Err(error) => return Err(error),
        }
        if let Some(branch) = self.branch_over(name, None)? {
            return Err(StoreError::Below {
                volume: name.to_owned(),
                branch,
            });
        }
        let mut stores = self.stores();
        if let Some(store) = stores.get(name) {
            store.refuse_needed(None)?;
        }
        if let Some((epoch, Opening::Open)) = stores.get(name).map(|store| store.writer()) {
            return Err(ChangeRefusal::Open(epoch).into());
        }
        let place = self.folder.join(name);
        let gone = self.folder.join(format!("{name}.{GONE}"));
        let failed = |e| StoreError::io("remove", &place, e);
        self.keys.discard(&gone)?;
        fs::rename(&place, &gone).map_err(failed)?;
        if let Some(store) = stores.remove(name) {
            store.end_lines();
            store.end_mirrors();
        }
        sync(&self.folder)?;
        self.keys.discard(&gone)
    }

    /// Volumes that are open.
    pub fn opened(&self) -> Vec<Arc<Store>> {
        self.stores().values().cloned().collect()
    }
}

pub(crate) fn random_id() -> Result<VolumeId, StoreError> {
    let mut id = [0; 16];
    random(&mut id)?;
    Ok(VolumeId(id))
}

pub(crate) fn check_name(name: &str) -> Result<(), StoreError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match (1..=64).contains(&name.len()) && name.chars().all(fine) {
        true => Ok(()),
        false => Err(StoreError::Name(name.to_owned())),
    }
}
