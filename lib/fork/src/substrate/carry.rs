//! Substrates that are carried from one host to another, in a [folder](super::bundle).

use super::{
    DEVICES, DISK, Entry, MEMORY, Substrate, SubstrateError,
    bundle::{Contents, Manifest, Signed, Way, make_new, put, read, take},
    size, sum_of,
};
use crate::{
    Host, HostError, blocking,
    boot::{MEMORY_MIB, VCPUS},
    error::Purpose,
};
use forkyard_agent_link::VERSION;
use forkyard_image::Layer;
use forkyard_substrate::sign::{PublicKey, Signer};
use forkyard_types::{ByteCount, PAGE_SIZE, PullRequest, SubstratePart, SubstrateParts, VmName};
use forkyard_vmm::check_memory;
use scopeguard::ScopeGuard;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// File of this host's key.
const KEY: &str = "substrate.key";

impl Host {
    /// Puts a substrate into a folder. What it has in common with other substrates is in it: it depends
    /// on its guest image alone. One that is there already is left as it is.
    pub(super) async fn push_to_folder(
        &self,
        substrate: &Substrate,
        folder: &Path,
    ) -> Result<(), HostError> {
        absolute(folder)?;
        let to = folder.join(substrate.name.as_str());
        let pushed = self.push_to(substrate, &to, Way::Copy).await;
        pushed.map_err(|error| error.of_request(Purpose::Push, folder))
    }

    /// Brings a substrate in from its folder.
    pub(super) async fn pull_from_folder(
        &self,
        folder: &Path,
        request: &PullRequest,
    ) -> Result<Substrate, HostError> {
        absolute(folder)?;
        let _turn = self.substrates.docks.lock().await;
        let from = folder.to_owned();
        let blame = |error: HostError| error.of_request(Purpose::Pull, folder);
        let (manifest, signed) = blocking(move || read(&from)).await.map_err(blame)?;
        self.trust(signed, folder, request)?;
        let name = request.name.clone().unwrap_or(manifest.name.clone());
        let brought = self.bring(manifest, &name, folder, Way::Copy).await;
        brought.map_err(blame)
    }

    /// Refuses what has no signature of a trusted host.
    pub(super) fn trust(
        &self,
        signed: Signed,
        path: &Path,
        request: &PullRequest,
    ) -> Result<(), HostError> {
        if request.unsigned {
            return Ok(());
        }
        let path = path.to_owned();
        let Signed::By(key) = signed else {
            return Err(SubstrateError::Unsigned { path }.into());
        };
        let trusted = match &request.trust {
            Some(text) => {
                let told = text.parse::<PublicKey>();
                told.map_err(|error| HostError::Invalid(format!("trust: {error}")))? == key
            }
            None => false,
        };
        match trusted || self.trusts(key)? {
            true => Ok(()),
            false => Err(SubstrateError::Untrusted {
                path,
                key: key.to_string(),
            }
            .into()),
        }
    }

    /// The public key by which other hosts know what this one has pushed.
    pub fn substrate_key(&self) -> Result<String, HostError> {
        let key = self.signer()?.public().map_err(SubstrateError::from)?;
        Ok(key.to_string())
    }

