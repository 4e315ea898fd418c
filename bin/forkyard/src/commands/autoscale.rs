//! `autoscale`: servers that are clones of one VM, behind an HAProxy.
//!
//! ```text
//! users --> HAProxy --> a socket a slot --> daemon --> the server in a VM
//!             | show stat                      ^
//!             v                                | fork, rm
//!           View ------> Scaler (policy) ----> Action ----> set server … state
//! ```
//!
//! Clones have a lease of a minute, which is renewed: if this program dies, they are removed, and
//! HAProxy ends with it. A daemon that is away is waited for; HAProxy's checks say what still answers.
//! An HAProxy that ends, or a last server that is gone, ends this program, which removes the clones.

mod haproxy;
mod options;
mod stat;
mod told;
mod way;

pub use options::Autoscale;

use crate::args::Format;
use anyhow::{Context, bail};
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_autoscale::{
    Action, ActionOutcome, LoadSignal, LoadView, Scaler, ServerHealth, ServerSample, ServerSource,
    SlotNo, Stage,
};
use forkyard_types::{
    AtEnd, CloneResult, ErrorKind, ForkMode, ForkRequest, ForkResponse, Lifetime, ListedVm, Usage,
    VmId, VmState, VmUsage, VmView,
};
use haproxy::{Balancer, State};
use hyper::Method;
use options::Kind;
use serde::de::IgnoredAny;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use told::Told;
use way::Way;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Looks between two of the daemon's list of VMs.
const LIST: u32 = 4;
/// Looks between two renewals of leases.
const RENEW: u32 = 30;
/// Seconds for which a clone is there after this program was last heard of.
const LEASE_S: u32 = 60;
/// Time in which HAProxy answers what it has been asked, at the end.
const GRACE: Duration = Duration::from_secs(30);

/// Outcome of a task.
#[derive(Debug)]
enum Outcome {
    Forked(Vec<(SlotNo, Result<Box<VmView>, String>)>),
    Removed(SlotNo, VmId, Result<(), String>),
    /// A VM that had stopped by itself.
    Swept(VmId, Result<(), String>),
    /// Of leases that could not be renewed, one.
    Renewed(Option<String>),
    /// Servers that run no more, or why that is not known.
    Listed(Result<Vec<VmId>, String>),
}

/// The loop's own state.
struct Autoscaler<'a> {
    client: &'a Client,
    wanted: &'a Autoscale,
    scaler: Scaler<Box<dyn LoadSignal>>,
    balancer: Balancer,
    ways: BTreeMap<SlotNo, Way>,
    tasks: JoinSet<Outcome>,
    /// Clones that this program has made, and their names.
    made: BTreeMap<VmId, String>,
    /// VMs that were seen to be gone.
    gone: Vec<VmId>,
    used: Option<Usage>,
    told: Told,
    begun: Instant,
    looks: u32,
}

