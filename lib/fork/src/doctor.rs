//! Diagnosis of faults of a host, and of the leftovers of crashes on it.
//!
//! Whatever is ours by its name or place, and belongs to no VM that is
//! recorded, was left behind. Things of others are never touched.

use crate::{Host, HostError, blocking, volumes::LeftVolume};
use forkyard_network::Link;
use forkyard_pager::PagerClient;
use forkyard_records::VmRecord;
use forkyard_snapshot::{Generation, kept_image};
use forkyard_types::{ByteCount, Diagnosis, ImageId, Leftover, VmId};
use nix::sys::statvfs::statvfs;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Programs a host needs, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("nft", "nftables"),
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
];
/// Time in which a pager answers that is not held up.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Room that a disk has which is not full.
const LEAST_ROOM: ByteCount = ByteCount(4 << 20);
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Something left behind.
#[derive(Clone, Debug)]
enum Left {
    Link(Link),
    Cgroup(VmId),
    Folder(PathBuf),
    File(PathBuf),
    Image(ImageId),
    Volume(LeftVolume),
}

/// Resources of forks that are yet to come.
#[derive(Debug, Default)]
struct Next {
    images: BTreeSet<ImageId>,
    files: BTreeSet<PathBuf>,
}

impl Host {
    /// Looks, and changes nothing. Cancel-safe.
    pub async fn examine(&self) -> Result<Diagnosis, HostError> {
        if let Some(silent) = self.without_pager().await? {
            return Ok(silent);
        }
        let leftovers = self.leftovers().await?;
        Ok(Diagnosis {
            problems: self.problems().await?,
            leftovers: leftovers.iter().map(|left| left.tell(false)).collect(),
            notes: self.notes().await?,
        })
    }

