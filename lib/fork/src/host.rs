//! The host: its parts, wired.

use crate::{
    Folders, HostError,
    bases::Bases,
    blocking::blocking,
    bounds::RecentForks,
    fold::slices_of,
    fork_priority::ForkPriority,
    independence::Independence,
    migrate::Incoming,
    options::Options,
    own_folders::Held,
    parts::Parts,
    progress::Progress,
    quota::Quotas,
    remote::{IncomingImages, Peering, RemoteClones, order},
    substrate::{Backups, Chosen, Standbys},
    ticket::Tickets,
    volumes::{Blockd, Guards, MirrorLines, Moves, Supplies},
};
use forkyard_capture::{CaptureError, HostAddr, Pages, Region, count};
use forkyard_disk::QemuImg;
use forkyard_events::Broadcast;
use forkyard_network::Networks;
use forkyard_pager::{LinkUse, PagerClient, PagerError, Shutdown};
use forkyard_records::Store;
use forkyard_types::{
    FamilyId, GuestImage, ImageId, ImageView, NetworkPolicy, PageCount, TicketView, VmId,
    VmInspect, VmName, VmView,
};
use forkyard_vm::{Registry, UnderWay, Vm, gid, lock};
use forkyard_vmm::{Engine, Machine, Qemu, QemuConfig, Verdict, VmmError};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak},
};
use tokio::{
    sync::{Notify, OnceCell, watch},
    time::timeout,
};

/// Makes the engine of a host. Blocks for a few file operations.
pub type MakeEngine = fn(&Folders, Options) -> Result<Arc<dyn Engine>, VmmError>;

/// Makes the engine of a host: stock QEMU. Blocks for a few file operations.
pub fn qemu(folders: &Folders, options: Options) -> Result<Arc<dyn Engine>, VmmError> {
    Ok(Arc::new(Qemu::new(QemuConfig {
        cgroup_parent: folders.instance(),
        tracker: folders.tracker(),
        patience: options.patience,
        ..QemuConfig::default()
    })?))
}

/// A host of VMs. One daemon at a time has it.
#[derive(Debug)]
pub struct Host {
    pub(crate) folders: Folders,
    pub(crate) options: Options,
    pub(crate) store: Store,
    pub(crate) bases: Bases,
    pub(crate) network: Networks,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) images: QemuImg,
    /// Serves the volumes of this host.
    pub(crate) blockd: Blockd,
    pub(crate) tickets: Mutex<Tickets>,
    pub(crate) quotas: Quotas,
    /// Of the checkpoints that guests take.
    pub(crate) kept: Quotas,
    pub(crate) recent_forks: Mutex<RecentForks>,
    /// Told whenever a clone has ended.
    pub(crate) ended: Notify,
    /// True once the state that an earlier daemon left is known; no guest is
    /// answered before.
    pub(crate) settled: watch::Sender<bool>,
    /// Accelerator that executes guests here, with the reason, once a VM has
    /// booted.
    pub(crate) accel: OnceCell<Verdict>,
    /// Other hosts, once they are known.
    pub(crate) peering: OnceLock<Peering>,
    /// Pages and VMs that arrive from other hosts.
    pub(crate) incoming_images: IncomingImages,
    /// VMs that are on their way here.
    pub(crate) incoming: Incoming,
    pub(crate) supplies: Supplies,
    /// Budgets of links to other hosts.
    pub(crate) links: crate::volumes::Links,
    pub(crate) mirrors: MirrorLines,
    pub(crate) guards: Guards,
    pub(crate) moves: Moves,
    /// Clones that other hosts made for this one.
    pub(crate) remote_clones: RemoteClones,
    /// Clones of theirs that are being ended, because they are no longer awaited.
    pub(crate) pending_removal: Mutex<BTreeSet<VmId>>,
    /// Families whose network could not be joined with other hosts', to be tried again.
    /// Held while one is joined, or ended: what was heard last must be what is done
    /// last.
    pub(crate) pending_joins: tokio::sync::Mutex<BTreeSet<FamilyId>>,
    /// Sites of families' members that have moved.
    pub(crate) sites: crate::remote::Sites,
    /// Events, for subscribers.
    pub(crate) events: Broadcast,
    pub(crate) progress: Progress,
    /// Forks and checkpoints under way; none begins once the daemon ends.
    pub(crate) forks: UnderWay,
    /// Held while a substrate is made or removed. Names of boots that could not be kept: this
    /// daemon tries none of them again.
    pub(crate) docks: tokio::sync::Mutex<BTreeSet<VmName>>,
    /// Object stores of substrates.
    pub(crate) stores: Chosen,
    pub(crate) backups: Backups,
    /// Disks that come to depend on nothing.
    pub(crate) independence: Independence,
    /// VMs that are ready to be taken.
    pub(crate) standbys: Standbys,
    /// Memory of substrates as that of larger VMs, and the images that it is a view of.
    pub(crate) larger: Mutex<BTreeMap<ImageId, ImageId>>,
    /// Names that activations under way will give.
    pub(crate) promised: Arc<Mutex<BTreeSet<String>>>,
    /// Told whenever a VM's end may have moved.
    pub(crate) terms_changed: Arc<Notify>,
    /// Held while what a family may reach is changed.
    pub(crate) egress: tokio::sync::Mutex<()>,
    /// Priority of the threads that make a fork.
    pub(crate) fork_priority: ForkPriority,
    registry: Mutex<Registry>,
    pager: PagerClient,
    me: Weak<Host>,
    /// Held as long as this lives; the kernel lets go of them if we die.
    _locks: [File; 2],
}

