//! A VM that comes from another host, on the host that it comes to.
//!
//! ```text
//! Preparing --all of a first copy is here--> Waiting --Land--> Landing --recorded--> a VM
//!     |                                         |                 |
//!     `-----------------End, or fails-----------'------fails------'--> nothing is left of it
//! ```
//!
//! A machine that waits is recorded as a shell: a daemon that takes over ends it, and knows of no
//! migration. So `End` of one that is not known is answered by whether the VM is here.

use super::{Images, volume::Volumes};
use crate::{
    Host, HostError,
    remote::{Coming, received, unpacked},
    snapshot::{Disk, Layout, WarmShell},
    vm::lock,
    volumes::frozen_at,
};
use forkyard_pager::{Over, PagerError, Refusal, Run};
use forkyard_store::{Birth, StoreError, VmRecord};
use forkyard_types::{
    Delta, ForkId, ImageId, Landed, PeerEndMigration, PeerLand, PeerMigrated, PeerMigration,
    PeerPrepare, PeerRound, Terms, VmName, VmView,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{Instrument as _, debug_span, instrument};

/// Between two looks whether the last pages have come.
const SOON: Duration = Duration::from_millis(2);
/// A migration of which nothing was heard for so long is given up.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Between two looks for those.
const LOOK: Duration = Duration::from_secs(30);

/// VMs that are on their way here.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    stages: Mutex<BTreeMap<ForkId, Stage>>,
    /// Told when one has landed, or was given up.
    over: Notify,
    pub volumes: Volumes,
}

#[derive(Debug)]
enum Stage {
    Preparing {
        /// It was given up meanwhile.
        ended: bool,
    },
    Waiting(Box<Waiting>),
    Landing,
}

/// A machine that waits for the rest of its VM.
#[derive(Debug)]
pub(super) struct Waiting {
    pub shell: WarmShell,
    pub layout: Layout,
    pub coming: Coming,
    pub terms: Terms,
    /// State of its devices when the first copy was taken.
    pub devices: Vec<u8>,
    /// Its memory and disk as far as they were sent.
    pub here: Images,
    /// The volume that is its disk, if one is.
    pub volume: Option<VmName>,
    pub heard: Instant,
}

impl Incoming {
    /// A machine is being made that is of no use any more.
    fn is_given_up(&self, migration: ForkId) -> bool {
        let stages = lock(&self.stages);
        matches!(
            stages.get(&migration),
            Some(Stage::Preparing { ended: true })
        )
    }

    /// A machine waits for this migration, or is being made.
    pub(super) fn knows(&self, migration: ForkId) -> bool {
        lock(&self.stages).contains_key(&migration)
    }
}

impl Host {
    /// Takes a step of a VM's way here. Not cancel-safe: run it on a task of its own.
    pub async fn receive(&self, step: PeerMigration) -> Result<PeerMigrated, HostError> {
        match step {
            PeerMigration::Volume(volume) => self.expect_volume(volume).await,
            PeerMigration::Prepare(prepare) => self.prepare_for(*prepare).await,
            PeerMigration::Round(round) => self.take_round(round).await,
            PeerMigration::Land(land) => self.land(*land).await,
            PeerMigration::End(end) => Ok(self.end_migration(end).await),
        }
    }

    #[instrument(name = "expect", skip_all, fields(vm = %prepare.first.parent.name))]
    async fn prepare_for(&self, prepare: PeerPrepare) -> Result<PeerMigrated, HostError> {
        let migration = prepare.first.fork;
        match lock(&self.incoming.stages).entry(migration) {
            Entry::Occupied(_) => {
                return Err(HostError::Invalid("this migration is under way".into()));
            }
            Entry::Vacant(new) => new.insert(Stage::Preparing { ended: false }),
        };
        let made = self.make_ready(prepare).await;
        let waiting = match made {
            Ok(waiting) => waiting,
            Err(error) => {
                lock(&self.incoming.stages).remove(&migration);
                self.incoming.over.notify_waiters();
                self.give_up_volume(migration).await;
                return Err(error);
            }
        };
        let waiting = {
            let mut stages = lock(&self.incoming.stages);
            match stages.get_mut(&migration) {
                Some(stage @ Stage::Preparing { ended: false }) => {
                    *stage = Stage::Waiting(Box::new(waiting));
                    None
                }
                Some(_) | None => {
                    stages.remove(&migration);
                    Some(waiting)
                }
            }
        };
        self.incoming.over.notify_waiters();
        match waiting {
            Some(waiting) => {
                self.dispose(waiting).await;
                self.give_up_volume(migration).await;
                Err(HostError::Invalid("the migration was given up".into()))
            }
            None => {
                self.forget_later(migration);
                Ok(PeerMigrated::Here)
            }
        }
    }

