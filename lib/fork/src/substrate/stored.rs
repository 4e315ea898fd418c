//! Substrates in object stores: a signed manifest, and the pieces of the files that it names.
//!
//! ```text
//! push: chain of layers -> cut into pieces -> manifest signed -> porter sends what is not there
//! pull: manifest opened -> trusted? -> sound here? -> porter fetches -> pieces compared -> flattened -> as from a folder
//! ```
//!
//! Layers are sent as they are, each as files of its own. So what a substrate has in common with those
//! that it lies over is in the store once. Where it is pulled it lies over its guest image alone.
//!
//! Failure paths: a push that fails leaves pieces that the next collection removes, and whatever had
//! its name before. A pull makes a folder that goes with it, whatever ends it; if the daemon
//! dies, with the next one ([`settle`](super::settle)).

use super::{
    DEVICES, DISK, Entry, MEMORY, Substrate, SubstrateError,
    bundle::{self, PASSING, Way},
    pack::{make_private, part},
};
use crate::{Host, HostError, blocking};
use forkyard_image::{Image, Layer};
use forkyard_objects::{
    Manifest, Sealed, StoreAddress,
    order::{self, Done, ExistingManifest, Failed, Said, Work},
    pieces_of,
};
use forkyard_substrate::access::Act;
use forkyard_types::{
    ByteCount, Collected, ImageId, PullRequest, PushRequest, PushResponse, StoredFacts,
    StoredSubstrate, SubstratePart, SubstrateParts, SubstrateView, VmName,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Version of the description.
const VERSION: u32 = 1;

/// Description of a substrate in its manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    version: u32,
    entry: Entry,
    /// Guest image that the lowest layer of the disk lies over.
    base: ImageId,
}

/// Files of a substrate, by the names that they have in its manifest.
type Files = BTreeMap<String, PathBuf>;

impl Host {
    /// Puts a substrate into a folder or a store for other hosts, signed by this one. In a folder one
    /// that is there already is left as it is; in a store it is replaced if this host has signed it.
    /// Cancel-safe.
    pub async fn push_substrate(
        &self,
        name: &str,
        request: PushRequest,
    ) -> Result<PushResponse, HostError> {
        let found = self.substrate(name, Act::Open, None)?;
        let done = match (&request.folder, &request.store) {
            (Some(folder), None) => {
                self.push_to_folder(&found, folder).await?;
                Done::default()
            }
            (None, Some(store)) => {
                self.store_substrate(&found, &address(store)?, request.verify)
                    .await?
            }
            (None, None) | (Some(_), Some(_)) => return Err(one_of_both()),
        };
        Ok(PushResponse {
            substrate: self.view_of_substrate(&found)?,
            sent: ByteCount(done.moved),
            shared: ByteCount(done.shared),
        })
    }

    /// Brings a substrate in that another host has pushed, if it was signed by a host that is
    /// trusted here. It is its operator's then. Not cancel-safe: run it on a task of its own.
    pub async fn pull_substrate(&self, request: PullRequest) -> Result<SubstrateView, HostError> {
        let pulled = match (&request.folder, &request.store) {
            (Some(folder), None) => self.pull_from_folder(folder, &request).await,
            (None, Some(store)) => {
                let (store, name) = StoreAddress::of_one(store).map_err(bad)?;
                self.pull_from_store(&store, &name, &request).await
            }
            (None, None) | (Some(_), Some(_)) => Err(one_of_both()),
        };
        self.wake_backup();
        self.view_of_substrate(&pulled?)
    }

    /// Sends a substrate to a store.
    pub(super) async fn store_substrate(
        &self,
        substrate: &Substrate,
        store: &StoreAddress,
        verify: bool,
    ) -> Result<Done, HostError> {
        let signer = self.signer()?;
        let (files, base) = self.files_of(substrate)?;
        let name = substrate.name.to_string();
        let description = Description {
            version: VERSION,
            entry: Entry {
                leaving: None,
                backup: None,
                used: 0,
                ..substrate.entry.clone()
            },
            base,
        };
        let description = serde_json::to_value(&description).map_err(io::Error::from);
        let manifest = Manifest {
            name: name.clone(),
            description: description.map_err(HostError::io("describe", Path::new(&name)))?,
            files: BTreeMap::new(),
        };
        let (manifest, files) = blocking(move || cut(manifest, files)).await?;
        let over = self.over(store, &manifest).await?;
        let work = Work::Put {
            name,
            manifest: manifest.seal(&signer).map_err(SubstrateError::from)?,
            files,
            over,
            verify,
        };
        let done = self.carry(store, work, |_| ()).await?;
        tracing::info!(name = %substrate.name, %store, sent = done.moved, shared = done.shared, "pushed");
        Ok(done)
    }

