//! The agent: looks, decides, has it done, over and over.

use crate::{
    census::{Census, How},
    exempt::Exempt,
    gate::Passage,
    group::Group,
    guard::Guard,
    kernel,
    limits::{Births, Quota},
    place,
    settings::{self, Settings},
    status,
    stopper::Stopper,
    tasks::{self, Task, TaskId},
    ticker::Ticker,
    wake::{self, Wake},
};
use anyhow::{Context, bail};
use clap::Args;
use forkyard_friendly::{
    Chooser, Config, Congestion, Controller, Counters, DemandState, Monitor, New, PeriodReport,
    Pulse, PulseStep, RateMeans, Spacing, ThreadState, Unit, Wants, turns,
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

/// `run`
#[derive(Debug, Args)]
pub struct Run {
    /// The group: its folder below /sys/fs/cgroup, or its name.
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Constants; looked at again in every period.
    #[arg(long, default_value = settings::PLACE)]
    pub config: PathBuf,
    /// File that tells what is seen and done.
    #[arg(long, default_value = status::PLACE)]
    pub status: PathBuf,
    /// A group's folder that this program goes to itself, made if missing: what
    /// limits the one that it adapts is not to limit it. `stop` removes it.
    #[arg(long)]
    pub home: Option<PathBuf>,
}

/// Adapts a group until told to end.
pub fn run(wanted: &Run) -> anyhow::Result<()> {
    let (tell, told) = wake::listen()?;
    let group = Group::find(&wanted.cgroup)?;
    let (settings, config) = Settings::read(&wanted.config, place::signals(Some(&group)))?;
    if let Some(home) = &wanted.home {
        go_home(home).with_context(|| format!("cannot go to {}", home.display()))?;
    }
    let lock = File::open(group.path.join("cgroup.procs")).context("cannot open the group")?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!(
            "another forkyard-friendly adapts {} already",
            group.path.display()
        ),
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the group"),
    }
    // Of one that was killed the guard may be at work still: what it puts back is what was
    // there, and what it takes away is not this one's.
    let undone = File::open(&group.path).context("cannot open the group's folder")?;
    undone.lock().context("cannot lock the group's folder")?;
    let guard = Guard::start(undone).context("cannot start a guard")?;
    let mut agent = Agent::new(group, guard, config, settings, tell)?;
    agent.home.clone_from(&wanted.home);
    status::write(&wanted.status, &agent.status(None))?;
    println!("ready");
    let ended = agent.live(&told, &wanted.status);
    // The guard undoes everything before the lock goes.
    drop(agent);
    let _ = fs::remove_file(&wanted.status);
    drop(lock);
    ended
}

/// All of this process, and what it starts.
fn go_home(home: &Path) -> io::Result<()> {
    match fs::create_dir(home) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(home.join("cgroup.procs"), "0")
}

/// Parts that decide.
struct Policy {
    config: Config,
    monitor: Monitor,
    controller: Controller,
    chooser: Chooser<TaskId>,
    pulse: Pulse,
}

/// The CPUs on which threads of these ran, or would.
fn run_on(members: &[Task]) -> impl Iterator<Item = u32> + Clone {
    let run = members.iter().filter(|task| task.runnable);
    run.map(|task| task.cpu)
}

struct Agent {
    policy: Policy,
    settings: Settings,
    group: Group,
    home: Option<PathBuf>,
    // Before the guard, which lets all go that it holds.
    gate: Passage,
    guard: Guard,
    stopper: Stopper,
    births: Option<Births>,
    quota: Option<Quota>,
    ticker: Ticker,
    counters: Counters,
    wants: Wants<TaskId>,
    /// The most that ran, would have run or stood still at any look of this period.
    wanting: u32,
    /// Value of `wanting` in the period before.
    wanted: u32,
    /// Time at which the last look ended.
    looked: Instant,
    /// Distance to the next look.
    spacing: Spacing,
    /// Sender that wakes the agent.
    tell: Sender<Wake>,
}

