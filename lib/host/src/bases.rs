//! Files that VMs boot from: guest images as page images, kernels, initramfs.
//!
//! A guest's root disk is a page image like any other: built once from its
//! recipe, or imported, served by the pager, read by every VM under its own
//! disk slice. An imported image comes before a recipe of its name, should a
//! later version bring one.

use crate::{
    Folders, PartsError,
    blocking::blocking,
    slices::{allocated, backing_of, size_of},
};
use forkyard_events::Broadcast;
use forkyard_guest_image::{
    Cache, Cancel, Dockerfile, FetchReach, GuestFiles, GuestKernel, ImageFile, ImportError,
    Imported, KernelChoice, Recipe, Scrub, Source,
};
use forkyard_image::{Lineage, write_file};
use forkyard_pager::{PagerClient, PagerError, PagerRefusal};
use forkyard_types::{
    ByteCount, EventSubject, GuestImage, ImageChanged, ImageId, ImageName, ImageOrigin,
    ImageReference, Occurrence, Start,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Files that a VM boots from.
#[derive(Clone, Debug)]
pub struct Base {
    /// Kernel.
    pub kernel: PathBuf,
    /// Initramfs, which contains the agent.
    pub initramfs: PathBuf,
    /// Root disk, as a raw file of the pager.
    pub disk: PathBuf,
}

/// Makes bases.
#[derive(Clone, Debug)]
pub struct Bases {
    folders: Folders,
    pager: PagerClient,
    events: Broadcast,
}

impl Bases {
    /// Makes bases in the cache of a host, which its pager serves.
    pub fn new(folders: Folders, pager: PagerClient, events: Broadcast) -> Self {
        Self {
            folders,
            pager,
            events,
        }
    }

    /// The base of an image, built if need be, which takes a minute. If cancelled, it is built all the same.
    pub async fn base(&self, image: String, kernel: Option<String>) -> Result<Base, PartsError> {
        let this = self.clone();
        blocking(move || {
            let cache = this.cache();
            let imported = this.imported(&image)?;
            let recipe = match &imported {
                Some(_) => None,
                None => Some(this.recipe(&image)?),
            };
            let kernel = cache.kernel(&kernel_choice(kernel), narrate)?;
            let initramfs = this.initramfs(&kernel)?;
            let file = match (imported, recipe) {
                (Some(image), _) => image.file,
                (None, Some(recipe)) => {
                    let had = this.disk(&image).is_ok();
                    let file = cache.image(&recipe, narrate)?;
                    if !had {
                        tell(&this.events, &image, Some(allocated(&file.path)?));
                    }
                    file
                }
                (None, None) => return Err(PartsError::NoSuchImage { name: image }),
            };
            let disk = this.publish(&file)?;
            Ok::<_, PartsError>(Base {
                kernel: kernel.image,
                initramfs,
                disk,
            })
        })
        .await
    }

    /// The kernel and the initramfs of a VM whose disk is there already. If cancelled, they are made all the
    /// same.
    pub async fn kernel(&self, kernel: Option<String>) -> Result<(PathBuf, PathBuf), PartsError> {
        let this = self.clone();
        blocking(move || {
            let kernel = this.cache().kernel(&kernel_choice(kernel), narrate)?;
            let initramfs = this.initramfs(&kernel)?;
            Ok::<_, PartsError>((kernel.image, initramfs))
        })
        .await
    }

    fn initramfs(&self, kernel: &GuestKernel) -> Result<PathBuf, PartsError> {
        let guest = GuestFiles::in_dir(&self.folders.guest());
        Ok(self.cache().initramfs(kernel, &guest)?)
    }

    /// Every recipe there is, and every imported image. Cancel-safe.
    pub async fn list(&self) -> Result<Vec<GuestImage>, PartsError> {
        let this = self.clone();
        blocking(move || {
            let folder = this.folders.recipes();
            let listing = fs::read_dir(&folder).map_err(PartsError::io("list", &folder))?;
            let mut names: Vec<_> = listing
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
                .collect();
            names.sort();
            let built = this.cache().images()?;
            let imported = this.cache().imported()?;
            let mut images = Vec::new();
            for path in &names {
                let recipe = Recipe::load(path)?;
                if !imported
                    .iter()
                    .any(|image| image.file.name == recipe.name())
                {
                    images.push(this.view(&recipe, &built)?);
                }
            }
            for image in &imported {
                images.push(view_of_imported(image)?);
            }
            Ok::<_, PartsError>(images)
        })
        .await
    }

    /// Builds an image now. If cancelled, it is built all the same.
    pub async fn build(&self, name: String) -> Result<GuestImage, PartsError> {
        self.base(name.clone(), None).await?;
        self.inspect(name).await
    }

    /// Removes a built image from the cache. No VM may be using it. Not cancel-safe: it goes on to its end,
    /// and a VM may begin to use the image once the caller is gone.
    pub async fn remove(&self, name: String) -> Result<GuestImage, PartsError> {
        let this = self.clone();
        blocking(move || {
            if let Some(image) = this.imported(&name)? {
                let gone = GuestImage {
                    built: None,
                    ..view_of_imported(&image)?
                };
                this.retire(&image.file)?;
                this.cache().remove_imported(&image)?;
                tell(&this.events, &name, None);
                return Ok(gone);
            }
            let recipe = this.recipe(&name)?;
            for file in this
                .cache()
                .images()?
                .iter()
                .filter(|file| file.name == name)
            {
                this.retire(file)?;
                this.cache().remove(file)?;
                tell(&this.events, &name, None);
            }
            this.view(&recipe, &[])
        })
        .await
    }

    /// Has the pager serve a root disk no longer.
    fn retire(&self, file: &ImageFile) -> Result<(), PartsError> {
        match self.pager.retire(image_id(file)) {
            Ok(()) | Err(PagerError::Refused(PagerRefusal::UnknownImage { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        let layer = self.layer_path(file);
        match fs::remove_file(&layer) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PartsError::io("remove", &layer)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The imported image of this name.
    fn imported(&self, name: &str) -> Result<Option<Imported>, PartsError> {
        let mut images = self.cache().imported()?.into_iter();
        Ok(images.find(|image| image.file.name == name))
    }

    /// Imports an image; not under the name of a recipe. Blocks.
    pub fn import(
        &self,
        name: &ImageName,
        source: Source,
        from: impl Read,
        cancel: &Cancel,
    ) -> Result<GuestImage, PartsError> {
        let imported = self.cache().import(name, source, from, cancel, narrate)?;
        let view = view_of_imported(&imported)?;
        tell(&self.events, &view.name, view.built);
        Ok(view)
    }

    /// Fetches an image from its registry; not under the name of a recipe. Blocks.
    pub fn pull(
        &self,
        name: &ImageName,
        (reference, reach): (&ImageReference, FetchReach),
        what: (Option<ByteCount>, Start),
        cancel: &Cancel,
    ) -> Result<GuestImage, PartsError> {
        let from = (reference, reach);
        let pulled = self.cache().pull(name, from, what, cancel, narrate)?;
        let view = view_of_imported(&pulled)?;
        tell(&self.events, &view.name, view.built);
        Ok(view)
    }

    /// Builds an image from a Dockerfile; not under the name of a recipe. Blocks.
    pub fn build_from(
        &self,
        name: &ImageName,
        (dockerfile, size, start): (&Dockerfile, Option<ByteCount>, Start),
        context: impl Read,
        cancel: &Cancel,
    ) -> Result<GuestImage, PartsError> {
        let what = (size, start);
        let built = self
            .cache()
            .build(name, dockerfile, what, context, cancel, narrate)?;
        let view = view_of_imported(&built)?;
        tell(&self.events, &view.name, view.built);
        Ok(view)
    }

    /// Makes an image of a VM's disk; not under the name of a recipe. Blocks.
    pub fn commit(
        &self,
        name: &ImageName,
        (vm, image): (&str, &str),
        disk: File,
        what: &Scrub,
    ) -> Result<GuestImage, PartsError> {
        // What its image runs is on the disk.
        let entry = self.imported(image)?.and_then(|image| image.entry);
        let made = self
            .cache()
            .commit(name, (vm, entry), disk, what, narrate)?;
        let view = view_of_imported(&made)?;
        tell(&self.events, &view.name, view.built);
        Ok(view)
    }

    /// The image of this name: one that was imported, or a recipe's. Cancel-safe.
    pub async fn inspect(&self, name: String) -> Result<GuestImage, PartsError> {
        let this = self.clone();
        blocking(move || match this.imported(&name)? {
            Some(image) => view_of_imported(&image),
            None => this.view(&this.recipe(&name)?, &this.cache().images()?),
        })
        .await
    }

    /// Refuses a name that is taken. Blocks for a moment.
    pub fn refuse_taken(&self, name: &ImageName) -> Result<(), PartsError> {
        let recipe = self.folders.recipes().join(format!("{name}.toml"));
        let name = name.to_string();
        if recipe.exists() {
            return Err(PartsError::RecipeOfThatName { name });
        }
        match self.imported(&name)? {
            Some(_) => Err(ImportError::Taken { name }.into()),
            None => Ok(()),
        }
    }

    /// The disk of an image that has been built or imported. Blocks.
    pub fn disk(&self, name: &str) -> Result<PathBuf, PartsError> {
        if let Some(image) = self.imported(name)? {
            return Ok(image.file.path);
        }
        let recipe = self.recipe(name)?;
        let key = recipe.key()?;
        let built = self.cache().images()?;
        let mut built = built.into_iter();
        match built.find(|file| file.name == name && file.key == key) {
            Some(file) => Ok(file.path),
            None => Err(PartsError::NotBuilt {
                name: name.to_owned(),
            }),
        }
    }

    /// The root disk that a VM's lowest slice lies over: the slice says which,
    /// and is believed if that is one of those there are. Of one that lies over nothing, an image of the same size. Blocks.
    pub fn below(&self, slice: &Path) -> Result<PathBuf, PartsError> {
        let failed = PartsError::io("read", slice);
        let says = backing_of(slice).map_err(failed)?;
        let size = size_of(slice).map_err(PartsError::io("read", slice))?;
        let known = self.published()?;
        let mut disks = known.into_iter().map(|id| self.folders.page_image(id));
        let unknown =
            || PartsError::io("find what lies under", slice)(io::ErrorKind::NotFound.into());
        let found = match says {
            Some(says) => disks.find(|disk| *disk == says),
            // It lies over nothing, and so over any image of its size that it hides all of.
            None => disks.find(|disk| fs::metadata(disk).is_ok_and(|it| it.len() == size)),
        };
        found.ok_or_else(unknown)
    }

    /// Removes what imports have left that an earlier daemon did not finish. If cancelled, it goes on to its
    /// end.
    pub async fn sweep(&self) -> Result<(), PartsError> {
        let cache = self.cache();
        Ok(blocking(move || cache.sweep()).await?)
    }

    fn cache(&self) -> Cache {
        Cache::new(&self.folders.cache).unpacking_by(self.folders.bin.join("forkyard-unpack"))
    }

    fn recipe(&self, name: &str) -> Result<Recipe, PartsError> {
        let plain =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let path = self.folders.recipes().join(format!("{name}.toml"));
        if !plain || !path.exists() {
            return Err(PartsError::NoSuchImage {
                name: name.to_owned(),
            });
        }
        Ok(Recipe::load(&path)?)
    }

    fn view(&self, recipe: &Recipe, built: &[ImageFile]) -> Result<GuestImage, PartsError> {
        let key = recipe.key()?;
        let file = built
            .iter()
            .find(|file| file.name == recipe.name() && file.key == key);
        let built = match file {
            Some(file) => Some(allocated(&file.path)?),
            None => None,
        };
        Ok(GuestImage {
            name: recipe.name().to_owned(),
            summary: recipe.description().to_owned(),
            built,
            origin: ImageOrigin::Recipe,
            source: None,
            digest: None,
            entry: None,
        })
    }

    fn layer_path(&self, file: &ImageFile) -> PathBuf {
        file.path.with_extension("pages")
    }

    /// Makes a root disk a page image, once, and has the pager serve it.
    fn publish(&self, file: &ImageFile) -> Result<PathBuf, PartsError> {
        let id = image_id(file);
        let lineage = Lineage {
            image: id,
            parent: None,
        };
        let path = self.layer_path(file);
        let served = self.folders.page_image(id);
        if served.exists() {
            return Ok(served);
        }
        if !path.exists() {
            let failed = PartsError::io("write", &path);
            let raw = File::open(&file.path).map_err(PartsError::io("read", &file.path))?;
            let folder = path.parent().unwrap_or(Path::new("/"));
            // Written under no name and then linked in: a reader that sees the name
            // sees all of it, and what breaks off leaves nothing.
            let whole = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
            write_file(&raw, lineage, whole.as_file())?;
            whole
                .persist(&path)
                .map_err(|e| PartsError::io("write", &path)(e.error))?;
        }
        let layer = File::open(&path).map_err(PartsError::io("read", &path))?;
        match self.pager.publish(lineage, layer) {
            // Two VMs may boot from it for the first time at once.
            Ok(()) | Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })) => Ok(served),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the pager serve every root disk there is. If cancelled, it goes on to its end.
    pub async fn serve_built(&self) -> Result<(), PartsError> {
        let this = self.clone();
        blocking(move || {
            for file in this.disks()? {
                this.publish(&file)?;
            }
            Ok::<_, PartsError>(())
        })
        .await
    }

    /// The name of a guest image that was built.
    pub fn name_of(&self, image: ImageId) -> Result<String, PartsError> {
        let known = self.disks()?.into_iter();
        let mut files = known.filter(|file| image_id(file) == image);
        let unknown = || PartsError::Broken(format!("page image {image} is no guest image"));
        files.next().map(|file| file.name).ok_or_else(unknown)
    }

    /// The file of a guest image that was built.
    pub fn layer_of(&self, image: ImageId) -> Result<PathBuf, PartsError> {
        let known = self.disks()?.into_iter();
        let mut files = known.filter(|file| image_id(file) == image);
        let unknown = || PartsError::Broken(format!("page image {image} is no guest image"));
        files
            .next()
            .map(|file| self.layer_path(&file))
            .ok_or_else(unknown)
    }

    /// The root disks that the pager may be serving.
    pub fn published(&self) -> Result<BTreeSet<ImageId>, PartsError> {
        Ok(self.disks()?.iter().map(image_id).collect())
    }

    /// Every disk, built or imported.
    fn disks(&self) -> Result<Vec<ImageFile>, PartsError> {
        let mut files = self.cache().images()?;
        let imported = self.cache().imported()?;
        files.extend(imported.into_iter().map(|image| image.file));
        Ok(files)
    }
}

/// A guest image takes so much disk from here on; none: it was removed.
fn tell(events: &Broadcast, name: &str, built: Option<ByteCount>) {
    let subject = EventSubject {
        image: Some(name.to_owned()),
        ..EventSubject::default()
    };
    events.publish(subject, Occurrence::ImageChanged(ImageChanged { built }));
}

/// Derives an image's id from its content, so that it is the same on every host
/// and after every restart.
fn image_id(file: &ImageFile) -> ImageId {
    let digits = u128::from_str_radix(&file.key.to_string(), 16).unwrap_or_default();
    ImageId(uuid::Builder::from_custom_bytes(digits.to_be_bytes()).into_uuid())
}

fn kernel_choice(file: Option<String>) -> KernelChoice {
    file.map_or(KernelChoice::Debian, |path| KernelChoice::File(path.into()))
}

fn view_of_imported(image: &Imported) -> Result<GuestImage, PartsError> {
    Ok(GuestImage {
        name: image.file.name.clone(),
        summary: image.summary.clone(),
        built: Some(allocated(&image.file.path)?),
        origin: image.from.origin,
        source: image.from.source.clone(),
        digest: image.from.digest.clone(),
        entry: image.entry.clone(),
    })
}

fn narrate(event: forkyard_guest_image::BuildEvent<'_>) {
    tracing::debug!(?event, "building");
}
