//! Kept boots: a first boot of an image in a size becomes a substrate by itself, and those that
//! are run later are woken from it.
//!
//! ```text
//! run --> kept here, or in the cache? --yes--> woken
//!            no --> booted, and in the background: another one booted -> docked -> to the cache
//! ```
//!
//! What is kept is not of the VM that was asked for: that one is its user's from its first moment.
//! A name says all that such a boot depends on, so that one of an older kernel is not found again.
//! In the cache it serves all hosts that share it. Where anything of this fails, VMs boot.

use super::{Leaving, Substrate, activate::Founders, dock};
use crate::{Host, HostError, boot::made_up, substrate::bundle::Way};
use forkyard_host::Base;
use forkyard_records::RecordsError;
use forkyard_types::{CloneResult, RunRequest, SubstrateKind, VmId, VmName, VmView};
use forkyard_vmm::Accel;
use std::path::PathBuf;
use tracing::{Instrument as _, info_span};

/// Digits of a name that tell one boot from others.
const DIGITS: usize = 16;
/// Letters of an image's name in it.
const LETTERS: usize = 24;

/// Derives the request to boot, for the kept boot, from that of a VM: one of
/// its kind, nothing of it.
pub(crate) fn to_keep(request: &RunRequest) -> Option<RunRequest> {
    // A kernel of the user's own may change under its name.
    let usual = request.kernel.is_none() && request.volume.is_none() && request.data.is_empty();
    // One that was kept has seen another CPU.
    let usual = usual && request.cpu_baseline.is_empty();
    (!request.cold && usual).then(|| RunRequest {
        image: request.image.clone(),
        name: None,
        vcpus: request.vcpus,
        memory: request.wanted_memory(),
        memory_mib: None,
        warm: 0,
        kernel: None,
        max_clones: None,
        secrets: Vec::new(),
        network: forkyard_types::NetworkPolicy::default(),
        volume: None,
        data: Vec::new(),
        cold: true,
        labels: forkyard_types::Labels::default(),
        env: std::collections::BTreeMap::new(),
        lifetime: None,
        idle: None,
        restart: forkyard_types::Restart::No,
        cpu_baseline: Vec::new(),
        join: None,
    })
}

impl Host {
    /// Wakes a VM as asked for from a boot of its kind that is kept. None if there is none, or if
    /// that cannot be done: it boots then, and what is wrong with the request is said there.
    pub(crate) async fn wake_boot(&self, request: &RunRequest) -> Option<VmView> {
        if !self.parts.options.keep_boots || to_keep(request).is_none() {
            return None;
        }
        self.check_run(request).ok()?;
        match self.try_to_wake(request).await {
            Ok(woken) => woken,
            Err(error) => {
                tracing::warn!(
                    image = request.image,
                    error = &error as &dyn std::error::Error,
                    "not woken: it boots"
                );
                None
            }
        }
    }

    async fn try_to_wake(&self, request: &RunRequest) -> Result<Option<VmView>, HostError> {
        let (base, accel) = self.base_of(request).await?;
        let name = self.boot_name(request, &base, accel).await?;
        let Some(substrate) = self.kept_boot(&name).await? else {
            return Ok(None);
        };
        let made_up = || made_up(&request.image, VmId::random());
        let founders = Founders {
            count: 1,
            size: None,
            name: Some(request.name.clone().map_or_else(made_up, Ok)?),
            network: request.network.clone(),
            max_clones: request.max_clones,
            join: request.join.clone(),
            warm: request.warm,
            secrets: request.secrets.clone(),
            watch: None,
        };
        let answer = self.activate_as(&substrate, &founders).await?;
        match answer.vms.into_iter().next() {
            Some(CloneResult::Vm(vm)) => Ok(Some(*vm)),
            Some(CloneResult::Error(error)) => Err(HostError::Broken(error.message)),
            None => Ok(None),
        }
    }

    /// Boots one of this kind in the background and keeps it, unless that is done already.
    pub(crate) fn keep_boot(&self, request: Option<RunRequest>) {
        let Some(request) = request.filter(|_| self.parts.options.keep_boots) else {
            return;
        };
        let host = self.handle();
        let work = async move {
            let Some(host) = host.upgrade() else { return };
            if let Err(error) = host.make_boot(request.clone()).await {
                tracing::warn!(
                    image = request.image,
                    error = &error as &dyn std::error::Error,
                    "boot not kept"
                );
            }
        };
        tokio::spawn(work.instrument(info_span!("keep_boot")));
    }