impl Host {
    /// Takes over a host: its records, its pager, and the VMs that an earlier
    /// daemon left running on this engine. What that daemon left half done is undone.
    pub async fn open(
        folders: Folders,
        options: Options,
        engine: MakeEngine,
    ) -> Result<Arc<Self>, HostError> {
        let held = Held::take(&folders)?;
        let links = crate::volumes::Links::open(folders.links())?;
        let Parts {
            store,
            engine,
            network,
            pager,
        } = match Parts::open(&folders, options, engine).await {
            Ok(parts) => parts,
            Err(error) => {
                held.undo();
                return Err(error);
            }
        };
        let events = Broadcast::new(options.events);
        let host = Arc::new_cyclic(|me| Self {
            bases: Bases::new(folders.clone(), pager.clone(), events.clone()),
            blockd: Blockd::new(&folders, options.patience),
            folders,
            options,
            store,
            network,
            engine,
            images: QemuImg::default(),
            tickets: Mutex::default(),
            quotas: Quotas::default(),
            kept: Quotas::default(),
            recent_forks: Mutex::default(),
            ended: Notify::new(),
            settled: watch::Sender::new(false),
            accel: OnceCell::new(),
            peering: OnceLock::new(),
            incoming_images: IncomingImages::default(),
            docks: tokio::sync::Mutex::default(),
            stores: Chosen::default(),
            backups: Backups::default(),
            independence: Independence::default(),
            standbys: Standbys::default(),
            larger: Mutex::default(),
            promised: Arc::default(),
            fork_priority: ForkPriority::default(),
            terms_changed: Arc::default(),
            egress: tokio::sync::Mutex::default(),
            progress: Progress::new(events.clone()),
            forks: UnderWay::default(),
            incoming: Incoming::default(),
            supplies: Supplies::default(),
            links,
            mirrors: MirrorLines::default(),
            guards: Guards::default(),
            moves: Moves::default(),
            remote_clones: RemoteClones::default(),
            pending_removal: Mutex::default(),
            pending_joins: tokio::sync::Mutex::default(),
            sites: crate::remote::Sites::default(),
            registry: Mutex::new(Registry::new(events.clone())),
            events,
            pager,
            me: me.clone(),
            _locks: held.keep(),
        });
        let taken = async {
            host.load_remote_clones()?;
            host.hold_leaving()?;
            host.adopt_all().await?;
            host.watch_terms()?;
            host.resume_independence()?;
            host.watch_standbys()
        };
        if let Err(error) = taken.await {
            host.close().await;
            return Err(error);
        }
        host.watch_arrivals();
        host.watch_blockd();
        host.watch_rules();
        host.watch_idle();
        // What was found is not news.
        host.registry().announce();
        host.settled.send_replace(true);
        Ok(host)
    }

