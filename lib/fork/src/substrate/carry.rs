//! Substrates that are carried from one host to another, in a folder.
//!
//! | file | is |
//! |---|---|
//! | `memory.pages` | memory, as a layer over nothing |
//! | `disk.pages` | the disk, as a layer over the guest image alone |
//! | `devices` | state of CPUs and devices |
//! | `substrate.json` | what it is, and size and BLAKE3 of each file; written last |
//!
//! A folder appears under its name once it is whole. Damage of any file is found as it is brought in.

use super::{
    DEVICES, DISK, Entry, MEMORY, Substrate, SubstrateError,
    pack::{make_private, part},
};
use crate::{Host, HostError, blocking::blocking};
use forkyard_image::Image;
use forkyard_substrate::access::Act;
use forkyard_sys_host::private;
use forkyard_types::{PullRequest, PushRequest, SubstrateParts, SubstrateView, VmName};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// What says what it is.
const MANIFEST: &str = "substrate.json";
/// Version of the folder's form.
const VERSION: u32 = 1;
/// Beginning of the name of a folder that is not whole.
pub(super) const PASSING: &str = ".carried-";
/// Most bytes of a manifest.
const LONGEST: u64 = 1 << 20;
const FILES: [&str; 3] = [MEMORY, DISK, DEVICES];

/// How files come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the same files, where that can be: both sides are this host's own.
    Link,
    /// As copies.
    Copy,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    name: VmName,
    entry: Entry,
    files: BTreeMap<String, Facts>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    bytes: u64,
    blake3: String,
}

impl Host {
    /// Puts a substrate into a folder for other hosts. What it has in common with other
    /// substrates is in it: it depends on its guest image alone. One that is there already is
    /// left as it is. Cancel-safe.
    pub async fn push_substrate(
        &self,
        name: &str,
        request: PushRequest,
    ) -> Result<SubstrateView, HostError> {
        let found = self.substrate(name, Act::Open, None)?;
        absolute(&request.folder)?;
        let to = request.folder.join(found.name.as_str());
        self.push_to(&found, &to, Way::Copy).await?;
        self.view_of_substrate(&found)
    }

    /// Brings a substrate in that another host has pushed. Not cancel-safe: run it on a task of
    /// its own.
    pub async fn pull_substrate(&self, request: PullRequest) -> Result<SubstrateView, HostError> {
        absolute(&request.folder)?;
        let _turn = self.docks.lock().await;
        let folder = request.folder.clone();
        let name = match request.name {
            Some(name) => name,
            None => blocking(move || read(&folder)).await?.name,
        };
        let brought = self.pull_from(&name, &request.folder, Way::Copy).await?;
        self.view_of_substrate(&brought)
    }

    /// Puts a substrate into a new folder. If one of that name is there already, that is left as
    /// it is.
    pub(super) async fn push_to(
        &self,
        substrate: &Substrate,
        to: &Path,
        way: Way,
    ) -> Result<(), HostError> {
        let parts = substrate.parts()?.clone();
        // Over nothing but what every host has.
        let memory = parts.memory.over.map(|_| self.stack(parts.memory.image));
        let memory = memory.transpose()?;
        let disk = self.stack(parts.disk.image)?;
        let flat = disk.layers().len() <= 2;
        let disk = (!flat).then_some(disk);
        let manifest = Manifest {
            version: VERSION,
            name: substrate.name.clone(),
            entry: Entry {
                leaving: None,
                ..substrate.entry.clone()
            },
            files: BTreeMap::new(),
        };
        let from = self.folders.substrate(parts.memory.image);
        let to = to.to_owned();
        blocking(move || put(&from, &to, parts, (memory, disk), manifest, way)).await
    }

    /// Brings a substrate in from a folder, under a name.
    pub(super) async fn pull_from(
        &self,
        name: &VmName,
        from: &Path,
        way: Way,
    ) -> Result<Substrate, HostError> {
        let folder = from.to_owned();
        let manifest = blocking(move || read(&folder)).await?;
        let substrate = Substrate {
            name: name.clone(),
            entry: manifest.entry,
        };
        let parts = substrate.parts()?.clone();
        let refuse = |why: String| SubstrateError::NotBrought {
            path: from.to_owned(),
            why,
        };
        let base = parts
            .disk
            .over
            .ok_or_else(|| refuse("its disk lies over nothing".into()))?;
        if parts.memory.over.is_some() {
            return Err(refuse("its memory lies over another's".into()).into());
        }
        if self.bases.layer_of(base).is_err() {
            let image = &substrate.entry.image;
            let why = format!("it lies over guest image {image} as another host has built it");
            return Err(refuse(why).into());
        }
        let all = self.all_substrates()?;
        let same = |it: &&Substrate| {
            let own = it.entry.parts.as_ref();
            own.is_some_and(|own| own.memory.image == parts.memory.image)
        };
        if let Some(known) = all.iter().find(same) {
            return Err(refuse(format!("it is here as {}", known.name)).into());
        }
        let to = self.folders.substrate(parts.memory.image);
        let source = from.to_owned();
        let written = to.clone();
        let facts = manifest.files;
        // Made by one alone: of two who bring the same, the other's failure takes nothing away.
        let parent = self.folders.all_substrates();
        blocking(move || make_new(&parent, &to)).await?;
        let brought = async {
            blocking(move || take(&source, &written, &facts, way)).await?;
            self.room_for(&parts).await?;
            self.serve_parts(&parts).await?;
            Ok::<_, HostError>(self.store.add_substrate(&substrate.record()?)?)
        };
        if let Err(error) = brought.await {
            self.discard_parts(&parts).await;
            return Err(error);
        }
        Ok(substrate)
    }
}

