//! The host: its parts, wired.

use crate::{
    HostError, blocking,
    families::Families,
    lives::Lives,
    migrate::Incoming,
    progress::Forks,
    remote::{Peers, order},
    substrate::Substrates,
    volumes::{HostVolumes, Links},
};
use forkyard_capture::{CaptureError, HostAddr, MemoryRegion, Pages, count};
use forkyard_events::Broadcast;
use forkyard_host::{Folders, MakeEngine, Options, OwnedFolders, Parts, slices_of};
use forkyard_pager::LinkUse;
use forkyard_snapshot::Snapshots;
use forkyard_types::{
    GuestImage, ImageView, NetworkPolicy, PageCount, TicketView, VmInspect, VmView,
};
use forkyard_vm::{Vm, lock};
use forkyard_vmm::Machine;
use std::sync::{Arc, Weak};
use tokio::time::timeout;

/// A host of VMs. One daemon at a time has it.
#[derive(Debug)]
pub struct Host {
    pub(crate) parts: Arc<Parts>,
    pub(crate) volumes: HostVolumes,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) substrates: Substrates,
    pub(crate) peers: Peers,
    pub(crate) families: Families,
    pub(crate) lives: Lives,
    pub(crate) forks: Forks,
    /// VMs that are on their way here.
    pub(crate) incoming: Incoming,
    me: Weak<Host>,
}