    /// Says what becomes of what has a substrate's name in a store: only this host's own is replaced.
    async fn over(
        &self,
        store: &StoreAddress,
        manifest: &Manifest,
    ) -> Result<ExistingManifest, HostError> {
        let object = match self.manifest_in(store, &manifest.name).await {
            Ok(object) => object,
            Err(error) if is_absent(&error) => return Ok(ExistingManifest::Nothing),
            Err(error) => return Err(error),
        };
        let own = self.signer()?.public().map_err(SubstrateError::from)?;
        match Sealed::open(&manifest.name, object.as_bytes()) {
            Ok(sealed) if sealed.key == own => Ok(ExistingManifest::Replaced),
            Ok(_) | Err(_) => Err(SubstrateError::Store {
                store: store.to_string(),
                source: Failed::Taken(manifest.name.clone()),
            }
            .into()),
        }
    }

    async fn manifest_in(&self, store: &StoreAddress, name: &str) -> Result<String, HostError> {
        let mut found = None;
        let work = Work::Get {
            name: name.to_owned(),
        };
        let each = |said| {
            if let Said::Manifest { object, .. } = said {
                found = Some(object);
            }
        };
        self.carry(store, work, each).await?;
        found.ok_or_else(|| {
            let source = Failed::Absent(name.to_owned());
            let store = store.to_string();
            SubstrateError::Store { store, source }.into()
        })
    }

    /// Files of a substrate and of all that it lies over but its guest image, which is named.
    fn files_of(&self, substrate: &Substrate) -> Result<(Files, ImageId), HostError> {
        let parts = substrate.parts()?;
        let mut files = Files::new();
        let (memory, _) = self.layers_of(parts.memory.image, MEMORY)?;
        let (disk, base) = self.layers_of(parts.disk.image, DISK)?;
        for (kind, paths) in [("memory", memory), ("disk", disk)] {
            let named = paths.into_iter().enumerate();
            files.extend(named.map(|(at, path)| (layer_name(kind, at), path)));
        }
        let folder = self.parts.folders.substrate(parts.memory.image);
        files.insert(DEVICES.to_owned(), folder.join(DEVICES));
        let base = base.ok_or_else(|| HostError::Broken("its disk lies over nothing".into()))?;
        Ok((files, base))
    }

    /// Files of an image's layers that are substrates', the lowest first, and what that lies over.
    pub(super) fn layers_of(
        &self,
        image: ImageId,
        file: &str,
    ) -> Result<(Vec<PathBuf>, Option<ImageId>), HostError> {
        let all: Vec<_> = self.all_substrates()?;
        let parts: Vec<_> = all.into_iter().filter_map(|it| it.entry.parts).collect();
        let (mut paths, mut next) = (Vec::new(), Some(image));
        while let Some(image) = next {
            let own = parts.iter().find_map(|parts| {
                let mut own = [parts.memory, parts.disk].into_iter();
                let part = own.find(|part| part.image == image)?;
                Some((self.parts.folders.substrate(parts.memory.image), part))
            });
            let Some((folder, part)) = own else { break };
            paths.push(folder.join(file));
            next = part.over;
        }
        paths.reverse();
        Ok((paths, next))
    }

