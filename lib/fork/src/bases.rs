//! What VMs boot from: guest images as page images, kernels, initramfs.
//!
//! A guest's root disk is a page image like any other: built once from its
//! recipe, served by the pager, read by every VM under its own disk slice.

use crate::{Folders, HostError, blocking::blocking};
use forkyard_image::{Lineage, write_file};
use forkyard_pager::{PagerClient, PagerError, Refusal};
use forkyard_recipe::{Cache, GuestFiles, ImageFile, KernelChoice, Recipe};
use forkyard_types::{ByteCount, GuestImage, ImageId};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// What a VM boots from.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initramfs, with the agent in it.
    pub initramfs: PathBuf,
    /// Its root disk, as a file of the pager: raw.
    pub disk: PathBuf,
}

/// Makes bases.
#[derive(Clone, Debug)]
pub(crate) struct Bases {
    folders: Folders,
    pager: PagerClient,
}

impl Bases {
    pub fn new(folders: Folders, pager: PagerClient) -> Self {
        Self { folders, pager }
    }

    /// The base of an image, built if need be, which takes a minute.
    pub async fn base(&self, image: String, kernel: Option<String>) -> Result<Base, HostError> {
        let this = self.clone();
        blocking(move || {
            let recipe = this.recipe(&image)?;
            let cache = this.cache();
            let choice =
                kernel.map_or(KernelChoice::Debian, |path| KernelChoice::File(path.into()));
            let kernel = cache.kernel(&choice, narrate)?;
            let initramfs = cache.initramfs(&kernel, &GuestFiles::in_dir(&this.folders.guest()))?;
            let file = cache.image(&recipe, narrate)?;
            let disk = this.publish(&file)?;
            Ok::<_, HostError>(Base {
                kernel: kernel.image,
                initramfs,
                disk,
            })
        })
        .await
    }

    /// Every recipe there is.
    pub async fn list(&self) -> Result<Vec<GuestImage>, HostError> {
        let this = self.clone();
        blocking(move || {
            let folder = this.folders.recipes();
            let listing = fs::read_dir(&folder).map_err(HostError::io("list", &folder))?;
            let mut names: Vec<_> = listing
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
                .collect();
            names.sort();
            let built = this.cache().images()?;
            names
                .iter()
                .map(|path| this.view(&Recipe::load(path)?, &built))
                .collect::<Result<_, HostError>>()
        })
        .await
    }

    /// Builds an image now.
    pub async fn build(&self, name: String) -> Result<GuestImage, HostError> {
        self.base(name.clone(), None).await?;
        let this = self.clone();
        blocking(move || this.view(&this.recipe(&name)?, &this.cache().images()?)).await
    }

    /// Removes a built image from the cache. No VM may be using it.
    pub async fn remove(&self, name: String) -> Result<GuestImage, HostError> {
        let this = self.clone();
        blocking(move || {
            let recipe = this.recipe(&name)?;
            for file in this
                .cache()
                .images()?
                .iter()
                .filter(|file| file.name == name)
            {
                match this.pager.retire(image_id(file)) {
                    Ok(()) | Err(PagerError::Refused(Refusal::UnknownImage { .. })) => {}
                    Err(error) => return Err(error.into()),
                }
                let layer = this.layer_path(file);
                if layer.exists() {
                    fs::remove_file(&layer).map_err(HostError::io("remove", &layer))?;
                }
                this.cache().remove(file)?;
            }
            this.view(&recipe, &[])
        })
        .await
    }

    fn cache(&self) -> Cache {
        Cache::new(&self.folders.cache)
    }

    fn recipe(&self, name: &str) -> Result<Recipe, HostError> {
        let plain =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let path = self.folders.recipes().join(format!("{name}.toml"));
        if !plain || !path.exists() {
            return Err(HostError::NoSuchImage {
                name: name.to_owned(),
            });
        }
        Ok(Recipe::load(&path)?)
    }

    fn view(&self, recipe: &Recipe, built: &[ImageFile]) -> Result<GuestImage, HostError> {
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
        })
    }

    fn layer_path(&self, file: &ImageFile) -> PathBuf {
        file.path.with_extension("pages")
    }

    /// Makes a root disk a page image, once, and has the pager serve it.
    fn publish(&self, file: &ImageFile) -> Result<PathBuf, HostError> {
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
            let failed = HostError::io("write", &path);
            let raw = File::open(&file.path).map_err(HostError::io("read", &file.path))?;
            let folder = path.parent().unwrap_or(Path::new("/"));
            // Written under no name and then linked in: whoever sees the name
            // sees all of it, and what breaks off leaves nothing.
            let whole = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
            write_file(&raw, lineage, whole.as_file())?;
            whole
                .persist(&path)
                .map_err(|e| HostError::io("write", &path)(e.error))?;
        }
        let layer = File::open(&path).map_err(HostError::io("read", &path))?;
        match self.pager.publish(lineage, layer) {
            // Two VMs may boot from it for the first time at once.
            Ok(()) | Err(PagerError::Refused(Refusal::AlreadyExists { .. })) => Ok(served),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the pager serve every root disk there is.
    pub async fn serve_built(&self) -> Result<(), HostError> {
        let this = self.clone();
        blocking(move || {
            for file in this.cache().images()? {
                this.publish(&file)?;
            }
            Ok::<_, HostError>(())
        })
        .await
    }

    /// The root disks that the pager may be serving.
    pub fn published(&self) -> Result<BTreeSet<ImageId>, HostError> {
        Ok(self.cache().images()?.iter().map(image_id).collect())
    }
}

/// The same content has the same image, on every host and after every restart.
fn image_id(file: &ImageFile) -> ImageId {
    let digits = u128::from_str_radix(&file.key.to_string(), 16).unwrap_or_default();
    ImageId(uuid::Builder::from_custom_bytes(digits.to_be_bytes()).into_uuid())
}

fn narrate(event: forkyard_recipe::Event<'_>) {
    tracing::debug!(?event, "building");
}

/// Bytes a file takes on disk.
pub(crate) fn allocated(path: &Path) -> Result<ByteCount, HostError> {
    use std::os::unix::fs::MetadataExt;
    let facts = fs::metadata(path).map_err(HostError::io("look at", path))?;
    Ok(ByteCount(facts.blocks() * 512))
}