    /// Fetches a first copy and makes a machine over what will be the last.
    async fn make_ready(&self, prepare: PeerPrepare) -> Result<Waiting, HostError> {
        let PeerPrepare {
            first,
            vm,
            memory,
            disk,
            volume,
        } = prepare;
        let migration = first.fork;
        self.check(&first)?;
        crate::remote::check_hosts(&first.family.hosts)?;
        crate::secrets::check(&first.parent.secrets)?;
        if self.registry().get(first.parent.id).is_some() {
            return Err(HostError::Invalid(format!("{} is here", first.parent.name)));
        }
        // Its record takes the name when it lands: that is late to be told of.
        if self.registry().find(first.parent.name.as_str()).is_ok() {
            let name = first.parent.name.to_string();
            return Err(StoreError::NameTaken { name }.into());
        }
        let disks = match (first.disk, disk, &volume) {
            (Some(first), Some(last), None) => Some((first, last)),
            (None, None, Some(_)) => None,
            _ => return Err(HostError::Invalid("it has no disk, or two".into())),
        };
        let here = Images {
            memory: first.memory.image,
            disk: first.disk.map(|disk| disk.image),
        };
        let last = Images { memory, disk };
        let all: Vec<_> = here.all().chain(last.all()).collect();
        let coming = self.coming_from(&first, all.iter().copied())?;
        let devices = unpacked(&first.devices, &[])?;
        let terms = vm.terms.clone();
        self.let_in(&first.family)?;
        let made = async {
            let fetched = self.fetch(&first, true);
            fetched.instrument(debug_span!("fetch")).await?;
            let disks = disks.map(|(first, last)| (last, first.pages));
            for last in [(memory, first.memory.pages)].into_iter().chain(disks) {
                self.promise_one(&coming, last).await?;
            }
            let mut layout = received(&first, Vec::new())?.layout;
            layout.memory = memory;
            layout.disk = match &volume {
                Some(volume) => Disk::Volume {
                    slices: Vec::new(),
                    at: frozen_at(volume, memory),
                },
                None => Disk::Slices {
                    slices: Vec::new(),
                    base: disk,
                },
            };
            self.need_network(&layout).await?;
            let written = match &volume {
                Some(volume) => Some(self.open_arriving(migration, volume).await?),
                None => None,
            };
            let is_on_volume = written.is_some();
            let dress = |shell: VmRecord| VmRecord {
                name: first.parent.name.clone(),
                member: first.parent.member,
                birth: vm.parent.map(|parent| Birth {
                    parent,
                    fork: vm.fork,
                    granted: first.machine.granted,
                }),
                generation: first.parent.generation,
                epoch: vm.epoch,
                created: vm.created,
                warm: vm.warm,
                notes: vm.notes,
                // It writes its volume itself, and no slice over it.
                chain: match &written {
                    Some(_) => Vec::new(),
                    None => shell.chain,
                },
                volume: written,
                ..shell
            };
            let template = self.folders.all_disks().join(format!("{memory}.template"));
            if !is_on_volume {
                self.slice_over(&layout.disk, &template).await?;
            }
            let shell = self
                .shell_as(&layout, &template, first.parent.id, dress)
                .await;
            self.remove_files(&[template]);
            let shell = shell?;
            let ready = async {
                let address = crate::vm::address(layout.of.network, &shell.record);
                self.network.admit(&[(shell.record.id, address)]).await?;
                // Its host may have given it up, and withdrawn them.
                let given_up = async {
                    while !self.incoming.is_given_up(migration) {
                        sleep(SOON).await;
                    }
                };
                tokio::select! {
                    come = self.all_here(&first.parent.name, here.all()) => come,
                    () = given_up => Err(HostError::Invalid("the migration was given up".into())),
                }
            };
            match ready.await {
                Ok(()) => Ok((shell, layout)),
                Err(error) => {
                    self.end_shells(vec![shell]).await;
                    Err(error)
                }
            }
        };
        match made.await {
            Ok((shell, layout)) => Ok(Waiting {
                shell,
                layout,
                coming,
                terms,
                devices,
                here,
                volume,
                heard: Instant::now(),
            }),
            Err(error) => {
                let family = first.family.id;
                self.forget_images(coming, &all).await;
                self.end_family_if_empty(family).await;
                Err(error)
            }
        }
    }