impl Agent {
    fn new(
        group: Group,
        mut guard: Guard,
        config: Config,
        settings: Settings,
        tell: Sender<Wake>,
    ) -> anyhow::Result<Self> {
        let stopper = Stopper::of(group.clone(), &mut guard)?;
        let births = Births::of(&group, &mut guard).context("cannot limit new threads")?;
        let quota = Quota::of(&group, &mut guard).context("cannot limit CPU time")?;
        // Other agents, and this one another time, draw others.
        let me = std::process::id();
        let seed = u64::from(me) ^ (tasks::started(me).unwrap_or_default() << 32);
        Ok(Self {
            ticker: Ticker::start(&config.monitor, group.cpus(), tell.clone())
                .context("cannot start the clock")?,
            policy: Policy {
                monitor: Monitor::new(config.monitor.clone(), group.cpus()),
                controller: Controller::new(&config, group.cpus()),
                chooser: Chooser::new(
                    group.cpus(),
                    config.threads.patience,
                    config.threads.turn,
                    seed,
                ),
                pulse: Pulse::default(),
                config,
            },
            counters: kernel::counters(&group),
            wants: Wants::default(),
            settings,
            group,
            home: None,
            guard,
            stopper,
            births,
            quota,
            wanting: 0,
            wanted: 0,
            looked: Instant::now(),
            spacing: Spacing::default(),
            gate: Passage::Free,
            tell,
        })
    }