fn absolute(folder: &Path) -> Result<(), HostError> {
    match folder.is_absolute() {
        true => Ok(()),
        false => Err(HostError::Invalid(format!(
            "{} is no absolute path",
            folder.display()
        ))),
    }
}

/// Writes all files of a folder, under another name until it is whole. Blocks.
fn put(
    from: &Path,
    to: &Path,
    mut parts: SubstrateParts,
    (memory, disk): (Option<Image>, Option<Image>),
    mut manifest: Manifest,
    way: Way,
) -> Result<(), HostError> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(HostError::io("create", parent))?;
    let passing = tempfile::Builder::new().prefix(PASSING).tempdir_in(parent);
    let passing = passing.map_err(HostError::io("create a folder in", parent))?;
    let place = |name: &str| passing.path().join(name);
    match memory {
        Some(whole) => parts.memory = part(&whole, None, &place(MEMORY))?,
        None => carry(&from.join(MEMORY), &place(MEMORY), way)?,
    }
    match disk {
        // Its lowest layer is the guest image.
        Some(whole) => parts.disk = part(&whole, whole.prefix(1).as_ref(), &place(DISK))?,
        None => carry(&from.join(DISK), &place(DISK), way)?,
    }
    carry(&from.join(DEVICES), &place(DEVICES), way)?;
    for name in FILES {
        manifest.files.insert(name.to_owned(), facts(&place(name))?);
    }
    manifest.entry.parts = Some(parts);
    let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::from);
    let path = place(MANIFEST);
    text.and_then(|text| {
        let mut file = private::create_new(&path)?;
        io::Write::write_all(&mut file, &text)?;
        file.sync_all()
    })
    .map_err(HostError::io("write", &path))?;
    match fs::rename(passing.path(), to) {
        Ok(()) => {
            // It has another name: there is nothing to remove.
            let _ = passing.keep();
            Ok(())
        }
        Err(_) if to.join(MANIFEST).exists() => Ok(()),
        Err(error) => Err(HostError::io("name", to)(error)),
    }
}

fn read(folder: &Path) -> Result<Manifest, HostError> {
    let path = folder.join(MANIFEST);
    let refuse = |why: String| SubstrateError::NotBrought {
        path: folder.to_owned(),
        why,
    };
    let size = fs::metadata(&path)
        .map_err(HostError::io("read", &path))?
        .len();
    if size > LONGEST {
        return Err(refuse(format!("{MANIFEST} has {size} bytes")).into());
    }
    let text = fs::read(&path).map_err(HostError::io("read", &path))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| refuse(format!("{MANIFEST}: {error}")))?;
    match manifest.version {
        VERSION => Ok(manifest),
        other => Err(refuse(format!("its form is {other}, this host knows {VERSION}")).into()),
    }
}

/// Makes the folder of a substrate, which must be new. Blocks for a moment.
fn make_new(parent: &Path, folder: &Path) -> Result<(), HostError> {
    make_private(&[parent])?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(SubstrateError::NotBrought {
                path: folder.to_owned(),
                why: "it is being brought here already".into(),
            }
            .into())
        }
        made => made.map_err(HostError::io("create", folder)),
    }
}

/// Brings files in, and compares each with what the manifest says. Blocks.
fn take(
    from: &Path,
    to: &Path,
    known: &BTreeMap<String, Facts>,
    way: Way,
) -> Result<(), HostError> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    for name in FILES {
        let own = to.join(name);
        // What was taken is what is compared: the other may change under its name.
        carry(&from.join(name), &own, way)?;
        if known.get(name) != Some(&facts(&own)?) {
            return Err(SubstrateError::NotBrought {
                path: from.to_owned(),
                why: format!("{name} is not what was written: it is damaged"),
            }
            .into());
        }
    }
    for folder in [to, parent] {
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(HostError::io("write", folder))?;
    }
    Ok(())
}

fn carry(from: &PathBuf, to: &PathBuf, way: Way) -> Result<(), HostError> {
    if way == Way::Link && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let mut source = File::open(from).map_err(HostError::io("read", from))?;
    let mut file = private::create_new(to).map_err(HostError::io("create", to))?;
    io::copy(&mut source, &mut file)
        .and_then(|_| file.sync_all())
        .map_err(HostError::io("write", to))
}

fn facts(path: &PathBuf) -> Result<Facts, HostError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).map_err(HostError::io("read", path))?;
    let bytes = io::copy(&mut file, &mut hasher).map_err(HostError::io("read", path))?;
    Ok(Facts {
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    })
}