    /// Looks, removes what was left behind, and has the host take packets for all addresses of VMs again. Not
    /// cancel-safe: run it on a task of its own; what it did not come to is found by the next call.
    pub async fn repair(&self) -> Result<Diagnosis, HostError> {
        if let Some(silent) = self.without_pager().await? {
            return Ok(silent);
        }
        if let Err(error) = self.parts.network.hold_again().await {
            // The problems tell of those that are lost still.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "addresses of VMs are not back"
            );
        }
        Ok(Diagnosis {
            problems: self.problems().await?,
            leftovers: self.clear_up().await?,
            notes: self.notes().await?,
        })
    }

    /// Says so if the pager does not answer: nothing else is asked then, for most waits for it.
    async fn silent_pager(&self) -> Result<Option<String>, HostError> {
        let socket = self.parts.folders.pager_socket();
        let asked = blocking(move || PagerClient::connect_with(&socket, AT_ONCE)?.ping()).await;
        match asked {
            Err(error) if error.is_timeout() => Ok(Some(format!(
                "{error}: VMs wait for the memory that it serves. `ps` shows a process that is \
                 stopped as T, and `kill -CONT` lets it go on; its log is pager.log in the run folder"
            ))),
            Err(error) => Ok(Some(format!(
                "{error}: the pager and what starts it again are gone. VMs whose memory or disk it served have ended, \
                 or end as they meet what is missing; `forkyard rm` removes them. A new one is started once no VM \
                 runs, or by the next daemon; its log is pager.log in the run folder"
            ))),
            Ok(()) => Ok(None),
        }
    }

    /// Says so if nothing is found but that, for lack of a pager.
    async fn without_pager(&self) -> Result<Option<Diagnosis>, HostError> {
        let silent = self.silent_pager().await?;
        Ok(silent.map(|silent| Diagnosis {
            problems: vec![silent],
            leftovers: Vec::new(),
            notes: Vec::new(),
        }))
    }

    async fn problems(&self) -> Result<Vec<String>, HostError> {
        let mut problems = problems();
        problems.extend(self.full_disks());
        problems.extend(self.volume_problems().await?);
        problems.extend(self.backup_problems()?);
        let lost = self.parts.network.lost_addresses()?;
        problems.extend(lost.into_iter().map(|own| {
            format!(
                "the host takes no packets for {own}, an address of a VM: another program has removed it from \
                 its bridge; `forkyard doctor --repair` puts it back"
            )
        }));
        Ok(problems)
    }

    /// Says which of its folders lie on a disk that is full.
    fn full_disks(&self) -> Vec<String> {
        let folders = &self.parts.folders;
        let all = [
            folders.all_disks(),
            folders.all_sockets(),
            folders.cache.clone(),
        ];
        let full = all.into_iter().filter_map(|folder| {
            let about = statvfs(&folder).ok()?;
            let room = ByteCount(about.blocks_available() * about.fragment_size());
            (room < LEAST_ROOM).then(|| {
                format!(
                    "the disk of {} has {room} left: guests that write stand still until there is more, and changes \
                     cannot be recorded; `forkyard rm` and `forkyard image rm` make room",
                    folder.display()
                )
            })
        });
        full.collect()
    }

    /// Removes what was left behind.
    pub(crate) async fn clear_up(&self) -> Result<Vec<Leftover>, HostError> {
        let mut leftovers = Vec::new();
        for left in self.leftovers().await? {
            let removed = self.remove_leftover(&left).await;
            if let Err(error) = &removed {
                tracing::warn!(
                    ?left,
                    error = error as &dyn std::error::Error,
                    "not removed"
                );
            }
            leftovers.push(left.tell(removed.is_ok()));
        }
        Ok(leftovers)
    }

    async fn notes(&self) -> Result<Vec<String>, HostError> {
        let mut notes = Vec::new();
        if self.parts.network.turned_forwarding_on().await? {
            notes.push(
                "net.ipv4.ip_forward was 0: it is 1 until the last VM that has a way out or a \
                 published port has gone"
                    .to_owned(),
            );
        }
        notes.extend(self.volume_notes().await?);
        notes.extend(self.interference());
        notes.extend(self.emulation().map(|why| {
            format!(
                "guests are emulated (tcg), which is ten times slower than hardware \
                 virtualization (kvm): {why}"
            )
        }));
        if !self.parts.network.has_resolvers() {
            notes.push(
                "this host asks no server but its own for names, where guests do not reach: a VM \
                 with a way out has no resolver; `nameserver` in /etc/resolv.conf sets one"
                    .to_owned(),
            );
        }
        Ok(notes)
    }

    async fn leftovers(&self) -> Result<Vec<Left>, HostError> {
        // Listed before the records are read: what is being made is recorded
        // first, so that nothing listed can be too new to be known.
        let links = self.parts.network.links()?;
        let cgroups = self.parts.engine.vms()?;
        let sockets = entries(&self.parts.folders.all_sockets())?;
        let disks = entries(&self.parts.folders.all_disks())?;
        let images = self.parts.pager_call(|pager| pager.list()).await?;
        let records = self.parts.store.vms()?;
        let vms: BTreeSet<_> = records.iter().map(|vm| vm.id).collect();
        // One whose VMs are all elsewhere, or are being made, is there, too.
        let families = self.parts.store.networks()?.into_iter();
        let families: BTreeSet<_> = families.map(|(family, _)| family.id).collect();
        let slices: BTreeSet<_> = records
            .iter()
            .flat_map(|vm| vm.chain.iter().cloned())
            .collect();
        let next = self.next_generations().await;

        let mut left = Vec::new();
        left.extend(links.into_iter().map(Left::Link).filter(|link| match link {
            Left::Link(Link::Bridge(family) | Link::Tunnel(family)) => !families.contains(family),
            Left::Link(Link::Tap(vm) | Link::Parked(vm)) => !vms.contains(vm),
            Left::Cgroup(_)
            | Left::Folder(_)
            | Left::File(_)
            | Left::Image(_)
            | Left::Volume(_) => false,
        }));
        left.extend(
            cgroups
                .into_iter()
                .filter(|vm| !vms.contains(vm))
                .map(Left::Cgroup),
        );
        left.extend(
            sockets
                .into_iter()
                .filter(|path| !named_after(path, &vms))
                .map(Left::Folder),
        );
        for folder in disks {
            if !folder.is_dir() {
                left.push(Left::File(folder));
                continue;
            }
            let files = entries(&folder)?;
            let kept = match named_after(&folder, &vms) {
                true => forkyard_snapshot::files(&folder).to_vec(),
                false => Vec::new(),
            };
            let used = |file: &PathBuf| {
                slices.contains(file) || next.files.contains(file) || kept.contains(file)
            };
            match files.iter().any(used) || named_after(&folder, &vms) {
                true => left.extend(files.into_iter().filter(|file| !used(file)).map(Left::File)),
                false => left.push(Left::Folder(folder)),
            }
        }
        let ids = images.into_iter().map(|image| image.id);
        left.extend(self.unused(ids, &next)?.into_iter().map(Left::Image));
        left.extend(self.left_of_volumes().await?.into_iter().map(Left::Volume));
        Ok(left)
    }

    /// Selects those of these page images that are not needed.
    fn unused(
        &self,
        images: impl Iterator<Item = ImageId>,
        next: &Next,
    ) -> Result<Vec<ImageId>, HostError> {
        let bases = self.parts.bases().published()?;
        let records = self.parts.store.vms()?;
        let images_of = |vm: &VmRecord| [vm.memory_image, vm.disk_image];
        let used: BTreeSet<_> = records.iter().flat_map(images_of).flatten().collect();
        let needed = |id: &ImageId| {
            used.contains(id)
                || bases.contains(id)
                || next.images.contains(id)
                || self.peers.incoming_images.is_held(*id)
                || self.is_of_substrate(*id)
        };
        Ok(images.filter(|id| !needed(id)).collect())
    }

    /// Retires the images that an earlier daemon kept for its next forks.
    pub(crate) async fn retire_unused(&self) -> Result<(), HostError> {
        let images = self.parts.pager_call(|pager| pager.list()).await?;
        let ids = images.into_iter().map(|image| image.id);
        for image in self.unused(ids, &Next::default())? {
            self.snapshots.drop_image(image).await?;
        }
        Ok(())
    }

    /// Lists the resources that the next forks of all VMs will use. Waits for
    /// forks under way.
    async fn next_generations(&self) -> Next {
        let mut next = Next::default();
        let vms = self.parts.registry().all();
        for vm in vms {
            next.images.extend(kept_image(&vm));
            if let Some(generation) = vm.turn().await.left::<Generation>() {
                next.images.insert(generation.image);
                next.files.extend(generation.files());
            }
        }
        next
    }

    async fn remove_leftover(&self, left: &Left) -> Result<(), HostError> {
        match left {
            Left::Link(link) => Ok(self.parts.network.remove_link(*link).await?),
            Left::Cgroup(vm) => Ok(self.parts.engine.end_processes(*vm).await?),
            Left::Folder(path) => gone(fs::remove_dir_all(path), path),
            Left::File(path) => gone(fs::remove_file(path), path),
            Left::Image(id) => Ok(self.snapshots.drop_image(*id).await?),
            Left::Volume(left) => self.remove_left_volume(left).await,
        }
    }
}