    /// Takes what waits out, if it does: for a round it is put back.
    fn take_waiting(&self, migration: ForkId) -> Result<Box<Waiting>, HostError> {
        let mut stages = lock(&self.incoming.stages);
        match stages.remove(&migration) {
            Some(Stage::Waiting(waiting)) => {
                stages.insert(migration, Stage::Landing);
                Ok(waiting)
            }
            other => {
                if let Some(other) = other {
                    stages.insert(migration, other);
                }
                Err(HostError::Invalid(
                    "no machine waits for this migration here".into(),
                ))
            }
        }
    }

    async fn take_round(&self, round: PeerRound) -> Result<PeerMigrated, HostError> {
        let mut waiting = self.take_waiting(round.migration)?;
        let before = waiting.here.memory;
        let image = round.memory.image;
        let now = Images {
            memory: image,
            ..waiting.here
        };
        let fetched = async {
            self.fetch_over(&waiting.coming, &round.memory, before)
                .await?;
            let name = waiting.layout.of.name.clone();
            self.all_here(&name, now.all()).await
        };
        let fetched = fetched.await;
        match &fetched {
            Ok(()) => {
                waiting.here = now;
                waiting.coming.add(image);
                self.forget_image(&mut waiting.coming, before).await;
            }
            Err(_) => self.forget_image(&mut waiting.coming, image).await,
        }
        waiting.heard = Instant::now();
        lock(&self.incoming.stages).insert(round.migration, Stage::Waiting(waiting));
        self.incoming.over.notify_waiters();
        fetched.map(|()| PeerMigrated::Here)
    }

    #[instrument(name = "land", skip_all, fields(migration = %land.migration))]
    async fn land(&self, land: PeerLand) -> Result<PeerMigrated, HostError> {
        let begun = Instant::now();
        let waiting = *self.take_waiting(land.migration)?;
        let landed = self.let_go_on(waiting, &land, begun).await;
        lock(&self.incoming.stages).remove(&land.migration);
        self.incoming.over.notify_waiters();
        landed.map(|landed| PeerMigrated::Landed(Box::new(landed)))
    }

    /// Gives a migration up, unless its VM is here. Once this says so, it never comes.
    async fn end_migration(&self, end: PeerEndMigration) -> PeerMigrated {
        if self.end_stage(end.migration).await {
            return PeerMigrated::Ended;
        }
        let landed = self.is_landed(end);
        if let PeerMigrated::Ended = landed {
            self.give_up_volume(end.migration).await;
        }
        landed
    }

    /// Ends a migration that has not landed; false if none is under way. One that lands is waited
    /// for.
    async fn end_stage(&self, migration: ForkId) -> bool {
        loop {
            let over = self.incoming.over.notified();
            let mut over = std::pin::pin!(over);
            // Before it is looked: what happens from here on is heard.
            over.as_mut().enable();
            let stage = {
                let mut stages = lock(&self.incoming.stages);
                let stage = stages.remove(&migration);
                match &stage {
                    Some(Stage::Preparing { .. }) => {
                        stages.insert(migration, Stage::Preparing { ended: true });
                    }
                    Some(Stage::Landing) => {
                        stages.insert(migration, Stage::Landing);
                    }
                    Some(Stage::Waiting(_)) | None => {}
                }
                stage
            };
            match stage {
                Some(Stage::Landing) => {}
                // Whoever prepares it gives it up.
                Some(Stage::Preparing { .. }) => return true,
                Some(Stage::Waiting(waiting)) => {
                    self.dispose(*waiting).await;
                    self.give_up_volume(migration).await;
                    return true;
                }
                None => return false,
            }
            over.await;
        }
    }

    /// Ends an earlier migration of a volume whose host has begun another: nothing more is heard of
    /// it. Waits until nothing of it is left, but not for ever.
    pub(crate) async fn end_former(&self, migration: ForkId) {
        let ended = async {
            loop {
                let mut over = std::pin::pin!(self.incoming.over.notified());
                over.as_mut().enable();
                if !self.end_stage(migration).await {
                    return self.give_up_volume(migration).await;
                }
                if self.incoming.knows(migration) {
                    over.await;
                }
            }
        };
        if timeout(self.options.patience, ended).await.is_err() {
            tracing::warn!(%migration, "not ended yet, and another begins");
        }
    }

