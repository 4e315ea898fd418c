//! One host at a time: guests are emulated, and two of them on two cores would
//! make every test as slow as its neighbour.

use std::{fs::File, path::Path};

/// The right to have a host, until dropped; also between test programs.
#[derive(Debug)]
pub struct Slot(#[expect(dead_code, reason = "held, never read")] File);

impl Slot {
    /// Waits for it. `cache` is shared by all who might want it.
    pub fn wait(cache: &Path) -> Self {
        let path = cache.join("lock/e2e");
        let file = File::create(&path).expect("a lock file in the cache");
        file.lock().expect("a lock");
        Self(file)
    }
}