impl Host {
    /// Takes over a host: its records, its pager, and the VMs that an earlier
    /// daemon left running on this engine. What that daemon left half done is undone. Not cancel-safe: VMs
    /// may be taken over in part. The next call goes on with the rest.
    pub async fn open(
        folders: Folders,
        options: Options,
        engine: MakeEngine,
    ) -> Result<Arc<Self>, HostError> {
        let held = OwnedFolders::take(&folders)?;
        let links = match Links::open(folders.links()) {
            Ok(links) => links,
            Err(error) => {
                held.undo();
                return Err(error);
            }
        };
        let parts = Arc::new(Parts::open(held, options, engine).await?);
        let volumes = HostVolumes::new(&parts, links);
        let disks = volumes.disks.clone();
        let host = Arc::new_cyclic(|me: &Weak<Self>| Self {
            volumes,
            snapshots: Snapshots::new(parts.clone(), disks, me.clone()),
            substrates: Substrates::default(),
            peers: Peers::default(),
            families: Families::default(),
            lives: Lives::default(),
            forks: Forks::new(parts.events.clone()),
            incoming: Incoming::default(),
            parts,
            me: me.clone(),
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
        host.watch_pager();
        host.watch_rules();
        host.watch_idle();
        host.watch_ports();
        // What was found is not news.
        host.parts.registry().announce();
        host.lives.settled.send_replace(true);
        Ok(host)
    }

    /// Lets go of the host. VMs run on; with none left, the pager goes too, unless
    /// clones elsewhere get pages of it. Forks that were begun come first, also
    /// those whose users did not wait for them. Not cancel-safe: what it did not come to is left to the next
    /// daemon.
    pub async fn close(&self) {
        self.forks.under_way.close();
        self.end_incoming().await;
        if timeout(self.parts.options.patience, self.finish())
            .await
            .is_err()
        {
            tracing::warn!("a fork is left half done: the next daemon undoes it");
        }
        self.close_standbys().await;
        if self.parts.registry().all().is_empty() {
            // What was removed there a moment ago needs nothing any more.
            self.poll_remote_clones().await;
            self.tell_borrowers().await;
        }
        // Also those that could not be taken over.
        let none = self.parts.store.vms().is_ok_and(|vms| vms.is_empty());
        if none && self.parts.registry().all().is_empty() && self.peers.remote_clones.is_empty() {
            self.volumes.disks.close_volumes().await;
            self.leave_networks().await;
            self.parts.close().await;
        }
    }

    /// Waits until no VM is being forked, paused or ended.
    async fn finish(&self) {
        self.forks.under_way.over().await;
        let vms = self.parts.registry().all();
        for vm in vms {
            drop(vm.turn().await);
        }
    }

    /// Returns the events on this host since this daemon started it.
    pub fn events(&self) -> &Broadcast {
        &self.parts.events
    }

    /// Waits until VMs that are being made now, of others or of substrates, are there or have failed.
    /// Cancel-safe.
    pub async fn made(&self) {
        self.forks.under_way.begun_are_over().await;
    }

    /// Every VM, the oldest first, and every clone that other hosts made for this
    /// one, as it was seen last.
    pub fn list(&self) -> Vec<VmView> {
        let vms = self.parts.registry().all();
        let mut views: Vec<_> = vms.iter().map(|vm| self.view_of(vm)).collect();
        views.extend(self.peers.remote_clones.views());
        order(&mut views);
        views
    }

    /// Every ticket that is not used up.
    pub fn ticket_views(&self) -> Vec<TicketView> {
        lock(&self.families.tickets).views()
    }

    /// A VM by name or id.
    pub fn find(&self, word: &str) -> Result<VmView, HostError> {
        match self.parts.registry().find(word) {
            Ok(vm) => Ok(self.view_of(&vm)),
            Err(error) => Ok(self.peers.remote_clones.find(word).ok_or(error)?),
        }
    }

    /// A VM, and the ports that lead to it.
    pub(crate) fn view_of(&self, vm: &Vm) -> VmView {
        let mut view = vm.view();
        view.awaits = self.peers.incoming_images.awaited(&vm.record());
        view.published = self.parts.network.published(view.family, view.address.ip);
        view
    }

    /// A VM in full. Cancel-safe.
    pub async fn inspect(&self, vm: &str) -> Result<VmInspect, HostError> {
        let vm = self.vm(vm)?;
        let record = vm.record();
        let private_pages = match vm.running() {
            Ok(body) => match self.private_pages(&*body.machine).await {
                // It has ended since, which is noted in a moment.
                Err(HostError::Capture(CaptureError::Gone { .. })) => PageCount(0),
                counted => counted?,
            },
            Err(_) => PageCount(0),
        };
        let memory_image = match record.memory_image {
            Some(image) => Some(
                self.parts
                    .pager_call(move |pager| pager.stats(image))
                    .await?,
            ),
            None => None,
        };
        let awaits = self.awaited(&record).await?;
        let independence = self.independence_of(&record).await?;
        let disk = slices_of(&record)?;
        let emulated_because = self.emulation_of(&record);
        Ok(VmInspect {
            vm: VmView {
                awaits,
                ..self.view_of(&vm)
            },
            network: NetworkPolicy {
                publish: record.publish,
                ..self.parts.network.policy(record.family)
            },
            booted: record.booted,
            emulated_because,
            memory_image,
            private_pages,
            disk,
            independence,
            warm: forkyard_snapshot::warm_shells(&vm),
            secrets: record.secrets,
            notes: record.notes,
            forks: self.parts.store.forks_of(vm.id)?,
        })
    }

    async fn private_pages(&self, machine: &dyn Machine) -> Result<PageCount, HostError> {
        let ram = machine.ram().await?;
        let pid = machine.record().process.pid;
        let region = MemoryRegion {
            start: HostAddr(ram.hva),
            pages: ram.len.pages(),
        };
        Ok(blocking(move || count(pid, region, Pages::Private)).await?)
    }

    /// The recipes of guest images, and which are built. Cancel-safe.
    pub async fn images(&self) -> Result<Vec<GuestImage>, HostError> {
        Ok(self.parts.bases().list().await?)
    }

    /// Builds a guest image now rather than at the first boot. If cancelled, it is built all the same.
    pub async fn build_image(&self, name: &str) -> Result<GuestImage, HostError> {
        Ok(self.parts.bases().build(name.to_owned()).await?)
    }

    /// Removes a built guest image, unless a VM uses it. Not cancel-safe: boots of it that are kept may be
    /// gone while it stays. Run it on a task of its own.
    pub async fn remove_image(&self, name: &str) -> Result<GuestImage, HostError> {
        // One of ours may be booting from it, to be kept.
        drop(self.substrates.docks.lock().await);
        let vms = self.parts.registry().all();
        if let Some(vm) = vms.iter().find(|vm| vm.record().image == name) {
            return Err(HostError::ImageInUse {
                name: name.to_owned(),
                vm: vm.name(),
            });
        }
        self.release_guest_image(name).await?;
        Ok(self.parts.bases().remove(name.to_owned()).await?)
    }

    /// The page images the pager serves. Cancel-safe.
    pub async fn page_images(&self) -> Result<Vec<ImageView>, HostError> {
        Ok(self.parts.pager_call(|pager| pager.list()).await?)
    }

    /// Lists the traffic between this host and others since its pager began. Cancel-safe.
    pub async fn links(&self) -> Result<Vec<LinkUse>, HostError> {
        Ok(self.parts.pager_call(|pager| pager.links()).await?)
    }

    pub(crate) fn vm(&self, word: &str) -> Result<Arc<Vm>, HostError> {
        let found = self.parts.registry().find(word);
        found.map_err(|error| self.elsewhere(word).unwrap_or(error.into()))
    }

    pub(crate) fn handle(&self) -> Weak<Self> {
        self.me.clone()
    }
}