    /// This host's key, drawn when it is needed first. Blocks for a moment.
    pub(super) fn signer(&self) -> Result<Signer, HostError> {
        let path = self.parts.folders.state.join(KEY);
        let failed = || HostError::io("keep a key in", &path);
        if !path.exists() {
            let drawn = Signer::draw().map_err(SubstrateError::from)?;
            let passing =
                tempfile::NamedTempFile::new_in(&self.parts.folders.state).map_err(failed())?;
            passing.as_file().write_all(&drawn).map_err(failed())?;
            passing.as_file().sync_all().map_err(failed())?;
            match passing.persist_noclobber(&path) {
                Ok(_) => {}
                // Another was quicker: that is the key.
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed()(error.error)),
            }
        }
        let kept = fs::read(&path).map_err(HostError::io("read", &path))?;
        Ok(Signer::read(&kept).map_err(SubstrateError::from)?)
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
        let entry = Entry {
            leaving: None,
            backup: None,
            ..substrate.entry.clone()
        };
        let manifest = Manifest::of(substrate.name.clone(), entry);
        let contents = Contents {
            from: self.parts.folders.substrate(parts.memory.image),
            parts,
            memory,
            disk,
        };
        let signer = match way {
            Way::Link => None,
            Way::Copy | Way::Move => Some(self.signer()?),
        };
        let to = to.to_owned();
        blocking(move || put(&to, contents, manifest, (way, signer.as_ref()))).await
    }

    /// Brings one of this host's own cache in, under a name.
    pub(super) async fn pull_from(
        &self,
        name: &VmName,
        from: &Path,
    ) -> Result<Substrate, HostError> {
        let folder = from.to_owned();
        let (manifest, _) = blocking(move || read(&folder)).await?;
        self.bring(manifest, name, from, Way::Link).await
    }

    pub(super) async fn bring(
        &self,
        manifest: Manifest,
        name: &VmName,
        from: &Path,
        way: Way,
    ) -> Result<Substrate, HostError> {
        let own = way == Way::Link;
        let mut substrate = Substrate {
            name: name.clone(),
            entry: Entry {
                // Another host's users are unknown here, and a boot is kept by the host itself.
                owner: manifest.entry.owner.filter(|_| own),
                boot: manifest.entry.boot && own,
                // Uses are counted from now on.
                created: crate::now(),
                used: 0,
                backup: None,
                leaving: None,
                ..manifest.entry
            },
        };
        let parts = substrate.parts()?.clone();
        match self.sound(&substrate.entry, &parts) {
            Ok(image) => substrate.entry.image = image,
            Err(why) => {
                let path = from.to_owned();
                return Err(SubstrateError::NotBrought { path, why }.into());
            }
        }
        let to = self.parts.folders.substrate(parts.memory.image);
        let source = from.to_owned();
        let written = to.clone();
        let facts = manifest.files;
        // Made by one alone: of two that bring the same, the other's failure takes nothing away.
        let parent = self.parts.folders.all_substrates();
        let made = to.clone();
        blocking(move || make_new(&parent, &made)).await?;
        // Whatever ends this: the folder would keep the substrate from being brought again.
        let passing = scopeguard::guard(to, |folder| {
            let _ = fs::remove_dir_all(folder);
        });
        let brought = async {
            blocking(move || take(&source, &written, &facts, way)).await?;
            let counted = self.counted(&substrate.entry, &parts)?;
            substrate.entry.devices_sum = Some(sum_of(&self.devices_of(&parts).await?));
            self.room_for(&counted).await?;
            self.serve_parts(&counted).await?;
            substrate.entry.parts = Some(counted);
            Ok::<_, HostError>(self.parts.store.add_substrate(&substrate.record()?)?)
        };
        if let Err(error) = brought.await {
            self.discard_parts(&parts).await;
            return Err(error);
        }
        ScopeGuard::into_inner(passing);
        Ok(substrate)
    }

    /// Names the guest image that a substrate from elsewhere lies over; or says why it cannot be
    /// one here.
    pub(super) fn sound(&self, entry: &Entry, parts: &SubstrateParts) -> Result<String, String> {
        let (memory, disk) = (parts.memory, parts.disk);
        let mib = entry.memory.0 >> 20;
        if !VCPUS.contains(&entry.vcpus)
            || !MEMORY_MIB.contains(&mib)
            || !entry.memory.is_page_aligned()
            || entry
                .booted
                .is_some_and(|booted| check_memory(booted, booted, entry.memory).is_err())
        {
            return Err("it says nothing that makes a machine".into());
        }
        let Some(base) = disk.over.filter(|_| memory.over.is_none()) else {
            return Err("it does not lie over a guest image alone".into());
        };
        let Ok(image) = self.parts.bases().name_of(base) else {
            let image = &entry.image;
            return Err(format!(
                "it lies over guest image {image} as another host has built it"
            ));
        };
        if entry.engine.is_empty() {
            return Err("it does not say which program saved its state".into());
        }
        if let Some(agent) = entry.agent.filter(|&agent| agent != VERSION) {
            return Err(format!(
                "its agent speaks version {agent} of its messages, this daemon version {VERSION}"
            ));
        }
        let all = self.all_substrates().map_err(|error| error.to_string())?;
        let known = all.iter().find(|it| {
            let own = it.entry.parts.as_ref();
            own.is_some_and(|own| own.memory.image == memory.image)
        });
        if let Some(known) = known {
            return Err(format!("it is here as {}", known.name));
        }
        // Under the number of what is here already it would be that.
        let served = |image| self.parts.folders.page_image(image).exists();
        if memory.image == disk.image
            || [memory.image, disk.image]
                .into_iter()
                .any(|image| served(image) || self.parts.bases().layer_of(image).is_ok())
        {
            return Err("one of its images is here already, as something else".into());
        }
        Ok(image)
    }

    /// Counts the bytes of a substrate's files, whatever it says of them; refuses images that are
    /// not those that it says it has.
    fn counted(&self, entry: &Entry, parts: &SubstrateParts) -> Result<SubstrateParts, HostError> {
        let folder = self.parts.folders.substrate(parts.memory.image);
        let read = |name: &str| {
            let path = folder.join(name);
            let file = File::open(&path).map_err(HostError::io("read", &path))?;
            Ok::<_, HostError>(Layer::open(file)?)
        };
        let (memory, disk) = (read(MEMORY)?, read(DISK)?);
        let base = parts.disk.over.map(|base| self.stack(base)).transpose()?;
        let disk_pages = base.map(|base| base.pages());
        let lineages = [(&memory, parts.memory), (&disk, parts.disk)];
        let told = lineages.iter().all(|(layer, part)| {
            let lineage = layer.lineage();
            (lineage.image, lineage.parent) == (part.image, part.over)
        });
        // A disk may have been made larger than its guest image.
        let fits = memory.pages() == entry.memory.pages()
            && disk_pages.is_some_and(|base| disk.pages() >= base);
        if !told || !fits {
            return Err(SubstrateError::NotBrought {
                path: folder,
                why: "its images are not those that it says it has".into(),
            }
            .into());
        }
        let data = |layer: &Layer| ByteCount(layer.data_pages().0 * PAGE_SIZE as u64);
        Ok(SubstrateParts {
            memory: SubstratePart {
                raw: data(&memory),
                own: data(&memory),
                file: size(&folder.join(MEMORY))?,
                ..parts.memory
            },
            disk: SubstratePart {
                raw: data(&disk),
                own: data(&disk),
                file: size(&folder.join(DISK))?,
                ..parts.disk
            },
            devices: size(&folder.join(DEVICES))?,
        })
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
