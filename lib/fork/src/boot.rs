//! Booting a VM: the founder of a family, or one that [joins](crate::joining) it.

use crate::{Host, HostError, network_of, terms::NewTerms, volumes::Used};
use forkyard_agent_link::{Guest, Identify, LinkError};
use forkyard_disk::{Backing, Format};
use forkyard_host::Base;
use forkyard_network::Ports;
use forkyard_records::{FamilyRecord, VmRecord};
use forkyard_types::{
    ByteCount, DataVolume, Epoch, GuestCpu, Member, NetworkPolicy, RootVolume, RunRequest, VmId,
    VmName, VmState, VmView, VolumeUse,
};
use forkyard_vm::{Life, RunningVm, Vm};
use forkyard_vmm::{Accel, BootSpec, Kernel, Owner, Probe, Verdict, console};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::mpsc;
use tracing::{Instrument as _, debug_span, instrument};

/// Quiet on the console but for what matters; `no_timer_check` because the
/// check fails by chance where a busy host emulates the timer;
/// `cryptomgr.notests` because the kernel's tests of its own ciphers, emulated, take a
/// quarter of its boot. Free memory is told of in pieces of 64 KiB, not of 2 MiB (our
/// init says so again to kernels that forget it), and stays in the CPU's own lists, of
/// which nothing is told, in hundreds of pages and not in thousands: what is free and
/// not known to be is carried along by every fork.
const CMDLINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check \
     cryptomgr.notests page_reporting.page_reporting_order=4 \
     sysctl.vm.percpu_pagelist_high_fraction=4096";
/// Addition to the kernel command line of a guest that is not to guard itself: as a rule all that
/// runs in a guest belongs to its user, and the host's own guards are between guests.
const UNGUARDED: &str = " mitigations=off init_on_alloc=0";
/// Addition for an emulated guest, whose kernel would measure a delay loop for each vCPU that it switches on, for
/// half a second: no clock of a host is faster than what this says, so no delay is shorter than it should be.
const KNOWN_DELAYS: &str = " lpj=20000000";
/// vCPUs of a VM.
pub(crate) const VCPUS: std::ops::RangeInclusive<u8> = 1..=64;
/// MiB of memory of a VM.
pub(crate) const MEMORY_MIB: std::ops::RangeInclusive<u64> = 80..=1 << 20;

/// Builds the command line of a guest's kernel.
fn command_line(mitigations: bool, accel: Accel) -> String {
    let guard = if mitigations { "" } else { UNGUARDED };
    let delays = match accel {
        Accel::Tcg => KNOWN_DELAYS,
        Accel::Kvm => "",
    };
    format!("{CMDLINE}{guard}{delays}")
}

/// A VM that is recorded and listed, and what it is to boot from.
pub(crate) struct Founded {
    pub vm: Arc<Vm>,
    base: Base,
    volume: Option<RootVolume>,
    data: Vec<DataVolume>,
    policy: NetworkPolicy,
    ports: Ports,
    /// Keeps its volumes here until it has opened them.
    used: Used,
}

impl Host {
    /// Boots a VM and waits until its agent answers. Not cancel-safe: run it
    /// on a task of its own.
    ///
    /// Where the image's first boot is kept, the VM is woken from that.
    pub async fn run(&self, request: RunRequest) -> Result<VmView, HostError> {
        let terms = NewTerms::of(&request)?;
        if let Some(woken) = self.wake_boot(&request).await {
            return self.woken(woken, &terms);
        }
        let (founded, kept) = self.found_and_keep(request).await?;
        let vm = founded.vm.clone();
        self.boot(founded).await?;
        self.begin_lifetime(&vm, &terms);
        self.keep_boot(kept);
        Ok(self.view_of(&vm))
    }

    /// Begins to boot a VM and does not wait: it is listed as `starting`, and
    /// no more if it does not come up. One that is woken runs at once. Not cancel-safe, as above.
    pub async fn launch(&self, request: RunRequest) -> Result<VmView, HostError> {
        let terms = NewTerms::of(&request)?;
        if let Some(woken) = self.wake_boot(&request).await {
            return self.woken(woken, &terms);
        }
        let (founded, kept) = self.found_and_keep(request).await?;
        let view = self.view_of(&founded.vm);
        let host = self.handle();
        tokio::spawn(async move {
            let vm = founded.vm.clone();
            let Some(host) = host.upgrade() else { return };
            match host.boot(founded).await {
                Ok(()) => {
                    host.begin_lifetime(&vm, &terms);
                    host.keep_boot(kept);
                }
                Err(error) => {
                    tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not booted");
                }
            }
        });
        Ok(view)
    }

