//! Standby: VMs of a substrate that are woken before they are wanted, and stand still until then.
//!
//! ```text
//! wanted (so many, or the forecast) --bounded by memory--> made: shell -> state -> rehearsed -> stopped
//!                                                            |
//! activate --taken: network, name, identity, goes on <-------'--too many, or memory is short--> ended
//! ```
//!
//! One is a shell like those that wait for a fork ([`WarmShell`]), in a family of its own, that has
//! taken its state already, and an identity that it is not going to have. It belongs to no user: its user code
//! has not run, it is on no network and has no name, and is listed nowhere among VMs.
//!
//! Failure paths: one is recorded as `warm` until it is taken, and so ended by the next daemon should
//! this one die. One that fails when it is taken is ended, and a VM is made as without it. Where none can be made
//! the reason is shown, and it is tried again a little later.

mod shelf;

use self::shelf::{Entry, HostMemory, MOST, Shelf, entries, guess, memory_of};
pub(super) use self::shelf::{Kept, host_memory};
use super::{Substrate, activate::Founders, sizes::Size};
use crate::{Host, HostError, blocking, clone::identity, network_of};
use forkyard_agent_link::{Cloned, Growth, Guest, Identify};
use forkyard_forecast::Millis;
use forkyard_network::Subnet;
use forkyard_records::{FamilyRecord, VmRecord};
use forkyard_snapshot::{Vessel, WarmShell};
use forkyard_substrate::access::Act;
use forkyard_types::{
    ByteCount, Epoch, ForkId, StandbyRequest, StandbyView, SubstrateView, VmId, VmName,
};
use forkyard_vm::{UnderWay, lock};
use forkyard_vmm::RunState;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Notify, time::sleep};

/// Between two looks at what is wanted and what the host has left.
const LOOK: Duration = Duration::from_secs(2);
/// Made at a time, of all substrates: users go first.
const AT_ONCE: usize = 2;
/// After one that could not be made.
const AGAIN: Millis = Millis::secs(10);
/// Between two records of the demand.
const SELDOM: Millis = Millis::secs(60);

/// A VM that is ready.
#[derive(Debug)]
pub(super) struct Standby {
    pub family: FamilyRecord,
    pub shell: WarmShell,
}

/// VMs that are kept ready, by substrate and size.
#[derive(Debug, Default)]
pub(crate) struct Standbys {
    shelves: Mutex<BTreeMap<Kept, Shelf>>,
    changed: Arc<Notify>,
}

impl Host {
    /// Has VMs of a substrate be kept ready, as many as are wanted, from here on. Not cancel-safe: some of
    /// those that are wanted no more may stay. Run it on a task of its own.
    pub async fn keep_standby(
        &self,
        name: &str,
        wanted: StandbyRequest,
        asker: Option<&str>,
    ) -> Result<SubstrateView, HostError> {
        if wanted.count.is_some_and(|count| count > MOST) || wanted.memory_mib == 0 {
            return Err(HostError::Invalid(format!(
                "at most {MOST} VMs are kept ready, in 1 MiB or more"
            )));
        }
        // It takes memory of the host for good: for the owner and the operator alone.
        let found = self.substrate(name, Act::Remove, asker)?;
        found.parts()?;
        let size = found.size(wanted.vm_memory, wanted.vm_vcpus)?;
        let size = self.size_with_disk(&found, size, wanted.vm_disk).await?;
        let kept = Kept {
            of: found.name.clone(),
            size,
        };
        if wanted.count == Some(0) {
            match (wanted.vm_memory, wanted.vm_vcpus, wanted.vm_disk) {
                (None, None, None) => self.end_standby(&found.name).await?,
                (Some(_), _, _) | (_, Some(_), _) | (_, _, Some(_)) => {
                    self.end_shelves(vec![kept]).await?;
                }
            }
            return self.view_of_substrate(&found);
        }
        {
            let mut shelves = lock(&self.substrates.standbys.shelves);
            let known = shelves.get(&kept);
            let entry = Entry {
                wanted,
                demand: known.map(|it| it.entry.demand.clone()).unwrap_or_default(),
                size: Some(size),
            };
            match shelves.get_mut(&kept) {
                Some(shelf) => shelf.entry = entry,
                None => {
                    shelves.insert(kept, Shelf::new(entry));
                }
            }
        }
        self.record_standby(&found.name)?;
        self.substrates.standbys.changed.notify_one();
        self.view_of_substrate(&found)
    }

