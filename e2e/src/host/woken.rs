//! Hosts whose VMs are woken instead of booted.
//!
//! ```text
//! first host of a test program --> the cache has a boot? --no--> one is run until it is kept
//! each of them: run tiny ---------> woken from it
//! ```
//!
//! It is what users have (`run` wakes what is kept), and a VM like any other: it has an identity
//! and a family of its own. A boot takes two seconds of a processor more. Tests that are about
//! booting, or that count pages or layers from nothing, have a VM that boots.

use super::Host;
use crate::{slot::Slot, waiting::in_the_end};
use forkyard_types::SubstrateView;
use std::sync::{Arc, OnceLock};

impl Host {
    /// A host with a VM `p` of the smallest image that has been woken.
    pub fn with_woken_p<const N: usize>(options: [&str; N]) -> Self {
        Self::waking().running_p(&options)
    }

    /// Such a host, in which a guest may take long to answer: much goes on in it.
    pub fn with_busy_p() -> Self {
        Self::waking()
            .telling("FORKYARD_PATIENCE", "240")
            .running_p(&[])
    }

    /// A host that wakes what it runs, which is to be of the smallest image and the usual size:
    /// what is of another size would be booted twice, to be kept.
    pub fn waking() -> Self {
        kept();
        let mut host = Self::new();
        host.wakes();
        host
    }

    /// Has the host wake what it runs from what [`kept`] keeps.
    pub(crate) fn wakes(&mut self) {
        self.told.push(("FORKYARD_KEEP_BOOTS", "true".into()));
        self.woken = true;
    }

    /// True of the files that a host keeps of what it wakes VMs from.
    pub(super) fn is_of_the_kept_boot(&self, left: &str) -> bool {
        let kept = self.folder().join("state/substrates");
        left.strip_prefix("file ")
            .is_some_and(|file| file.starts_with(&*kept.to_string_lossy()))
    }
}

/// Sees to it, once, that the cache has a boot.
pub(crate) fn kept() {
    static KEPT: OnceLock<()> = OnceLock::new();
    KEPT.get_or_init(keep_a_boot);
}

fn keep_a_boot() {
    let host = Host::on(Arc::new(Slot::wait_to_keep())).keeping_boots();
    host.ok(["run", "tiny", "--name", "kept"]);
    let kept = || -> Vec<SubstrateView> { host.json(["substrate", "ls"]) };
    // A second boot, which takes minutes where KVM itself is emulated.
    in_the_end("a boot is kept", || {
        kept().iter().any(|it| it.boot && it.ready) && host.vms().len() == 1
    });
    host.ok(["rm", "--all"]);
}