    async fn pull_from_store(
        &self,
        store: &StoreAddress,
        name: &str,
        request: &PullRequest,
    ) -> Result<Substrate, HostError> {
        if request.unsigned {
            let why = "what is in a store is pulled by its signature alone: trust its key";
            return Err(HostError::Invalid(why.into()));
        }
        let path = PathBuf::from(format!("{store}/{name}"));
        let refuse = |why: String| SubstrateError::NotBrought {
            path: path.clone(),
            why,
        };
        let object = self.manifest_in(store, name).await?;
        let sealed = Sealed::open(name, object.as_bytes());
        let sealed = sealed.map_err(|source| SubstrateError::Manifest {
            path: path.clone(),
            source,
        })?;
        self.trust(bundle::Signed::By(sealed.key), &path, request)?;
        let manifest = sealed.manifest;
        let described = serde_json::from_value(manifest.description.clone());
        let described: Description = described.map_err(|error| refuse(error.to_string()))?;
        if described.version != VERSION {
            let why = format!(
                "its form is {}, this host knows {VERSION}",
                described.version
            );
            return Err(refuse(why).into());
        }
        let as_name: VmName = match &request.name {
            Some(name) => name.clone(),
            None => name
                .parse()
                .map_err(|_| refuse("its name is none".into()))?,
        };
        let parts = described.entry.parts.clone();
        let parts = parts.ok_or_else(|| refuse("it has no parts".into()))?;
        let flat = flat(&parts, described.base);
        // Before any of it is fetched; and again when it is there.
        self.sound(&described.entry, &flat).map_err(&refuse)?;
        let parent = self.parts.folders.all_substrates();
        let state = self.parts.folders.state.clone();
        let passing = blocking(move || {
            make_private(&[&state, &parent])?;
            let made = tempfile::Builder::new().prefix(PASSING).tempdir_in(&parent);
            made.map_err(HostError::io("create a folder in", &parent))
        })
        .await?;
        let folder = passing.path().to_owned();
        let files = manifest.files.iter().map(|(name, pieces)| order::File {
            path: folder.join(name),
            pieces: pieces.clone(),
        });
        let files: Vec<_> = files.collect();
        let work = Work::Fetch {
            files: files.clone(),
        };
        self.carry(store, work, |_| ()).await?;
        let base = self.stack(described.base)?;
        let place = folder.clone();
        let whole = blocking(move || {
            compare(&files)?;
            flatten(&place, &base, &flat)
        });
        let entry = Entry {
            parts: Some(whole.await?),
            ..described.entry
        };
        let manifest = bundle::Manifest::of(as_name.clone(), entry);
        let place = folder.clone();
        let manifest = blocking(move || manifest.with_files_of(&place)).await?;
        let _turn = self.substrates.docks.lock().await;
        let brought = self.bring(manifest, &as_name, &folder, Way::Move).await;
        drop(passing);
        brought
    }