    /// Checks if VMs are kept ready of any substrate.
    pub fn keeps_standby(&self) -> bool {
        !lock(&self.substrates.standbys.shelves).is_empty()
    }

    /// Shows what is kept ready of a substrate, by size, and which VMs that are.
    pub(super) fn standby_of(&self, name: &VmName) -> (Vec<(Size, StandbyView)>, BTreeSet<VmId>) {
        let shelves = lock(&self.substrates.standbys.shelves);
        let own = || shelves.iter().filter(|(kept, _)| kept.of == *name);
        let views = own().map(|(kept, shelf)| (kept.size, shelf.view(kept.size)));
        let ids = own().flat_map(|(_, shelf)| shelf.ids.iter().cloned());
        (views.collect(), ids.collect())
    }

    /// Records what is to be kept ready of a substrate.
    fn record_standby(&self, name: &VmName) -> Result<(), HostError> {
        let entries: Vec<_> = {
            let shelves = lock(&self.substrates.standbys.shelves);
            let own = shelves.iter().filter(|(kept, _)| kept.of == *name);
            own.map(|(_, shelf)| shelf.entry.clone()).collect()
        };
        match entries.is_empty() {
            true => Ok(self.parts.store.remove_standby(name)?),
            false => Ok(self
                .parts
                .store
                .put_standby(name, &crate::to_text(&entries)?)?),
        }
    }