    fn live(&mut self, told: &Receiver<Wake>, place: &Path) -> anyhow::Result<()> {
        let mut began = Instant::now();
        loop {
            self.guard.check().context("cannot start another guard")?;
            self.hear();
            let before = wake::cpu_time();
            let run = self.look()?;
            let cost = wake::cpu_time().saturating_sub(before);
            self.looked = Instant::now();
            if began.elapsed() >= self.policy.config.monitor.period() {
                let report = self.period(began.elapsed());
                began = Instant::now();
                if let Err(error) = status::write(place, &self.status(Some(&report))) {
                    eprintln!("forkyard-friendly: {error:#}");
                }
            }
            // By the order that holds from now on.
            let over = run > self.policy.controller.order().threads;
            self.spacing = Spacing::after(cost, over);
            let close = began + self.policy.config.monitor.period();
            if self.rest(told, close)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Hears from the gate which threads were stopped since the last time.
    fn hear(&mut self) {
        for task in self.gate.held() {
            self.policy.chooser.stopped(task.id);
            self.stopper.stopped(task);
        }
    }

    /// Waits until it is time for the next look, at `close` at the latest, and lets those
    /// in for which there is room meanwhile. Breaks if it is to end.
    fn rest(&mut self, told: &Receiver<Wake>, close: Instant) -> anyhow::Result<ControlFlow<()>> {
        let look = self.policy.config.threads.look();
        let soon = self.looked + self.spacing.soon(look);
        let late = self.looked + self.spacing.late(look);
        // Where all sleep for a part of the time, it is looks that it is made of.
        let pulsed = self.policy.controller.order().sleep.is_some();
        let usual = match pulsed {
            true => look,
            false => self.spacing.next(look),
        };
        let mut until = self.looked + usual;
        loop {
            let left = until.min(close).saturating_duration_since(Instant::now());
            match told.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => {
                    return Ok(ControlFlow::Break(()));
                }
                Ok(_) if pulsed => {}
                Ok(Wake::Waits) => until = until.min(soon),
                Ok(Wake::Late) => until = until.min(late),
                Ok(Wake::Room) => self.let_in()?,
                Err(RecvTimeoutError::Timeout) => return Ok(ControlFlow::Continue(())),
            }
        }
    }

    /// Lets go of as many that wait as there is room for since the last look. It is one
    /// file to write for each, where a look reads one of each thread.
    fn let_in(&mut self) -> anyhow::Result<()> {
        self.hear();
        let go = self.policy.chooser.admit(self.gate.room());
        if go.is_empty() {
            return Ok(());
        }
        let mut still = self.stopper.still().clone();
        still.retain(|id| !go.contains(id));
        let unit = self.stopper.unit(self.policy.config.threads.unit);
        let processes: Vec<u32> = go.iter().map(|id| self.stopper.process(*id)).collect();
        self.gate
            .go(&processes)
            .context("cannot let go of the processes that made them")?;
        let set = self.stopper.set(&still, unit, &mut self.guard);
        set.context("cannot let threads go")
    }

    /// So many new threads there may be, if more are to be refused.
    fn limit_births(&mut self, room: u32) -> anyhow::Result<()> {
        let threads = &self.policy.config.threads;
        let by_thread = self.stopper.unit(threads.unit) == Unit::Thread;
        let limited = threads.new == New::Refuse && by_thread;
        let Some(births) = &mut self.births else {
            return Ok(());
        };
        let set = births.set(limited.then_some(room));
        set.context("cannot limit new threads")
    }

    /// Sees which threads want to run, and stops those that may not. Returns how many run after it.
    fn look(&mut self) -> anyhow::Result<u32> {
        let turns = turns(self.looked.elapsed(), self.policy.config.threads.look());
        let waits = self.waits()?;
        let exempt = self.exempt();
        let mut members = self
            .stopper
            .members(turns)
            .with_context(|| format!("{} is gone", self.group.path.display()))?;
        let makers = self.gate.makers();
        members.retain(|task| !makers.contains(&task.id));
        let unit = self.stopper.unit(self.policy.config.threads.unit);
        self.stopper
            .free_strays(&self.gate.inside(), unit)
            .context("cannot let threads go")?;
        let how = How {
            unit,
            count: self.policy.config.threads.count,
            exempt: &exempt,
            still: self.stopper.still(),
        };
        let Census {
            wanting,
            load,
            spares,
        } = Census::of(&members, how, &mut self.wants);
        self.ticker.follow(run_on(&members));
        self.wanting = self.wanting.max(load);
        let order = self.policy.controller.order();
        let means = self.policy.config.rate.means;
        // A quota holds all of the group up.
        let by_quota = means != RateMeans::Sleep && self.quota.is_some() && spares.is_none();
        let sleeps = order.sleep.is_some() && !by_quota;
        let still = match sleeps && self.policy.pulse.next(order.duty) == PulseStep::Sleep {
            true => wanting.iter().copied().collect(),
            false => self.policy.chooser.choose(&wanting, order.threads as usize),
        };
        let stood = self.stopper.still().clone();
        self.stopper
            .set(&still, unit, &mut self.guard)
            .context("cannot stop threads")?;
        let run = load.saturating_sub(u32::try_from(still.len()).unwrap_or(u32::MAX));
        if waits {
            self.tell_gate(&members, &stood, (order.threads, run), &exempt)?;
        }
        let count = u32::try_from(wanting.len()).unwrap_or(u32::MAX);
        self.limit_births(order.threads.saturating_sub(count))?;
        if let Some(quota) = &mut self.quota {
            let slow = by_quota && order.sleep.is_some();
            quota
                .set(slow.then_some(order.duty))
                .context("cannot limit CPU time")?;
        }
        Ok(run)
    }

    /// Lists the threads that are left alone.
    fn exempt(&self) -> Exempt {
        Exempt {
            ours: vec![std::process::id(), self.guard.pid()],
            names: self.policy.config.threads.exempt.clone(),
        }
    }

    /// Tells whether processes that begin over the limit are to wait: then there is a
    /// gate, if there can be.
    fn waits(&mut self) -> anyhow::Result<bool> {
        let waits = self.policy.config.threads.new == New::Wait;
        if waits {
            self.gate
                .open(&self.group, &self.stopper, &mut self.guard, &self.tell);
        } else {
            self.gate
                .leave_open()
                .context("cannot let go of the processes that make others")?;
        }
        Ok(waits)
    }

    /// Tells the gate what a look has found: how many may run and do, and which were stopped
    /// before it.
    fn tell_gate(
        &mut self,
        members: &[Task],
        stood: &BTreeSet<TaskId>,
        room: (u32, u32),
        exempt: &Exempt,
    ) -> anyhow::Result<()> {
        let still = self.stopper.still();
        let there = members.iter().map(|task| {
            let doing = match task {
                task if still.contains(&task.id) => ThreadState::StandsStill,
                task if task.runnable || stood.contains(&task.id) => ThreadState::Runs,
                _ => ThreadState::Sleeps,
            };
            (task.kin.process, doing)
        });
        self.gate
            .look(room, there, exempt)
            .context("cannot let go of the processes that make others")
    }

    /// Ends a control period.
    fn period(&mut self, elapsed: Duration) -> PeriodReport {
        let counters = kernel::counters(&self.group);
        let readings = counters.since(&self.counters, elapsed);
        self.counters = counters;
        for slept in self.ticker.take() {
            self.policy.monitor.ticks(slept.ticks, slept.took);
        }
        let report = self.policy.monitor.close(readings);
        self.wanted = std::mem::take(&mut self.wanting);
        self.policy.controller.step(report.senses, self.wanted);
        self.policy.chooser.period();
        self.wants.period();
        if let Some(config) = self.settings.changed() {
            self.ticker.set(&config.monitor);
            self.policy.monitor.reconfigure(config.monitor.clone());
            self.policy.controller.reconfigure(&config);
            let threads = &config.threads;
            self.policy
                .chooser
                .reconfigure(threads.patience, threads.turn);
            self.policy.config = config;
        }
        report
    }

    /// Describes the agent; with what it has seen once a period has ended.
    fn status(&self, report: Option<&PeriodReport>) -> Value {
        let order = self.policy.controller.order();
        let state = match self.policy.controller.state() {
            DemandState::Threads(threads) => json!({ "threads": threads }),
            DemandState::Rate(hz) => json!({ "rate_hz": hz }),
        };
        let me = std::process::id();
        let mut said = json!({
            "group": self.group.path.display().to_string(),
            "means": self.stopper.name(),
            "gate": self.gate.is_there(),
            "agent": me,
            "started": tasks::started(me),
            "home": self.home,
            "guard": self.guard.pid(),
            "leader": self.policy.monitor.leads().leader(),
            "state": state,
            "allowed": order.threads,
            "duty": order.duty,
            "standing_still": self.stopper.still().len(),
            "makers_waiting": self.gate.makers().len(),
            "config": self.policy.config,
        });
        if let (Some(report), Some(said)) = (report, said.as_object_mut()) {
            said.extend(self.seen(report));
        }
        said
    }

    fn seen(&self, report: &PeriodReport) -> Map<String, Value> {
        let ms = |time: Option<Duration>| json!(time.map(|time| time.as_secs_f64() * 1e3));
        let signals: Map<String, Value> = report
            .signals
            .iter()
            .map(|one| {
                let value = json!({
                    "value": one.value,
                    "threshold": one.threshold,
                    "raised": one.raised(),
                });
                (one.signal.to_string(), value)
            })
            .collect();
        let tallies = self.policy.monitor.leads().tallies();
        let leads: Map<String, Value> = tallies
            .iter()
            .map(|(signal, tally)| (signal.to_string(), json!(tally)))
            .collect();
        [
            ("vct_ms", ms(report.average)),
            ("least_vct_ms", ms(report.least)),
            ("ticks", json!(report.ticks)),
            (
                "congested",
                json!(report.senses.sense.congestion == Congestion::Yes),
            ),
            ("wanting", json!(self.wanted)),
            ("signals", Value::Object(signals)),
            ("leads", Value::Object(leads)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}
