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

use super::{Images, volume_come::Volumes};
use crate::{
    Host, HostError,
    remote::{Coming, received, unpacked},
};
use forkyard_network::Ports;
use forkyard_overlay::PlaceGeneration;
use forkyard_pager::{Over, PagerError, PagerRefusal, Run};
use forkyard_records::{Birth, RecordsError, VmRecord};
use forkyard_snapshot::{Disk, Layout, WarmShell};
use forkyard_types::{
    Delta, ForkId, Handout, ImageId, PeerExpect, PeerMigrated, PeerMigration, PeerPrepare,
    PeerRound, RemotePages, Terms, VmName,
};
use forkyard_vm::lock;
use forkyard_volume_disks::frozen_at;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::sleep};
use tracing::{Instrument as _, debug_span, instrument};

/// Between two looks whether the last pages have come.
const SOON: Duration = Duration::from_millis(2);

/// VMs that are on their way here.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub(super) stages: Mutex<BTreeMap<ForkId, Stage>>,
    /// Told when one has landed, or was given up.
    pub(super) over: Notify,
    pub volumes: Volumes,
    pub commands: super::commands::Commands,
    pub(super) former: super::way_back::Former,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The machine is being made, or pages of a round arrive.
    Preparing {
        /// True if the migration was given up meanwhile.
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
    /// Memory and disk as far as they were sent.
    pub here: Images,
    /// Volumes that it writes: its root disk first, if that is one.
    pub written: Vec<VmName>,
    /// Ports of this host that will lead to it.
    pub ports: Ports,
    pub is_paused: bool,
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
            PeerMigration::Cpu(asked) => self.tell_cpu(&asked),
            PeerMigration::Kept(kept) => Ok(self.kept_of(&kept)),
            PeerMigration::Prepare(prepare) => self.prepare_for(*prepare).await,
            PeerMigration::Round(round) => self.take_round(round).await,
            PeerMigration::Expect(expect) => self.expect(expect).await,
            PeerMigration::Land(land) => self.land(*land).await,
            PeerMigration::LandTogether(lands) => self.land_together(lands).await,
            PeerMigration::End(end) => Ok(self.end_migration(end).await),
        }
    }

    #[instrument(name = "expect", skip_all, fields(vm = %prepare.first.parent.name))]
    async fn prepare_for(&self, prepare: PeerPrepare) -> Result<PeerMigrated, HostError> {
        let migration = prepare.first.fork;
        match lock(&self.incoming.stages).entry(migration) {
            Entry::Occupied(_) => {
                return Err(HostError::Conflict("this migration is under way".into()));
            }
            Entry::Vacant(new) => new.insert(Stage::Preparing { ended: false }),
        };
        let made = self.make_ready(prepare).await;
        let waiting = match made {
            Ok(waiting) => waiting,
            Err(error) => {
                lock(&self.incoming.stages).remove(&migration);
                self.incoming.over.notify_waiters();
                self.give_up_volumes(migration).await;
                return Err(error);
            }
        };
        let waiting = self.wait_on(migration, waiting);
        self.incoming.over.notify_waiters();
        match waiting {
            Some(waiting) => {
                self.dispose(waiting).await;
                self.give_up_volumes(migration).await;
                self.over_with(migration);
                Err(HostError::Conflict("the migration was given up".into()))
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
            over,
            vm,
            memory,
            disk,
            volume,
            data,
        } = prepare;
        let migration = first.fork;
        self.check(&first)?;
        // Nothing else takes them while it comes.
        let ports = self.parts.network.take_ports(&vm.publish)?;
        let data = self.arriving_data(migration, &data)?;
        crate::remote::check_hosts(&first.family.hosts)?;
        crate::secrets::check(&first.parent.secrets)?;
        if self.parts.registry().get(first.parent.id).is_some() {
            return Err(HostError::Conflict(format!(
                "{} is here",
                first.parent.name
            )));
        }
        // Its record takes the name when it lands: that is late to be told of.
        if self
            .parts
            .registry()
            .find(first.parent.name.as_str())
            .is_ok()
        {
            let name = first.parent.name.to_string();
            return Err(RecordsError::NameTaken { name }.into());
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
        for delta in &over {
            self.check_below(&first, delta.over)?;
        }
        let mut coming = self.coming_from(&first, all.iter().copied())?;
        over.iter().for_each(|delta| coming.lie_over(delta.over));
        let devices = unpacked(&first.devices, &[])?;
        let (terms, is_paused) = (vm.terms.clone(), vm.is_paused);
        let written = data
            .iter()
            .filter_map(|disk| Some(disk.written()?.0.clone()));
        let written = volume.iter().cloned().chain(written).collect();
        self.join_family(&first.family)?;
        let made = async {
            let fetched = self.fetch_first(&coming, &first, &over);
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
            let root = match &volume {
                Some(volume) => Some(self.open_arriving(migration, volume).await?),
                None => None,
            };
            let is_on_volume = root.is_some();
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
                chain: match &root {
                    Some(_) => Vec::new(),
                    None => shell.chain,
                },
                volume: root,
                publish: vm.publish,
                data,
                ..shell
            };
            let template = self
                .parts
                .folders
                .all_disks()
                .join(format!("{memory}.template"));
            if !is_on_volume {
                self.snapshots.slice_over(&layout.disk, &template).await?;
            }
            let shell = self
                .snapshots
                .shell_as(&layout, &template, first.parent.id, dress)
                .await;
            self.parts.remove_files(&[template]);
            let shell = shell?;
            let ready = async {
                let address = forkyard_vm::address(layout.of.network, &shell.record);
                self.parts
                    .network
                    .admit(&[(shell.record.id, address)])
                    .await?;
                self.all_here_or_given_up(migration, &first.parent.name, here)
                    .await
            };
            match ready.await {
                Ok(()) => Ok((shell, layout)),
                Err(error) => {
                    self.snapshots.end_shells(vec![shell]).await;
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
                written,
                ports,
                is_paused,
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

    /// Has a first copy come: what of it is not told by its differences, all of it.
    async fn fetch_first(
        &self,
        coming: &Coming,
        first: &Handout,
        over: &[Delta],
    ) -> Result<(), HostError> {
        for RemotePages { image, pages, .. } in [first.memory].into_iter().chain(first.disk) {
            match over.iter().find(|delta| delta.image == image) {
                Some(delta) => self.fetch_over(coming, delta, delta.over).await?,
                None => self.fetch_one(coming, (image, pages), None).await?,
            }
        }
        Ok(())
    }

    /// Takes what waits out, if it does: for a round it is put back.
    pub(super) fn take_waiting(
        &self,
        migration: ForkId,
        then: Stage,
    ) -> Result<Box<Waiting>, HostError> {
        let mut stages = lock(&self.incoming.stages);
        match stages.remove(&migration) {
            Some(Stage::Waiting(waiting)) => {
                stages.insert(migration, then);
                Ok(waiting)
            }
            other => {
                if let Some(other) = other {
                    stages.insert(migration, other);
                }
                Err(HostError::Conflict(
                    "no machine waits for this migration here".into(),
                ))
            }
        }
    }

    /// Has frames for a VM wait at its port, which its host is about to pass on.
    async fn expect(&self, expect: PeerExpect) -> Result<PeerMigrated, HostError> {
        let found = match lock(&self.incoming.stages).get_mut(&expect.migration) {
            Some(Stage::Waiting(waiting)) => {
                waiting.heard = Instant::now();
                let record = &waiting.shell.record;
                Some((record.family, record.member, record.id))
            }
            Some(Stage::Preparing { .. } | Stage::Landing) | None => None,
        };
        let Some(of) = found else {
            return Err(HostError::Conflict(
                "no machine waits for this migration here".into(),
            ));
        };
        self.expect_frames(of, expect.from, PlaceGeneration(expect.generation))
            .await?;
        Ok(PeerMigrated::Here)
    }

    async fn take_round(&self, round: PeerRound) -> Result<PeerMigrated, HostError> {
        let preparing = Stage::Preparing { ended: false };
        let mut waiting = self.take_waiting(round.migration, preparing)?;
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
            self.all_here_or_given_up(round.migration, &name, now).await
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
        if let Some(waiting) = self.wait_on(round.migration, *waiting) {
            self.dispose(waiting).await;
            self.give_up_volumes(round.migration).await;
            self.over_with(round.migration);
            return Err(HostError::Conflict("the migration was given up".into()));
        }
        self.incoming.over.notify_waiters();
        fetched.map(|()| PeerMigrated::Here)
    }

    /// Has a machine wait, unless its migration was given up meanwhile: then it is the caller's, and
    /// the stage is known until that says [`Self::over_with`].
    fn wait_on(&self, migration: ForkId, waiting: Waiting) -> Option<Waiting> {
        let mut stages = lock(&self.incoming.stages);
        match stages.get_mut(&migration) {
            Some(stage @ Stage::Preparing { ended: false }) => {
                *stage = Stage::Waiting(Box::new(waiting));
                None
            }
            Some(Stage::Preparing { ended: true } | Stage::Waiting(_) | Stage::Landing) | None => {
                Some(waiting)
            }
        }
    }

    pub(super) fn over_with(&self, migration: ForkId) {
        lock(&self.incoming.stages).remove(&migration);
        self.incoming.over.notify_waiters();
    }

    /// Waits until all of these images has come, or the host that the VM leaves has given it up, and
    /// may have withdrawn them.
    async fn all_here_or_given_up(
        &self,
        migration: ForkId,
        name: &VmName,
        images: Images,
    ) -> Result<(), HostError> {
        let given_up = async {
            while !self.incoming.is_given_up(migration) {
                sleep(SOON).await;
            }
        };
        tokio::select! {
            come = self.all_here(name, images.all()) => come,
            () = given_up => Err(HostError::Conflict("the migration was given up".into())),
        }
    }

    /// Fetches an image by what it differs in from one that is here.
    pub(super) async fn fetch_over(
        &self,
        coming: &Coming,
        delta: &Delta,
        here: ImageId,
    ) -> Result<(), HostError> {
        if delta.over != here {
            return Err(HostError::Conflict(format!(
                "image {} lies over one that is not what was sent last",
                delta.image
            )));
        }
        let changed = delta.changed.unpack();
        let changed = changed.map_err(|error| HostError::Invalid(error.to_string()))?;
        let changed: Vec<Run> = changed.iter().map(crate::remote::run).collect();
        let arrival = self
            .parts
            .pager_call(move |pager| pager.arrival(here))
            .await?;
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
                let found = self.parts.pager_call(move |pager| Ok(pager.arrival(image)));
                let arrival = match found.await? {
                    Err(PagerError::Refused(PagerRefusal::UnknownImage { .. })) => {
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