    async fn make_boot(&self, request: RunRequest) -> Result<(), HostError> {
        let mut given_up = self.substrates.docks.lock().await;
        let (base, accel) = self.base_of(&request).await?;
        let name = self.boot_name(&request, &base, accel).await?;
        if given_up.contains(&name) {
            return Ok(());
        }
        match self.kept_boot(&name).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            // What is in the cache cannot be used: another is made.
            Err(error) => {
                tracing::warn!(%name, error = &error as &dyn std::error::Error, "not found in the cache");
                self.forget_cached(&name);
            }
        }
        let made = self.boot_for_keeps(request, name.clone()).await;
        if made.is_err() {
            // Or each run of this image would boot twice.
            given_up.insert(name);
        }
        made
    }

    /// Boots, docks and keeps one. The caller holds the turn.
    async fn boot_for_keeps(&self, request: RunRequest, name: VmName) -> Result<(), HostError> {
        let checkpoint = dock::passing_name()?;
        let founded = self.found(request).await?;
        let vm = founded.vm.clone();
        let record = vm.record();
        let leaving = Leaving {
            checkpoint,
            fork: None,
            vm: Some(vm.id),
        };
        let margin = u64::from(dock::MARGIN_KIB) << 10;
        let recorded = async {
            let plan = self.lists()?.plan(SubstrateKind::Public, &[], &[], margin);
            let mut substrate = self
                .begin_substrate(name.clone(), SubstrateKind::Public, &record, leaving)
                .await?;
            substrate.entry.boot = true;
            // Before it boots: should this daemon die, the next one removes both.
            self.parts.store.add_substrate(&substrate.record()?)?;
            Ok::<_, HostError>((substrate, plan))
        };
        let (mut substrate, plan) = match recorded.await {
            Ok(recorded) => recorded,
            Err(error) => {
                self.snapshots.erase(&record).await;
                return Err(error);
            }
        };
        let made = async {
            self.boot(founded).await?;
            self.dock_as(&mut substrate, &vm, plan).await
        };
        let made = made.await;
        self.docked(substrate.clone(), made).await?;
        self.forget_boots_before(&substrate).await;
        let kept = self.kept_boot(&name).await?;
        match kept {
            Some(kept) => {
                self.push_to(&kept, &self.boots().join(name.as_str()), Way::Link)
                    .await
            }
            None => Ok(()),
        }
    }

    /// The boot of that name, brought here from the cache if it is there.
    async fn kept_boot(&self, name: &VmName) -> Result<Option<Substrate>, HostError> {
        let find = || {
            let mut all = self.all_substrates()?.into_iter();
            Ok::<_, HostError>(all.find(|it| it.name == *name))
        };
        if let Some(found) = find()? {
            return Ok((found.entry.boot && found.entry.parts.is_some()).then_some(found));
        }
        let folder = self.boots().join(name.as_str());
        if !folder.exists() {
            return Ok(None);
        }
        match self.pull_from(name, &folder).await {
            Ok(_) | Err(HostError::Store(RecordsError::SubstrateNameTaken { .. })) => find(),
            Err(error) => Err(error),
        }
    }

    /// Removes what was kept of the same image in the same size before, if nothing lies over it.
    async fn forget_boots_before(&self, latest: &Substrate) {
        let new = &latest.entry;
        let all = self.all_substrates().unwrap_or_default().into_iter();
        let older = all.filter(|it| {
            let old = &it.entry;
            old.boot
                && it.name != latest.name
                && (&old.image, old.vcpus, old.memory) == (&new.image, new.vcpus, new.memory)
        });
        for old in older {
            self.forget_boot(&old).await;
        }
    }

    /// Removes a boot that is kept, here and from the cache, if nothing lies over it.
    pub(super) async fn forget_boot(&self, boot: &Substrate) {
        self.forget_cached(&boot.name);
        if let Err(error) = self.remove_known(boot).await {
            tracing::info!(name = %boot.name, %error, "boot still kept");
        }
    }

    /// Removes a boot from the cache.
    pub(super) fn forget_cached(&self, boot: &VmName) {
        let _ = std::fs::remove_dir_all(self.boots().join(boot.as_str()));
    }

    pub(super) fn boots(&self) -> PathBuf {
        self.parts.folders.cache.join("boots")
    }

    /// A name that says all that a boot depends on.
    async fn boot_name(
        &self,
        request: &RunRequest,
        base: &Base,
        accel: Accel,
    ) -> Result<VmName, HostError> {
        let lists = self.parts.folders.share.join(forkyard_substrate::LISTS);
        let lists = std::fs::read(&lists).map_err(HostError::io("read", &lists))?;
        let mut hasher = blake3::Hasher::new();
        let options = self.parts.options;
        // Its number alone: where the pager shows it differs from host to host.
        let disk = base.disk.file_name().unwrap_or_default();
        let said = [
            disk.to_string_lossy().into_owned(),
            base.kernel.display().to_string(),
            base.initramfs.display().to_string(),
            request.vcpus.to_string(),
            // In MiB, as names of boots had it from the beginning.
            (request.wanted_memory().unwrap_or_default().0 >> 20).to_string(),
            accel.to_string(),
            options.guest_mitigations.to_string(),
            options.page_reporting.to_string(),
            self.engine_version().await?,
        ];
        for word in &said {
            hasher.update(word.as_bytes()).update(&[0]);
        }
        let digest = hasher.update(&lists).finalize().to_hex();
        let image: String = request.image.chars().take(LETTERS).collect();
        let name = format!("{image}-boot-{}", &digest[..DIGITS]);
        name.parse()
            .map_err(|_| HostError::Broken(format!("{name} is no name")))
    }
}
