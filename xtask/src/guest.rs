//! Files that tests boot: a kernel, an initramfs with this build's agent, an
//! image.

use anyhow::{Context, Result};
use forkyard_guest_image::{BuildEvent, Cache, GuestFiles, KernelChoice, Recipe};
use std::path::{Path, PathBuf};

/// The image tests run on unless they need more.
pub const TEST_IMAGE: &str = "tiny";

/// Files that were prepared.
#[derive(Debug)]
pub struct Prepared {
    dist: PathBuf,
    cache: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
    image: PathBuf,
}

impl Prepared {
    /// Returns the variables by which tests learn where things are.
    pub fn variables(&self) -> [(&'static str, &Path); 5] {
        [
            ("FORKYARD_DIST", &self.dist),
            ("FORKYARD_CACHE", &self.cache),
            ("FORKYARD_TEST_KERNEL", &self.kernel),
            ("FORKYARD_TEST_INITRD", &self.initramfs),
            ("FORKYARD_TEST_IMAGE", &self.image),
        ]
    }
}

/// Finds or builds it all in the cache that `FORKYARD_CACHE` names, or else
/// the daemon's own.
pub fn prepare(root: &Path, dist: &Path, image: &str) -> Result<Prepared> {
    let dir = std::env::var_os("FORKYARD_CACHE").map(PathBuf::from);
    let dir = dir.unwrap_or_else(|| Cache::DEFAULT_DIR.into());
    let cache = Cache::new(&dir);
    let recipe = Recipe::load(&root.join("images").join(image).with_extension("toml"))?;
    let image = cache
        .image(&recipe, |e| tell("image", e))
        .with_context(|| format!("image {}", recipe.name()))?;
    let kernel = cache
        .kernel(&KernelChoice::Debian, |e| tell("kernel", e))
        .context("kernel")?;
    let guest = GuestFiles::in_dir(&dist.join("share/forkyard/guest"));
    let initramfs = cache.initramfs(&kernel, &guest).context("initramfs")?;
    Ok(Prepared {
        dist: dist.to_owned(),
        cache: dir,
        kernel: kernel.image,
        initramfs,
        image: image.path,
    })
}

fn tell(what: &str, event: BuildEvent<'_>) {
    match event {
        BuildEvent::Waiting => eprintln!("{what}: waiting for another build of it"),
        BuildEvent::Step(step) => eprintln!("{what}: {step}"),
        // Its last lines are part of the error, if there is one.
        BuildEvent::Output(_) => {}
        // The enum may grow; what is new is no reason to be silent.
        other => eprintln!("{what}: {other:?}"),
    }
}