    /// What is recorded decides: the VM may have gone on from here since, or have been removed.
    fn is_landed(&self, PeerEndMigration { migration, vm }: PeerEndMigration) -> PeerMigrated {
        let here = self.registry().get(vm);
        let landed = match self.store.landed(migration) {
            Ok(landed) => landed,
            Err(error) => {
                tracing::error!(%migration, error = &error as &dyn std::error::Error, "not known whether it landed");
                None
            }
        };
        match (here, landed) {
            (Some(vm), Some(_)) => landed_now(self.view_of(&vm)),
            (None, Some(view)) => landed_now(view),
            (Some(vm), None) if lock(&vm.moving).is_none() => landed_now(self.view_of(&vm)),
            (Some(_) | None, None) => PeerMigrated::Ended,
        }
    }

    /// Ends a machine that waits, and all that came for it.
    async fn dispose(&self, waiting: Waiting) {
        let Waiting {
            shell,
            layout,
            coming,
            here,
            ..
        } = waiting;
        let last = [Some(layout.memory), layout.disk.base()];
        self.end_shells(vec![shell]).await;
        let images: Vec<_> = here.all().chain(last.into_iter().flatten()).collect();
        self.forget_images(coming, &images).await;
        self.end_family_if_empty(layout.of.family).await;
    }

    /// Ends all machines that wait: the daemon ends.
    pub(crate) async fn end_incoming(&self) {
        let stages = std::mem::take(&mut *lock(&self.incoming.stages));
        for stage in stages.into_values() {
            if let Stage::Waiting(waiting) = stage {
                self.dispose(*waiting).await;
            }
        }
    }

    /// Gives a migration up of which nothing more is heard.
    fn forget_later(&self, migration: ForkId) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                let forgotten = {
                    let mut stages = lock(&host.incoming.stages);
                    match stages.get(&migration) {
                        None => return,
                        Some(Stage::Waiting(waiting)) if waiting.heard.elapsed() > FORGOTTEN => {
                            stages.remove(&migration)
                        }
                        Some(Stage::Waiting(_) | Stage::Preparing { .. } | Stage::Landing) => None,
                    }
                };
                if let Some(Stage::Waiting(waiting)) = forgotten {
                    tracing::warn!(%migration, "given up: nothing was heard of it");
                    host.dispose(*waiting).await;
                    return host.give_up_volume(migration).await;
                }
            }
        });
    }

    /// Fetches an image by what it differs in from one that is here.
    pub(super) async fn fetch_over(
        &self,
        coming: &Coming,
        delta: &Delta,
        here: ImageId,
    ) -> Result<(), HostError> {
        if delta.over != here {
            return Err(HostError::Invalid(format!(
                "image {} lies over one that is not what was sent last",
                delta.image
            )));
        }
        let changed = delta.changed.unpack();
        let changed = changed.map_err(|error| HostError::Invalid(error.to_string()))?;
        let changed: Vec<Run> = changed.iter().map(crate::remote::run).collect();
        let arrival = self.pager_call(move |pager| pager.arrival(here)).await?;
        let over = Some(Over {
            image: here,
            changed,
        });
        self.fetch_one(coming, (delta.image, arrival.pages), over)
            .await
    }

    /// Waits until all of two images has come.
    pub(super) async fn all_here(
        &self,
        of: &VmName,
        images: impl Iterator<Item = ImageId>,
    ) -> Result<(), HostError> {
        for image in images {
            loop {
                let found = self.pager_call(move |pager| Ok(pager.arrival(image)));
                let arrival = match found.await? {
                    Err(PagerError::Refused(Refusal::UnknownImage { .. })) => {
                        return Err(HostError::Lost {
                            vm: of.clone(),
                            why: "its pages were given up".into(),
                        });
                    }
                    found => found?,
                };
                // As an image of its own, which the next may lie over.
                if arrival.settled {
                    break;
                }
                if !arrival.alive {
                    return Err(HostError::Lost {
                        vm: of.clone(),
                        why: "the host that it leaves is silent".into(),
                    });
                }
                sleep(SOON).await;
            }
        }
        Ok(())
    }
}

fn landed_now(vm: VmView) -> PeerMigrated {
    PeerMigrated::Landed(Box::new(Landed { vm, took_us: 0 }))
}
