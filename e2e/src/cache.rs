//! Hosts with a cache of their own, for tests that put things into it.

use crate::Host;
use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

impl Host {
    /// A host whose cache has kernels and the test image, and goes with it. No
    /// daemon runs yet.
    pub fn with_own_cache() -> Self {
        Self::new().owning_cache()
    }

    /// Gives the host such a cache.
    pub fn owning_cache(mut self) -> Self {
        let own = tempfile::Builder::new()
            .prefix("forkyard-cache.")
            .permissions(Permissions::from_mode(0o711))
            .tempdir()
            .expect("a folder");
        let images = own.path().join("images");
        fs::create_dir(&images).expect("made");
        symlink(self.cache.join("kernels"), own.path().join("kernels")).expect("linked");
        let test = env::var_os("FORKYARD_TEST_IMAGE").map(PathBuf::from);
        let test = test.expect("FORKYARD_TEST_IMAGE is not set: run `cargo xtask test`");
        let name = test.file_name().expect("a file");
        symlink(&test, images.join(name)).expect("linked");
        self.cache = own.path().to_owned();
        self.own_cache = Some(own);
        self
    }

    /// The folder of its cache.
    pub fn cache(&self) -> &Path {
        &self.cache
    }
}