    fn woken(&self, woken: VmView, terms: &NewTerms) -> Result<VmView, HostError> {
        let vm = self.vm(woken.id.as_str())?;
        self.give_terms(&vm, terms)?;
        Ok(self.view_of(&vm))
    }

    /// Records a VM, and says what to keep of its kind once it has booted.
    async fn found_and_keep(
        &self,
        request: RunRequest,
    ) -> Result<(Founded, Option<RunRequest>), HostError> {
        let kept = crate::substrate::to_keep(&request);
        Ok((self.found(request).await?, kept))
    }

    /// Refuses what cannot be.
    pub(crate) fn check_run(&self, request: &RunRequest) -> Result<(), HostError> {
        if !VCPUS.contains(&request.vcpus) {
            return Err(HostError::Invalid(format!(
                "{} vCPUs: wanted 1 to {}",
                request.vcpus,
                VCPUS.end()
            )));
        }
        let is_fine = |memory: &ByteCount| {
            memory.0.is_multiple_of(1 << 20) && MEMORY_MIB.contains(&(memory.0 >> 20))
        };
        let Some(memory) = request.wanted_memory() else {
            return Err(HostError::Invalid(
                "memory and memory_mib: wanted one of them, of a size that there can be".into(),
            ));
        };
        if !is_fine(&memory) {
            let (least, most) = MEMORY_MIB.into_inner();
            return Err(HostError::Invalid(format!(
                "{memory} of memory: wanted whole MiB, {least} to {most} of them"
            )));
        }
        crate::secrets::check(&request.secrets)?;
        if let Some(volume) = &request.volume {
            self.check_volume(volume)?;
        }
        self.check_data(request)?;
        let network = &request.network;
        crate::egress::check(network.out, &network.allow, &network.deny)?;
        if request.join.is_some() {
            crate::joining::check(network, request.max_clones)?;
        }
        if let Some(name) = &request.name
            && let Ok(vm) = self.vm(name.as_str())
        {
            let name = vm.name().to_string();
            return Err(forkyard_records::RecordsError::NameTaken { name }.into());
        }
        Ok(())
    }

    /// Finds the files that a requested VM boots from, and the accelerator.
    pub(crate) async fn base_of(&self, request: &RunRequest) -> Result<(Base, Accel), HostError> {
        let base = self
            .parts
            .bases()
            .base(request.image.clone(), request.kernel.clone())
            .await?;
        let verdict = self
            .lives
            .accel
            .get_or_try_init(|| self.choose_accel(&base));
        let accel = verdict.await?.accel;
        Ok((base, accel))
    }

    /// Records a VM as asked for; refuses what cannot be.
    pub(crate) async fn found(&self, request: RunRequest) -> Result<Founded, HostError> {
        self.parts.need_pager().await?;
        self.bring_for(&request).await?;
        let root = request.volume.iter().map(|it| &it.name);
        let volumes = root.chain(request.data.iter().map(|it| &it.name));
        // Before it is looked whether it may have them.
        let used = self.volumes.guards.take(volumes)?;
        self.check_run(&request)?;
        NewTerms::of(&request)?;
        let leads = &request.network.publish;
        let ports = self.parts.network.take_new_ports(leads).await?;
        let (base, accel) = self.base_of(&request).await?;
        let cpu = self.baseline(accel, &request.cpu_baseline).await?;
        let family = match &request.join {
            Some(member) => self.family_to_join(member)?,
            None => self.found_family(request.max_clones).await?,
        };
        let vm = self.record_founder(&family, &request, (accel, cpu)).await;
        if vm.is_err() {
            // With all that was recorded of it.
            self.end_family_if_empty(family.id).await;
        }
        Ok(Founded {
            vm: vm?,
            base,
            volume: request.volume,
            data: request.data,
            policy: request.network,
            ports,
            used,
        })
    }

