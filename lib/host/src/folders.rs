//! Paths of everything of a host.
//!
//! ```text
//! state/  forkyard.db         records
//!         vms/ID/             one VM's disk slices
//!         substrates/ID/      one substrate
//!         volumes/NAME/       one volume
//! run/    lock                held by the living daemon
//!         api.sock            the API
//!         pager.sock pages/   the pager: its control socket, its mount
//!         blockd.sock volumes/nbd.sock  the server of volumes
//!         vms/ID/             one VM's sockets, console and logs
//! cache/                      guest images and kernels
//! share/  images/ guest/      recipes, and the guest's programs
//! ```

use forkyard_types::{ImageId, VmId};
use std::path::PathBuf;

/// The folders of one host.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The programs.
    pub bin: PathBuf,
    /// Data that outlives a restart of the host.
    pub state: PathBuf,
    /// Data that lives only while the host runs.
    pub run: PathBuf,
    /// Data that can be made again, except imported images.
    pub cache: PathBuf,
    /// Recipes, and the guest's programs.
    pub share: PathBuf,
}

impl Folders {
    /// A name for this host among those on the same kernel: its run folder's,
    /// spelt without slashes.
    pub fn instance(&self) -> String {
        let run = self.run.display().to_string();
        format!("forkyard{}", run.trim_end_matches('/').replace('/', "-"))
    }

    /// The records.
    pub fn database(&self) -> PathBuf {
        self.state.join("forkyard.db")
    }

    /// Parent of every VM's disks.
    pub fn all_disks(&self) -> PathBuf {
        self.state.join("vms")
    }

    /// A VM's disk slices.
    pub fn disks(&self, vm: VmId) -> PathBuf {
        self.all_disks().join(vm.as_str())
    }

    /// Parent of every substrate's files.
    pub fn all_substrates(&self) -> PathBuf {
        self.state.join("substrates")
    }

    /// Volumes, one folder each.
    pub fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    /// File of the budgets of links to other hosts.
    pub fn links(&self) -> PathBuf {
        self.state.join("links.json")
    }

    /// Folder of the keys of encrypted volumes. May be a link to one on another disk.
    pub fn volume_keys(&self) -> PathBuf {
        self.state.join("volume-keys")
    }

    /// Folder of the socket that QEMUs reach volumes by.
    pub fn sockets_of_volumes(&self) -> PathBuf {
        self.run.join("volumes")
    }

    /// Files of the substrate whose memory this is.
    pub fn substrate(&self, memory: ImageId) -> PathBuf {
        self.all_substrates().join(memory.to_string())
    }

    /// Parent of every VM's sockets.
    pub fn all_sockets(&self) -> PathBuf {
        self.run.join("vms")
    }

    /// A VM's sockets, console and logs.
    pub fn sockets(&self, vm: VmId) -> PathBuf {
        self.all_sockets().join(vm.as_str())
    }

    /// The pager's control socket.
    pub fn pager_socket(&self) -> PathBuf {
        self.run.join("pager.sock")
    }

    /// Returns the folder at which the pager mounts its files.
    pub fn pages(&self) -> PathBuf {
        self.run.join("pages")
    }

    /// A page image as a file.
    pub fn page_image(&self, image: ImageId) -> PathBuf {
        self.pages().join(image.to_string())
    }

    /// The recipes of guest images.
    pub fn recipes(&self) -> PathBuf {
        self.share.join("images")
    }

    /// The library loaded into every QEMU, if it is installed.
    pub fn tracker(&self) -> Option<PathBuf> {
        let library = self.share.join("libforkyard_track.so");
        library.exists().then_some(library)
    }

    /// The programs that go into every guest.
    pub fn guest(&self) -> PathBuf {
        self.share.join("guest")
    }
}