/// Keeps servers as many as their load takes, until it is interrupted.
pub async fn autoscale(
    client: &Client,
    format: Format,
    wanted: Autoscale,
) -> anyhow::Result<ExitCode> {
    let config = wanted.config()?;
    let path = of_vm(&wanted.vm, "");
    let vm: VmView = client.call(Method::GET, &path).await?;
    let source = match vm.state {
        VmState::Running | VmState::Starting | VmState::Paused => ServerSource::Server(vm.id),
        VmState::Checkpoint => ServerSource::Checkpoint(vm.id),
        VmState::Warm | VmState::Stopped | VmState::Ending => {
            bail!(
                "{} is {}: wanted a VM that runs, or a checkpoint",
                vm.name,
                vm.state
            )
        }
    };
    let of = |kind| signal(kind).context("cannot handle signals");
    let (mut interrupt, mut terminate) =
        (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
    let mut it = Autoscaler {
        client,
        wanted: &wanted,
        scaler: Scaler::new(config, wanted.measure(), source)?,
        balancer: Balancer::start(&wanted).await?,
        ways: BTreeMap::new(),
        tasks: JoinSet::new(),
        made: BTreeMap::new(),
        gone: Vec::new(),
        used: None,
        told: Told::new(format, &vm),
        begun: Instant::now(),
        looks: 0,
    };
    it.told.listening(wanted.listen);
    let worked = tokio::select! {
        worked = it.work(source) => worked.map(|never| match never {}),
        _ = interrupt.recv() => Ok(130),
        _ = terminate.recv() => Ok(143),
    };
    let hurry = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    it.end(hurry).await;
    worked.map(ExitCode::from)
}

impl Autoscaler<'_> {
    /// Looks and acts. Cancel-safe: what is under way is in `tasks`, what exists in `made`.
    async fn work(&mut self, source: ServerSource) -> anyhow::Result<Infallible> {
        if let ServerSource::Server(vm) = source {
            self.join(SlotNo(0), vm).await?;
        }
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => self.look().await?,
                Some(done) = self.tasks.join_next() => {
                    self.take_note(done.context("a task failed")?).await?;
                }
                error = self.balancer.ended() => return Err(error),
            }
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Measures, decides, and carries out.
    async fn look(&mut self) -> anyhow::Result<()> {
        if self.looks.is_multiple_of(LIST) {
            self.list();
        }
        if self.looks % RENEW == RENEW - 1 {
            self.renew();
        }
        let view = self.view().await?;
        for action in self.scaler.look(self.now(), &view) {
            self.carry_out(action).await?;
        }
        self.told.state(self.now(), &self.scaler, &view);
        self.looks = self.looks.wrapping_add(1);
        if self.scaler.stages().next().is_none() && !self.gone.is_empty() {
            bail!(
                "{} and all its clones are gone: nothing is left to fork",
                self.wanted.vm
            );
        }
        Ok(())
    }

    async fn view(&mut self) -> anyhow::Result<LoadView> {
        let stat = self.balancer.stat().await?;
        let cpus = match self.wanted.signal {
            Kind::Cpu => self.cpus().await,
            Kind::Queue | Kind::Latency => BTreeMap::new(),
        };
        let sample = |(slot, _, vm): (SlotNo, Stage, Option<VmId>)| {
            let (vm, row) = (vm?, stat.servers.get(&slot)?);
            let health = match (self.gone.contains(&vm), row.up) {
                (true, _) => ServerHealth::Gone,
                (false, true) => ServerHealth::Up,
                (false, false) => ServerHealth::Down,
            };
            let sample = ServerSample {
                health,
                open: row.open,
                capacity: self.wanted.concurrency.into(),
                cpu: cpus.get(&vm).copied(),
                // Of requests long ago, where there are none now.
                latency: Some(if row.rate > 0 {
                    row.latency
                } else {
                    Duration::ZERO
                }),
            };
            Some((slot, sample))
        };
        Ok(LoadView {
            servers: self.scaler.stages().filter_map(sample).collect(),
            waiting: stat.waiting,
        })
    }

    /// Part of its vCPUs' time that each VM has used since this was asked last.
    async fn cpus(&mut self) -> BTreeMap<VmId, f64> {
        let asked = self.client.call::<Usage>(Method::GET, "/v1/usage");
        // A daemon that is away has load unknown, not its servers gone.
        let Ok(Ok(usage)) = timeout(LOOK, asked).await else {
            return BTreeMap::new();
        };
        let before = self.used.replace(usage.clone());
        let Some(before) = before else {
            return BTreeMap::new();
        };
        let time = usage.at_us.saturating_sub(before.at_us).max(1);
        let part = |now: &VmUsage| {
            let was = before.vms.iter().find(|it| it.vm.id == now.vm.id)?;
            let used = now.cpu_us.saturating_sub(was.cpu_us);
            let most = time.saturating_mul(now.vm.vcpus.max(1).into());
            // At most an hour of microseconds: exact.
            #[allow(clippy::cast_precision_loss)]
            let part = used as f64 / most as f64;
            Some((now.vm.id, part.min(1.0)))
        };
        usage.vms.iter().filter_map(part).collect()
    }

    async fn carry_out(&mut self, action: Action) -> anyhow::Result<()> {
        let vm = |slot| self.scaler.stages().find(|(it, ..)| *it == slot)?.2;
        self.told.action(self.now(), &action, &self.made, vm);
        match action {
            Action::Fork { source, slots } => self.fork(source, slots),
            Action::Admit(slot) => self.balancer.set(slot, State::Ready).await?,
            Action::Starve(slot) => self.balancer.set(slot, State::Drain).await?,
            Action::Forget(slot) => self.close(slot).await?,
            Action::Remove { slot, vm, cause: _ } => {
                self.close(slot).await?;
                self.remove(slot, vm);
            }
        }
        Ok(())
    }

    /// Has HAProxy look for a server in a slot.
    async fn join(&mut self, slot: SlotNo, vm: VmId) -> anyhow::Result<()> {
        let folder = self.balancer.folder();
        let way = Way::open(self.client, folder, slot, vm, self.wanted.port)?;
        self.ways.insert(slot, way);
        self.balancer.set(slot, State::Checked).await
    }

    /// Has HAProxy forget the server in a slot.
    async fn close(&mut self, slot: SlotNo) -> anyhow::Result<()> {
        self.balancer.set(slot, State::Off).await?;
        self.ways.remove(&slot);
        Ok(())
    }

    fn fork(&mut self, source: VmId, slots: Vec<SlotNo>) {
        let client = self.client.clone();
        let request = ForkRequest {
            count: u16::try_from(slots.len()).unwrap_or(u16::MAX),
            mode: match self.wanted.live {
                true => ForkMode::Live,
                false => ForkMode::Fast,
            },
            scrub: Vec::new(),
            inherit_secrets: false,
            to: self.wanted.to.clone(),
            settle: false,
            spread: self.wanted.spread,
            watch: None,
        };
        self.tasks.spawn(async move {
            let path = of_vm(&source.to_string(), "fork");
            let clones = match client.post::<ForkResponse>(&path, &request).await {
                Ok(answer) => answer.clones,
                Err(error) => {
                    let error = told::words(&error);
                    return Outcome::Forked(
                        slots
                            .into_iter()
                            .map(|slot| (slot, Err(error.clone())))
                            .collect(),
                    );
                }
            };
            let mut clones = clones.into_iter();
            let made = slots.into_iter().map(|slot| {
                let clone = match clones.next() {
                    Some(CloneResult::Vm(vm)) => Ok(vm),
                    Some(CloneResult::Error(error)) => Err(error.to_string()),
                    None => Err("the daemon made fewer clones than it was asked for".to_owned()),
                };
                (slot, clone)
            });
            let made: Vec<_> = made.collect();
            let vms = made.iter().filter_map(|(_, vm)| vm.as_ref().ok());
            let leased = lease(&client, vms.map(|vm| vm.id).collect()).await;
            // Asked for again in time.
            drop(leased);
            Outcome::Forked(made)
        });
    }

    fn remove(&mut self, slot: SlotNo, vm: VmId) {
        let client = self.client.clone();
        self.tasks.spawn(async move {
            let removed = remove(&client, vm).await;
            Outcome::Removed(slot, vm, removed.map_err(|error| told::words(&error)))
        });
    }

    /// Removes clones that have stopped by themselves: their records and disks are still there.
    fn sweep(&mut self) {
        let leaving = |vm: &VmId| {
            let mut stages = self.scaler.stages();
            stages.any(|(_, stage, it)| it == Some(*vm) && stage == Stage::Removing)
        };
        let stopped = self.gone.iter().filter(|vm| self.made.contains_key(vm));
        let stopped: Vec<_> = stopped.filter(|vm| !leaving(vm)).copied().collect();
        for vm in stopped {
            let client = self.client.clone();
            self.tasks.spawn(async move {
                let removed = remove(&client, vm).await;
                Outcome::Swept(vm, removed.map_err(|error| told::words(&error)))
            });
        }
    }

    /// Leases of VMs that are no servers any more stay as they are.
    fn renew(&mut self) {
        let client = self.client.clone();
        let servers = self.scaler.stages().filter_map(|(.., vm)| vm);
        let vms = servers.filter(|vm| self.made.contains_key(vm)).collect();
        self.tasks
            .spawn(async move { Outcome::Renewed(lease(&client, vms).await) });
    }

    /// Asks which of the servers there are now still run.
    fn list(&mut self) {
        let client = self.client.clone();
        let known: Vec<_> = self.scaler.stages().filter_map(|(.., vm)| vm).collect();
        self.tasks.spawn(async move {
            let listed = client.call::<Vec<ListedVm>>(Method::GET, "/v1/vms").await;
            let listed = listed.map_err(|error| told::words(&error));
            Outcome::Listed(listed.map(|vms| {
                let over =
                    |it: &ListedVm| matches!(it.vm.state, VmState::Stopped | VmState::Ending);
                let runs = |id: &VmId| vms.iter().any(|it| it.vm.id == *id && !over(it));
                known.into_iter().filter(|id| !runs(id)).collect()
            }))
        });
    }

    async fn take_note(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        let now = self.now();
        match outcome {
            Outcome::Forked(clones) => {
                // First of all: what exists is known, and removed in the end.
                for vm in clones.iter().filter_map(|(_, vm)| vm.as_ref().ok()) {
                    self.made.insert(vm.id, vm.name.to_string());
                }
                for (slot, vm) in clones {
                    let done = match vm {
                        Ok(vm) => {
                            self.join(slot, vm.id).await?;
                            ActionOutcome::Forked { slot, vm: vm.id }
                        }
                        Err(error) => {
                            self.told.trouble(&format!("a clone failed: {error}"));
                            ActionOutcome::NotForked { slot }
                        }
                    };
                    self.scaler.done(now, done);
                }
            }
            Outcome::Removed(slot, vm, Ok(())) => {
                self.made.remove(&vm);
                self.scaler.done(now, ActionOutcome::Removed { slot });
            }
            Outcome::Removed(slot, _, Err(error)) => {
                self.told
                    .trouble(&format!("a clone was not removed: {error}"));
                self.scaler.done(now, ActionOutcome::NotRemoved { slot });
            }
            Outcome::Swept(vm, Ok(())) => {
                self.made.remove(&vm);
            }
            Outcome::Swept(_, Err(error)) => {
                self.told.trouble(&format!(
                    "a clone that has stopped was not removed: {error}"
                ));
            }
            Outcome::Renewed(None) => {}
            Outcome::Renewed(Some(error)) => self
                .told
                .trouble(&format!("a lease was not renewed: {error}")),
            Outcome::Listed(Ok(gone)) => {
                self.gone = gone;
                self.sweep();
            }
            Outcome::Listed(Err(error)) => self.told.trouble(&error),
        }
        Ok(())
    }

    /// Has HAProxy answer what it has been asked, unless `hurry` comes first, and removes all clones.
    async fn end(mut self, hurry: impl Future<Output = ()>) {
        self.told.ending();
        let stopped = timeout(GRACE, self.balancer.stop());
        tokio::select! {
            _ = stopped => {}
            () = hurry => {}
        }
        self.ways.clear();
        // A fork that is under way has clones in the end.
        while let Some(done) = self.tasks.join_next().await {
            if let Ok(Outcome::Forked(clones)) = done {
                let made = clones.into_iter().filter_map(|(_, vm)| vm.ok());
                self.made
                    .extend(made.map(|vm| (vm.id, vm.name.to_string())));
            }
        }
        let mut removals = JoinSet::new();
        for (vm, name) in std::mem::take(&mut self.made) {
            let client = self.client.clone();
            removals.spawn(async move { (name, remove(&client, vm).await) });
        }
        while let Some(done) = removals.join_next().await {
            if let Ok((name, Err(error))) = done {
                let error = told::words(&error);
                self.told
                    .trouble(&format!("{name} was not removed: {error}"));
            }
        }
    }
}

/// Removes a VM; one that is not there is removed.
async fn remove(client: &Client, vm: VmId) -> Result<(), ClientError> {
    let path = of_vm(&vm.to_string(), "");
    match client.call::<IgnoredAny>(Method::DELETE, &path).await {
        Ok(_) => Ok(()),
        Err(ClientError::Refused(refused)) if refused.kind == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Has clones be there for a while from now on; what went wrong with one of them, if anything did.
async fn lease(client: &Client, vms: Vec<VmId>) -> Option<String> {
    let mut trouble = None;
    for vm in vms {
        let lifetime = Lifetime {
            ttl_s: LEASE_S,
            action: Some(AtEnd::Rm),
        };
        let path = of_vm(&vm.to_string(), "lifetime");
        match client.post::<IgnoredAny>(&path, &lifetime).await {
            Ok(_) => {}
            Err(ClientError::Refused(refused)) if refused.kind == ErrorKind::NotFound => {}
            Err(error) => trouble = Some(told::words(&error)),
        }
    }
    trouble
}