    /// Remembers what is to be kept ready, and sees to it from here on. Called once.
    pub(crate) fn watch_standbys(&self) -> Result<(), HostError> {
        let substrates = self.all_substrates()?;
        for (name, text) in self.parts.store.standbys()? {
            let Some(substrate) = substrates.iter().find(|it| it.name == name) else {
                continue;
            };
            match entries(&text) {
                Ok(entries) => {
                    let mut shelves = lock(&self.substrates.standbys.shelves);
                    for entry in entries {
                        let kept = Kept {
                            of: name.clone(),
                            size: entry.size.unwrap_or_else(|| substrate.docked()),
                        };
                        shelves.insert(kept, Shelf::new(entry));
                    }
                }
                Err(error) => {
                    tracing::warn!(%name, %error, "not kept ready: its record makes no sense")
                }
            }
        }
        let (host, changed) = (self.handle(), self.substrates.standbys.changed.clone());
        tokio::spawn(async move {
            loop {
                let kept = {
                    let Some(host) = host.upgrade() else { return };
                    host.tend_standbys().await;
                    host.keeps_standby()
                };
                // Without any there is nothing to look at.
                let look = async {
                    match kept {
                        true => sleep(LOOK).await,
                        false => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = look => {}
                    () = changed.notified() => {}
                }
            }
        });
        Ok(())
    }

    /// Takes one that is ready, if there is one, and notes that one was wanted.
    pub(super) async fn take_standby(&self, kept: &Kept) -> Option<Standby> {
        let now = now();
        loop {
            let taken = {
                let mut shelves = lock(&self.substrates.standbys.shelves);
                let shelf = shelves.get_mut(kept)?;
                let taken = shelf.idle.pop();
                if let Some(it) = &taken {
                    shelf.ids.remove(&it.shell.record.id);
                }
                taken
            };
            let found = match taken {
                Some(it) => {
                    if !it.is_ready().await {
                        self.end_standbys(vec![it]).await;
                        continue;
                    }
                    Some(it)
                }
                None => None,
            };
            if let Some(shelf) = lock(&self.substrates.standbys.shelves).get_mut(kept) {
                shelf.entry.demand.arrived(now);
                match found {
                    Some(_) => shelf.hits += 1,
                    None => shelf.misses += 1,
                }
            }
            self.substrates.standbys.changed.notify_one();
            return found;
        }
    }

    /// Keeps nothing ready of a substrate any more. Once this returns, nothing is.
    pub(super) async fn end_standby(&self, name: &VmName) -> Result<(), HostError> {
        self.parts.store.remove_standby(name)?;
        let all: Vec<_> = {
            let shelves = lock(&self.substrates.standbys.shelves);
            let own = shelves.keys().filter(|kept| kept.of == *name);
            own.cloned().collect()
        };
        self.end_shelves(all).await
    }

    /// Keeps nothing ready any more of these sizes. Once this returns, nothing is.
    async fn end_shelves(&self, all: Vec<Kept>) -> Result<(), HostError> {
        for kept in all {
            let makers = lock(&self.substrates.standbys.shelves)
                .get(&kept)
                .map(|it| it.makers.clone());
            if let Some(makers) = makers {
                makers.close();
                makers.over().await;
            }
            let shelf = lock(&self.substrates.standbys.shelves).remove(&kept);
            self.record_standby(&kept.of)?;
            self.end_standbys(shelf.map(|it| it.idle).unwrap_or_default())
                .await;
        }
        Ok(())
    }

    /// Ends all that are ready: the host is let go of. What is to be kept stays recorded.
    pub(crate) async fn close_standbys(&self) {
        let all = std::mem::take(&mut *lock(&self.substrates.standbys.shelves));
        let idle = all.into_values().flat_map(|it| it.idle).collect();
        self.end_standbys(idle).await;
    }

    async fn end_standbys(&self, some: Vec<Standby>) {
        for Standby { family, shell } in some {
            self.snapshots.end_shells(vec![shell]).await;
            self.end_family_if_empty(family.id).await;
        }
    }

    /// Brings what is ready nearer to what is wanted.
    async fn tend_standbys(&self) {
        let memory = blocking(|| Ok::<_, HostError>(host_memory())).await;
        let memory = memory.ok().flatten().unwrap_or(HostMemory {
            total: 0,
            available: u64::MAX,
        });
        let substrates = match self.all_substrates() {
            Ok(substrates) => substrates,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "nothing is made ready"
                );
                return;
            }
        };
        let now = now();
        let (mut surplus, mut changed) = (Vec::new(), BTreeSet::new());
        let all = Vec::from_iter(lock(&self.substrates.standbys.shelves).keys().cloned());
        for kept in all {
            let Some(substrate) = substrates.iter().find(|it| it.name == kept.of) else {
                continue;
            };
            let mut shelves = lock(&self.substrates.standbys.shelves);
            let under_way: u16 = shelves.values().map(|it| it.making).sum();
            let Some(shelf) = shelves.get_mut(&kept) else {
                continue;
            };
            shelf.aim(now, memory, guess(substrate.docked()));
            surplus.extend(shelf.take_surplus());
            let free = AT_ONCE.saturating_sub(under_way.into());
            let missing = shelf.target.saturating_sub(shelf.ready() + shelf.making);
            if now >= shelf.not_before {
                for _ in 0..free.min(missing.into()) {
                    shelf.making += 1;
                    self.add_standby(substrate.clone(), kept.size, shelf.makers.clone());
                }
            }
            if now.since(shelf.recorded) >= SELDOM {
                shelf.recorded = now;
                changed.insert(kept.of);
            }
        }
        for name in changed {
            if let Err(error) = self.record_standby(&name) {
                tracing::warn!(%name, error = &error as &dyn std::error::Error, "demand not recorded");
            }
        }
        self.end_standbys(surplus).await;
    }

    /// Makes one ready in the background.
    fn add_standby(&self, substrate: Substrate, size: Size, makers: Arc<UnderWay>) {
        let host = self.handle();
        tokio::spawn(async move {
            let Some(host) = host.upgrade() else { return };
            let kept = Kept {
                of: substrate.name.clone(),
                size,
            };
            let made = match makers.begin() {
                Some(_begun) => {
                    let id = VmId::random();
                    host.on_shelf(&kept, |shelf| {
                        shelf.ids.insert(id);
                    });
                    let made = host.make_standby(&substrate, size, id).await;
                    host.put_on_shelf(&kept, id, made)
                }
                // It is not to be kept ready any more.
                None => {
                    host.on_shelf(&kept, |shelf| shelf.making -= 1);
                    None
                }
            };
            host.end_standbys(made.into_iter().collect()).await;
            host.substrates.standbys.changed.notify_one();
        });
    }

    fn on_shelf(&self, kept: &Kept, change: impl FnOnce(&mut Shelf)) {
        if let Some(shelf) = lock(&self.substrates.standbys.shelves).get_mut(kept) {
            change(shelf);
        }
    }

    /// Puts one that was made where it can be taken; gives it back if nothing is kept any more.
    fn put_on_shelf(
        &self,
        kept: &Kept,
        id: VmId,
        made: Result<(Standby, ByteCount), HostError>,
    ) -> Option<Standby> {
        let mut shelves = lock(&self.substrates.standbys.shelves);
        let Some(shelf) = shelves.get_mut(kept) else {
            return made.ok().map(|(standby, _)| standby);
        };
        shelf.making -= 1;
        match made {
            Ok((standby, taken)) => {
                shelf.each = taken;
                shelf.problem = None;
                shelf.idle.push(standby);
            }
            Err(error) => {
                tracing::warn!(name = %kept.of, error = &error as &dyn std::error::Error, "none made ready");
                shelf.ids.remove(&id);
                shelf.problem = Some(error.to_api().message);
                shelf.not_before = now().after(AGAIN);
            }
        }
        None
    }

    /// Makes one, and says what memory it takes. If that fails, nothing of it is left.
    async fn make_standby(
        &self,
        substrate: &Substrate,
        size: Size,
        id: VmId,
    ) -> Result<(Standby, ByteCount), HostError> {
        let _under_way = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        let family = self.found_family(None).await?;
        let made = self.wake_standby((substrate, size), &family, id).await;
        if made.is_err() {
            self.end_family_if_empty(family.id).await;
        }
        let (shell, taken) = made?;
        Ok((Standby { family, shell }, taken))
    }

    async fn wake_standby(
        &self,
        (substrate, size): (&Substrate, Size),
        family: &FamilyRecord,
        id: VmId,
    ) -> Result<(WarmShell, ByteCount), HostError> {
        let of = self.open_substrate(substrate, size).await?;
        let subnet = network_of(family.number)?;
        let layout = of.layout(family, substrate.name.clone(), subnet, &Founders::default());
        let template = self.template_of(ForkId::random());
        self.snapshots.slice_over(&layout.disk, &template).await?;
        let shell = self
            .snapshots
            .shell_as(&layout, &template, id, |record| record)
            .await;
        self.parts.remove_files(&[template]);
        let WarmShell {
            record,
            shell,
            guest,
            calls,
        } = shell?;
        let woken = async {
            let machine = shell.load(&of.devices, of.growth()).await?;
            guest.hello(self.parts.options.to_boot()).await?;
            self.rehearse(&guest, &record, (subnet, of.growth()))
                .await?;
            machine.stop().await?;
            let pid = machine.record().process.pid;
            let taken = blocking(move || Ok::<_, HostError>(memory_of(pid))).await?;
            Ok::<_, HostError>((machine, taken))
        };
        match woken.await {
            Ok((machine, taken)) => {
                let shell = WarmShell {
                    record,
                    shell: Vessel::Woken(machine),
                    guest,
                    calls,
                };
                Ok((shell, taken.unwrap_or_else(|| guess(substrate.docked()))))
            }
            Err(error) => {
                self.snapshots.erase(&record).await;
                Err(error)
            }
        }
    }
}