    /// Records the first VM of a family, or one that joins it. If that fails, the caller removes the
    /// family if it is empty.
    async fn record_founder(
        &self,
        family: &FamilyRecord,
        request: &RunRequest,
        (accel, cpu): (Accel, Option<GuestCpu>),
    ) -> Result<Arc<Vm>, HostError> {
        // Ports are the VM's own.
        let policy = NetworkPolicy {
            publish: Vec::new(),
            ..request.network.clone()
        };
        if request.join.is_none() {
            self.parts.store.put_network(family.id, &policy)?;
        }
        let network = network_of(family.number)?;
        let uid = self.parts.registry().take_uid()?;
        let id = VmId::random();
        let (member, place) = self.take_place(family.id)?;
        let record = VmRecord {
            id,
            name: request
                .name
                .clone()
                .map_or_else(|| made_up(&request.image, id), Ok)?,
            family: family.id,
            member,
            birth: None,
            generation: 0,
            epoch: Epoch::random(),
            image: request.image.clone(),
            vcpus: request.vcpus,
            memory: request.wanted_memory().unwrap_or_default(),
            booted: request.wanted_memory().unwrap_or_default(),
            uid: uid.get(),
            accel: accel.to_string(),
            state: VmState::Starting,
            created: crate::now(),
            warm: request.warm,
            memory_image: None,
            chain: match request.volume {
                Some(_) => Vec::new(),
                None => vec![self.parts.folders.disks(id).join("0.qcow2")],
            },
            machine: None,
            secrets: request.secrets.clone(),
            request: None,
            disk_image: None,
            failure: None,
            kernel: request.kernel.clone(),
            notes: Vec::new(),
            volume: request.volume.as_ref().map(|it| VolumeUse::Written {
                volume: it.name.clone(),
                epoch: None,
            }),
            publish: request.network.publish.clone(),
            data: request
                .data
                .iter()
                .map(forkyard_volume_disks::data_disk)
                .collect(),
            cpu,
        };
        self.parts.store.put_vm(&record)?;
        drop(place);
        uid.keep();
        self.parts.registry().occupy(&record);
        let life = Life::Starting {
            body: None,
            again: false,
        };
        let vm = Arc::new(Vm::new(record, network, life));
        self.give_terms(&vm, &NewTerms::of(request)?)?;
        self.parts.registry().insert(vm.clone());
        Ok(vm)
    }