    /// The substrates of a store, by name. For the host's operator. Cancel-safe.
    pub async fn stored_substrates(&self, store: &str) -> Result<Vec<StoredSubstrate>, HostError> {
        let store = address(store)?;
        let mut all = Vec::new();
        let each = |said| {
            if let Said::Manifest {
                name,
                object,
                stored,
            } = said
            {
                // One after the other: together they may be long.
                all.push(self.stored(name, &object, stored));
            }
        };
        self.carry(&store, Work::List, each).await?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn stored(&self, name: String, object: &str, stored: u64) -> StoredSubstrate {
        let mut view = StoredSubstrate {
            name,
            stored,
            key: None,
            trusted: false,
            problem: None,
            facts: None,
        };
        let sealed = match Sealed::open(&view.name, object.as_bytes()) {
            Ok(sealed) => sealed,
            Err(error) => {
                view.problem = Some(error.to_string());
                return view;
            }
        };
        view.key = Some(sealed.key.to_string());
        view.trusted = self.trusts(sealed.key).unwrap_or(false);
        let size = ByteCount(sealed.manifest.bytes());
        match serde_json::from_value::<Description>(sealed.manifest.description) {
            Ok(Description { entry, base, .. }) => {
                if let Some(parts) = &entry.parts
                    && let Err(why) = self.sound(&entry, &flat(parts, base))
                {
                    view.problem = Some(why);
                }
                view.facts = Some(StoredFacts {
                    kind: entry.kind,
                    image: entry.image,
                    vcpus: entry.vcpus,
                    memory: entry.memory,
                    size,
                });
            }
            Err(error) => view.problem = Some(error.to_string()),
        }
        view
    }

    /// Removes a substrate from a store, with the pieces that nothing there needs any more. For the
    /// host's operator. Not cancel-safe: pieces may stay, which [`collect_store`](Self::collect_store)
    /// removes. Run it on a task of its own.
    pub async fn remove_stored(&self, store: &str, name: &VmName) -> Result<Collected, HostError> {
        let work = Work::Remove {
            name: name.to_string(),
        };
        let done = self.carry(&address(store)?, work, |_| ()).await?;
        Ok(collected(done))
    }

    /// Removes pieces from a store that nothing there needs: of pushes that were cut short, and of
    /// what was replaced. For the host's operator. If cancelled, the next call goes on with the rest.
    pub async fn collect_store(&self, store: &str) -> Result<Collected, HostError> {
        let done = self.carry(&address(store)?, Work::Collect, |_| ()).await?;
        Ok(collected(done))
    }
}

fn address(text: &str) -> Result<StoreAddress, HostError> {
    text.parse().map_err(bad)
}

fn bad(error: forkyard_objects::BadAddress) -> HostError {
    HostError::Invalid(format!("store: {error}"))
}

fn one_of_both() -> HostError {
    HostError::Invalid("wanted either a folder or a store".into())
}

fn collected(done: Done) -> Collected {
    Collected {
        pieces: done.removed,
        bytes: ByteCount(done.freed),
    }
}

fn is_absent(error: &HostError) -> bool {
    matches!(
        error,
        HostError::Substrate(SubstrateError::Store {
            source: Failed::Absent(_),
            ..
        })
    )
}

/// Name of a layer's file in a manifest.
fn layer_name(kind: &str, at: usize) -> String {
    format!("{kind}.{at:02}")
}

/// The parts of a substrate as they are where it is pulled.
fn flat(parts: &SubstrateParts, base: ImageId) -> SubstrateParts {
    SubstrateParts {
        memory: SubstratePart {
            over: None,
            ..parts.memory
        },
        disk: SubstratePart {
            over: Some(base),
            ..parts.disk
        },
        devices: parts.devices,
    }
}

/// Cuts files into the pieces of a manifest. Blocks.
fn cut(mut manifest: Manifest, files: Files) -> Result<(Manifest, Vec<order::File>), HostError> {
    let mut sources = Vec::new();
    for (name, path) in files {
        let file = File::open(&path).map_err(HostError::io("read", &path))?;
        let pieces = pieces_of(file).map_err(HostError::io("read", &path))?;
        manifest.files.insert(name, pieces.clone());
        sources.push(order::File { path, pieces });
    }
    Ok((manifest, sources))
}

/// Compares files with the pieces that they were to be made of. Blocks.
fn compare(files: &[order::File]) -> Result<(), HostError> {
    for order::File { path, pieces } in files {
        let file = File::open(path).map_err(HostError::io("read", path))?;
        let read = pieces_of(file).map_err(HostError::io("read", path))?;
        if read != *pieces {
            return Err(SubstrateError::NotBrought {
                path: path.clone(),
                why: "it is not what was signed".into(),
            }
            .into());
        }
    }
    Ok(())
}

/// Makes one layer of each of the two chains of layers in a folder. Blocks.
fn flatten(
    folder: &Path,
    base: &Image,
    parts: &SubstrateParts,
) -> Result<SubstrateParts, HostError> {
    let one = |kind: &str, over: Option<&Image>, told: SubstratePart, to: &str| {
        let layers: Vec<_> = (0..)
            .map(|at| folder.join(layer_name(kind, at)))
            .take_while(|path| path.exists())
            .collect();
        let to = folder.join(to);
        if let [single] = &layers[..] {
            fs::rename(single, &to).map_err(HostError::io("name", &to))?;
            return Ok::<_, HostError>(told);
        }
        let mut image = over.cloned();
        for path in &layers {
            let file = File::open(path).map_err(HostError::io("read", path))?;
            image = Some(Image::new(Arc::new(Layer::open(file)?), image.as_ref())?);
        }
        let image = image.ok_or_else(|| SubstrateError::NotBrought {
            path: folder.to_owned(),
            why: format!("it has no {kind}"),
        })?;
        part(&image, over, &to)
    };
    Ok(SubstrateParts {
        memory: one("memory", None, parts.memory, MEMORY)?,
        disk: one("disk", Some(base), parts.disk, DISK)?,
        devices: parts.devices,
    })
}