    /// Lets go of the host. VMs run on; with none left, the pager goes too, unless
    /// clones elsewhere get pages of it. Forks that were begun come first, also
    /// those whose users did not wait for them.
    pub async fn close(&self) {
        self.forks.close();
        self.end_incoming().await;
        if timeout(self.options.patience, self.finish()).await.is_err() {
            tracing::warn!("a fork is left half done: the next daemon undoes it");
        }
        self.close_standbys().await;
        if self.registry().all().is_empty() {
            // What was removed there a moment ago needs nothing any more.
            self.poll_remote_clones().await;
            self.tell_borrowers().await;
        }
        // Also those that could not be taken over.
        let none = self.store.vms().is_ok_and(|vms| vms.is_empty());
        if none && self.registry().all().is_empty() && self.remote_clones.is_empty() {
            self.close_volumes().await;
            self.leave_networks().await;
            if let Err(error) = self.network.remove_rules().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "network tables not removed"
                );
            }
            if let Err(error) = self.engine.close() {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cgroup not removed"
                );
            }
            if let Err(error) = self
                .pager_call(|pager| pager.shutdown(Shutdown::WhenUnused))
                .await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, "the pager stays");
            }
        }
    }

    /// Waits until no VM is being forked, paused or ended.
    async fn finish(&self) {
        self.forks.over().await;
        let vms = self.registry().all();
        for vm in vms {
            drop(vm.turn().await);
        }
    }

    /// Returns the events on this host since this daemon started it.
    pub fn events(&self) -> &Broadcast {
        &self.events
    }

    /// Waits until VMs that are being made now, of others or of substrates, are there or have failed.
    /// Cancel-safe.
    pub async fn made(&self) {
        self.forks.begun_are_over().await;
    }

    /// Every VM, the oldest first, and every clone that other hosts made for this
    /// one, as it was seen last.
    pub fn list(&self) -> Vec<VmView> {
        let vms = self.registry().all();
        let mut views: Vec<_> = vms.iter().map(|vm| self.view_of(vm)).collect();
        views.extend(self.remote_clones.views());
        order(&mut views);
        views
    }

    /// Every ticket that is not used up.
    pub fn ticket_views(&self) -> Vec<TicketView> {
        lock(&self.tickets).views()
    }

    /// A VM by name or id.
    pub fn find(&self, word: &str) -> Result<VmView, HostError> {
        match self.registry().find(word) {
            Ok(vm) => Ok(self.view_of(&vm)),
            Err(error) => Ok(self.remote_clones.find(word).ok_or(error)?),
        }
    }

    /// A VM, and the ports that lead to it.
    pub(crate) fn view_of(&self, vm: &Vm) -> VmView {
        let mut view = vm.view();
        view.awaits = self.incoming_images.awaited(&vm.record());
        view.published = self.network.published(view.family, view.address.ip);
        view
    }

    /// A VM in full.
    pub async fn inspect(&self, vm: &str) -> Result<VmInspect, HostError> {
        let vm = self.vm(vm)?;
        let record = vm.record();
        let private_pages = match vm.body() {
            Ok(body) => match self.private_pages(&*body.machine).await {
                // It has ended since, which is noted in a moment.
                Err(HostError::Capture(CaptureError::Gone { .. })) => PageCount(0),
                counted => counted?,
            },
            Err(_) => PageCount(0),
        };
        let memory_image = match record.memory_image {
            Some(image) => Some(self.pager_call(move |pager| pager.stats(image)).await?),
            None => None,
        };
        let awaits = self.awaited(&record).await?;
        let independence = self.independence_of(&record).await?;
        let disk = slices_of(&record)?;
        Ok(VmInspect {
            vm: VmView {
                awaits,
                ..self.view_of(&vm)
            },
            network: NetworkPolicy {
                publish: record.publish,
                ..self.network.policy(record.family)
            },
            booted: record.booted,
            memory_image,
            private_pages,
            disk,
            independence,
            warm: crate::generation::warm_shells(&vm),
            secrets: record.secrets,
            notes: record.notes,
            forks: self.store.forks_of(vm.id)?,
        })
    }

    async fn private_pages(&self, machine: &dyn Machine) -> Result<PageCount, HostError> {
        let ram = machine.ram().await?;
        let pid = machine.record().process.pid;
        let region = Region {
            start: HostAddr(ram.hva),
            pages: ram.len.pages(),
        };
        blocking(move || count(pid, region, Pages::Private)).await
    }

    /// The recipes of guest images, and which are built.
    pub async fn images(&self) -> Result<Vec<GuestImage>, HostError> {
        self.bases.list().await
    }

    /// Builds a guest image now rather than at the first boot.
    pub async fn build_image(&self, name: &str) -> Result<GuestImage, HostError> {
        self.bases.build(name.to_owned()).await
    }

    /// Removes a built guest image, unless a VM uses it.
    pub async fn remove_image(&self, name: &str) -> Result<GuestImage, HostError> {
        // One of ours may be booting from it, to be kept.
        drop(self.docks.lock().await);
        let vms = self.registry().all();
        if let Some(vm) = vms.iter().find(|vm| vm.record().image == name) {
            return Err(HostError::ImageInUse {
                name: name.to_owned(),
                vm: vm.name(),
            });
        }
        self.release_guest_image(name).await?;
        self.bases.remove(name.to_owned()).await
    }

    /// The page images the pager serves.
    pub async fn page_images(&self) -> Result<Vec<ImageView>, HostError> {
        self.pager_call(|pager| pager.list()).await
    }

    /// Lists the traffic between this host and others since its pager began.
    pub async fn links(&self) -> Result<Vec<LinkUse>, HostError> {
        self.pager_call(|pager| pager.links()).await
    }

    pub(crate) fn vm(&self, word: &str) -> Result<Arc<Vm>, HostError> {
        let found = self.registry().find(word);
        found.map_err(|error| self.elsewhere(word).unwrap_or(error.into()))
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    pub(crate) fn handle(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(crate) async fn pager_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&PagerClient) -> Result<T, PagerError> + Send + 'static,
    ) -> Result<T, HostError> {
        let pager = self.pager.clone();
        blocking(move || call(&pager)).await
    }

    pub(crate) fn gid_of(&self, family: FamilyId) -> Result<u32, HostError> {
        let family = self.store.family(family)?;
        family
            .map(|family| gid(family.number))
            .ok_or_else(|| HostError::Invalid("the family is gone".into()))
    }

    /// A VM writes to another slice from here on, over its former one.
    pub(crate) fn lengthen_chain(&self, vm: &Vm, slice: PathBuf) -> Result<(), HostError> {
        vm.change(&self.store, |record| record.chain.insert(0, slice))?;
        self.registry().occupy(&vm.record());
        Ok(())
    }

    /// Has the record say what the machine does. A record is ahead of its
    /// machine while a freeze is under way, never behind.
    pub(crate) async fn settle_chain(
        &self,
        vm: &Vm,
        machine: &dyn Machine,
    ) -> Result<(), HostError> {
        let Some(active) = machine.active_slice().await? else {
            return Ok(());
        };
        let mut chain = vm.record().chain;
        let Some(place) = chain.iter().position(|slice| *slice == active) else {
            return Err(HostError::Invalid(format!(
                "{} writes to {}, which is none of its slices",
                vm.name(),
                active.display()
            )));
        };
        if place == 0 {
            return Ok(());
        }
        chain.drain(..place);
        vm.change(&self.store, |record| record.chain = chain)?;
        let unused = self.registry().move_to(vm.id, &active);
        self.remove_files(&unused);
        Ok(())
    }

    pub(crate) fn make_folders(&self, vm: forkyard_types::VmId) -> Result<(), HostError> {
        for folder in [self.folders.disks(vm), self.folders.sockets(vm)] {
            match fs::create_dir(&folder) {
                // That of its former life, with what its console said.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(HostError::io("create", &folder))?,
            }
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))
                .map_err(HostError::io("open up", &folder))?;
        }
        Ok(())
    }

    /// Removes files that may be there. One that cannot be removed stays for
    /// the doctor to find.
    pub(crate) fn remove_files(&self, files: &[PathBuf]) {
        for file in files {
            match fs::remove_file(file) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(file = %file.display(), %error, "file not removed"),
            }
        }
    }
}