/// Accepts that a file which was about to go when it was found may have gone.
fn gone(removed: io::Result<()>, path: &Path) -> Result<(), HostError> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(HostError::io("remove", path)),
    }
}

impl Left {
    fn tell(&self, removed: bool) -> Leftover {
        let (kind, name) = match self {
            Self::Link(link @ Link::Bridge(_)) => ("bridge", link.name()),
            Self::Link(link @ Link::Tap(_)) => ("tap", link.name()),
            Self::Link(link @ Link::Tunnel(_)) => ("tunnel", link.name()),
            Self::Link(link @ Link::Parked(_)) => ("tap", link.name()),
            Self::Cgroup(vm) => ("cgroup", vm.to_string()),
            Self::Folder(path) => ("folder", path.display().to_string()),
            Self::File(path) => ("file", path.display().to_string()),
            Self::Image(id) => ("page image", id.to_string()),
            Self::Volume(left) => left.tell(),
        };
        Leftover {
            kind: kind.to_owned(),
            name,
            removed,
        }
    }
}

fn problems() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let programs = PROGRAMS
        .iter()
        .filter(|(program, _)| !found(program))
        .map(|(program, package)| format!("{program} is not installed: apt-get install {package}"));
    let devices = DEVICES
        .iter()
        .filter(|device| !Path::new(device).exists())
        .map(|device| {
            format!("{device} is missing: the kernel lacks the module, or the container the device")
        });
    programs.chain(devices).collect()
}

fn named_after(path: &Path, vms: &BTreeSet<VmId>) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    name.parse().is_ok_and(|id| vms.contains(&id))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, HostError> {
    let failed = |source: io::Error| HostError::io("list", folder)(source);
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    listing
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect()
}