impl Host {
    /// Gives a guest a passing identity: when it gets its own, the code and the pages that this takes are
    /// there, translated and unpacked. Hooks do not run, nor does user code.
    async fn rehearse(
        &self,
        guest: &Guest,
        record: &VmRecord,
        (subnet, growth): (Subnet, Option<Growth>),
    ) -> Result<(), HostError> {
        let passing = VmRecord {
            epoch: Epoch::random(),
            ..record.clone()
        };
        let address = subnet.founder();
        let rehearsed = Identify {
            identity: identity(&passing, address, None, address.ip),
            cloned: Some(Cloned {
                id: 0,
                processes: 1,
                vcpus: None,
                request: None,
            }),
            scrub: Vec::new(),
            growth,
        };
        guest.identify(rehearsed).await?;
        let problems = guest.identified(self.parts.options.to_identify()).await?;
        match problems.is_empty() {
            true => Ok(()),
            false => Err(HostError::Identity { problems }),
        }
    }
}

impl Standby {
    /// Checks that it stands still as it should: it may have ended meanwhile.
    async fn is_ready(&self) -> bool {
        match &self.shell.shell {
            Vessel::Woken(machine) => matches!(machine.run_state().await, Ok(RunState::Paused)),
            Vessel::Shell(_) => true,
        }
    }
}

fn now() -> Millis {
    Millis(u64::try_from(crate::since_1970().as_millis()).unwrap_or(u64::MAX))
}