    /// Boots it, or removes it. A request for its end waits for its turn.
    #[instrument(skip_all, fields(vm = %founded.vm.name()))]
    pub(crate) async fn boot(&self, founded: Founded) -> Result<(), HostError> {
        let vm = founded.vm.clone();
        let turn = vm.turn().await;
        let booted = self.boot_first(founded).await;
        if booted.is_err() {
            drop(vm.take_running());
            if let Err(error) = self.close_ports(&vm).await {
                tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "ports not closed");
            }
            self.snapshots.erase(&vm.record()).await;
        }
        drop(turn);
        booted?;
        self.keep_warm(&vm, Vec::new());
        Ok(())
    }

    async fn boot_first(&self, founded: Founded) -> Result<(), HostError> {
        let Founded {
            vm,
            base,
            volume,
            data,
            policy,
            ports,
            used: _used,
        } = founded;
        let record = vm.record();
        self.parts.make_folders(record.id)?;
        self.furnish_data(&data, &record).await?;
        match &volume {
            Some(volume) => self.furnish_volume(volume, &record.image).await?,
            None => {
                let backing = Backing {
                    path: base.disk.clone(),
                    format: Format::Raw,
                };
                self.parts
                    .images
                    .create_slice(&record.chain[0], &backing, None)
                    .await?;
                self.parts.own_slice(&record)?;
            }
        }
        match record.member {
            Member(0) => {
                self.parts
                    .network
                    .create_family(record.family, vm.network, &policy, Some(ports))
                    .await?;
            }
            _ => self.publish_joined(&record, vm.network, ports).await?,
        }
        self.power_on(&vm, base.kernel, base.initramfs).await
    }

    /// Starts the QEMU of a VM that has its disk and its network, and sees its guest
    /// through its identity. If that fails, what there is of it is the caller's to end.
    pub(crate) async fn power_on(
        &self,
        vm: &Arc<Vm>,
        kernel: PathBuf,
        initramfs: PathBuf,
    ) -> Result<(), HostError> {
        self.begin_writer(vm).await?;
        // However its memory came to it before: its guest will find all of it.
        vm.change(&self.parts.store, |record| record.booted = record.memory)?;
        let record = vm.record();
        let address = forkyard_vm::address(vm.network, &record);
        self.parts.network.admit(&[(record.id, address)]).await?;
        let kernel = Kernel {
            image: kernel,
            initrd: Some(initramfs),
            cmdline: command_line(
                self.parts.options.guest_mitigations,
                crate::accel_of(&record.accel),
            ),
        };
        let spec = BootSpec {
            machine: self.snapshots.machine_spec(&record, address.mac).await?,
            kernel: Some(kernel),
        };
        let machine = self
            .parts
            .engine
            .boot(spec)
            .instrument(debug_span!("start"))
            .await?;
        let process = crate::to_text(machine.record())?;
        vm.change(&self.parts.store, |record| record.machine = Some(process))?;
        let (sender, calls) = mpsc::channel(forkyard_snapshot::CALLS);
        let guest = Guest::connect(machine.agent_socket(), sender).await?;
        let dead = machine.exited();
        let up = async {
            tokio::select! {
                said = guest.hello(self.parts.options.to_boot()) => said.map(drop),
                _ = dead => Err(LinkError::Closed),
            }
        };
        if let Err(source) = up.instrument(debug_span!("guest")).await {
            let said = console::kept(&self.parts.folders.sockets(record.id)).unwrap_or_default();
            return Err(HostError::Boot {
                console: last_words(&said),
                source,
            });
        }
        let route = self.parts.network.route(record.family);
        let identity = crate::clone::identity(&record, address, route, address.ip);
        guest
            .identify(Identify {
                identity,
                cloned: None,
                scrub: Vec::new(),
                growth: None,
            })
            .await?;
        let body = Arc::new(RunningVm::new(machine, guest.clone()));
        vm.pass(Life::Starting {
            body: Some(body.clone()),
            again: vm.record().state == VmState::Stopped,
        });
        self.settle(vm, &guest).await?;
        vm.enter(&self.parts.store, Life::Running(body), |_| {})?;
        self.register_running(vm.clone(), calls);
        Ok(())
    }

    /// Hardware virtualization only where a guest has been seen to work by it.
    async fn choose_accel(&self, base: &Base) -> Result<Verdict, HostError> {
        let dir = self.parts.folders.run.join("probe");
        std::fs::create_dir_all(&dir).map_err(HostError::io("create", &dir))?;
        let uid = self.parts.registry().take_uid()?;
        let probe = Probe {
            kernel: base.kernel.clone(),
            initrd: base.initramfs.clone(),
            cmdline: format!("{CMDLINE}{UNGUARDED} forkyard.probe=1"),
            marker: "forkyard-probe-ok".to_owned(),
            owner: Owner {
                uid: uid.get(),
                gid: uid.get(),
            },
            dir: dir.clone(),
            within: self.parts.options.to_prove(),
        };
        let verdict = self
            .parts
            .engine
            .choose_accel(
                self.parts.options.accel,
                &probe,
                &self.parts.folders.cache.join("accel.json"),
            )
            .await;
        drop(uid);
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            tracing::warn!(%error, "probe's folder not removed");
        }
        let verdict = verdict?;
        tracing::info!(accel = %verdict.accel, why = verdict.why, "accelerator chosen");
        Ok(verdict)
    }
}

/// The end of what a guest said on its console: as a rule, why it gave up.
pub(crate) fn last_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

/// A name for a VM that was given none.
pub(crate) fn made_up(image: &str, id: VmId) -> Result<VmName, HostError> {
    let name = format!("{image}-{}", &id.as_str()[..4]);
    name.parse()
        .map_err(|_| HostError::Invalid(format!("{name} is no name: give one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_kernel_guards_itself_if_it_is_to() {
        assert!(command_line(false, Accel::Kvm).ends_with(UNGUARDED));
        let guarded = command_line(true, Accel::Tcg);
        assert!(!guarded.contains("mitigations") && !guarded.contains("init_on_alloc"));
    }
}
