//! The scaler: from a view of all servers to what is to be done about them.

use crate::{
    InvalidConfig, LoadSignal, LoadView, ScalerConfig, ServerHealth, ServerSample, SlotNo, Stage,
    gate::Gate, slot::Slot, window::Window,
};
use forkyard_types::VmId;
use std::time::Duration;

/// Looks in a row without an open request after which a server that gets no new ones is done.
const IDLE_LOOKS: u8 = 2;
/// Most doublings of the time until servers are retired.
const MOST_CALM: u32 = 16;

/// VM or checkpoint that servers are clones of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSource {
    /// A VM that is itself a server, in slot 0. It is never removed.
    Server(VmId),
    /// A checkpoint: all servers are clones.
    Checkpoint(VmId),
}

/// Action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fork `source` into a clone for each slot; report [`ActionOutcome::Forked`] or [`ActionOutcome::NotForked`] of
    /// each slot.
    Fork {
        /// Source of the fork.
        source: VmId,
        /// Slots of the clones.
        slots: Vec<SlotNo>,
    },
    /// Send it requests from now on.
    Admit(SlotNo),
    /// Send it no new requests.
    Starve(SlotNo),
    /// Remove the VM; report [`ActionOutcome::Removed`] or [`ActionOutcome::NotRemoved`].
    Remove {
        /// Slot.
        slot: SlotNo,
        /// The VM.
        vm: VmId,
        /// Reason.
        cause: RemovalCause,
    },
    /// The VM has gone by itself: forget it.
    Forget(SlotNo),
}

/// Reason why a server is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// Without open requests, and not needed.
    Drained,
    /// The server's checks have failed for too long.
    Sick,
    /// The server's first check did not pass in time.
    Late,
}

/// Outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionOutcome {
    /// The clone for this slot runs.
    Forked {
        /// The slot.
        slot: SlotNo,
        /// The clone.
        vm: VmId,
    },
    /// There is no clone for this slot, and nothing is left of it.
    NotForked {
        /// The slot.
        slot: SlotNo,
    },
    /// The VM of this slot is gone.
    Removed {
        /// The slot.
        slot: SlotNo,
    },
    /// The VM of this slot may still be there: its removal is asked for again.
    NotRemoved {
        /// The slot.
        slot: SlotNo,
    },
}

/// Policy and state of a set of servers.
#[derive(Debug)]
pub struct Scaler<S> {
    config: ScalerConfig,
    signal: S,
    source: ServerSource,
    slots: Vec<Slot>,
    /// Servers wanted, from `least` to `most`.
    wanted: u16,
    window: Window,
    gate: Gate,
    calm: Calm,
    /// Load at the last look.
    load: Option<f64>,
}

/// Time for which load has to be low before servers are retired.
#[derive(Debug)]
struct Calm {
    factor: u32,
    retired: Option<Duration>,
}

impl<S: LoadSignal> Scaler<S> {
    /// A scaler of servers that are clones of `source`.
    pub fn new(
        config: ScalerConfig,
        signal: S,
        source: ServerSource,
    ) -> Result<Self, InvalidConfig> {
        config.check()?;
        let mut slots = vec![Slot::Empty; config.most.into()];
        if let ServerSource::Server(vm) = source {
            // Known to be served by its owner's own account.
            slots[0] = Slot::Joining {
                vm,
                since: Duration::ZERO,
            };
        }
        Ok(Self {
            wanted: config.least,
            config,
            signal,
            source,
            slots,
            window: Window::default(),
            gate: Gate::default(),
            calm: Calm {
                factor: 1,
                retired: None,
            },
            load: None,
        })
    }

    /// Servers wanted.
    pub fn wanted(&self) -> u16 {
        self.wanted
    }

    /// Load at the last look, 1 for saturation; none if no server is healthy or it was not
    /// measured.
    pub fn load(&self) -> Option<f64> {
        self.load
    }

    /// Slots that are in use, and for what.
    pub fn stages(&self) -> impl Iterator<Item = (SlotNo, Stage, Option<VmId>)> {
        let all = (0..).map(SlotNo).zip(&self.slots);
        all.filter_map(|(no, slot)| Some((no, slot.stage()?, slot.vm())))
    }

    /// Number of servers in a part of their lives.
    pub fn count(&self, stage: Stage) -> u16 {
        let those = self.slots.iter().filter(|slot| slot.stage() == Some(stage));
        u16::try_from(those.count()).unwrap_or(u16::MAX)
    }

    /// Takes note of what became of an action.
    pub fn done(&mut self, now: Duration, done: ActionOutcome) {
        match done {
            ActionOutcome::Forked { slot, vm } => {
                if let Some(it @ Slot::Forking) = self.slot(slot) {
                    *it = Slot::Joining { vm, since: now };
                }
            }
            ActionOutcome::NotForked { slot } => {
                if let Some(it @ Slot::Forking) = self.slot(slot) {
                    *it = Slot::Empty;
                    self.fail(now);
                }
            }
            ActionOutcome::Removed { slot } => {
                if let Some(it @ Slot::Removing { .. }) = self.slot(slot) {
                    *it = Slot::Empty;
                }
            }
            ActionOutcome::NotRemoved { slot } => {
                if let Some(it) = self.slot(slot)
                    && let Slot::Removing { vm } = *it
                {
                    // Without an open request, or beyond answering: removed at the next look.
                    *it = Slot::Draining {
                        vm,
                        idle: 0,
                        sick: Some(Duration::ZERO),
                    };
                }
            }
        }
    }

    /// Decides what is to be done. To be called several times in each of the times of [`ScalerConfig`].
    pub fn look(&mut self, now: Duration, view: &LoadView) -> Vec<Action> {
        let mut actions = Vec::new();
        for no in 0..self.config.most {
            self.live(now, SlotNo(no), view, &mut actions);
        }
        self.bury(now, &mut actions);
        self.measure(now, view);
        self.reconcile(now, &mut actions);
        actions
    }

    /// Moves one server on in its life.
    fn live(&mut self, now: Duration, no: SlotNo, view: &LoadView, actions: &mut Vec<Action>) {
        let sample = view.servers.get(&no);
        let health = sample.map_or(ServerHealth::Down, |it| it.health);
        let Some(slot) = self.slots.get_mut(usize::from(no.0)) else {
            return;
        };
        if health == ServerHealth::Gone
            && slot.vm().is_some()
            && !matches!(slot, Slot::Removing { .. })
        {
            // One that was about to be removed is no failure.
            let failed = !matches!(slot, Slot::Draining { .. });
            *slot = Slot::Empty;
            self.window.clear();
            actions.push(Action::Forget(no));
            if failed {
                self.fail(now);
            }
            return;
        }
        match slot {
            Slot::Empty | Slot::Forking | Slot::Removing { .. } => {}
            Slot::Joining { vm, since } => {
                let (vm, since) = (*vm, *since);
                if health == ServerHealth::Up {
                    let sick = None;
                    *slot = Slot::Serving {
                        vm,
                        since: now,
                        sick,
                    };
                    self.window.clear();
                    actions.push(Action::Admit(no));
                } else if now.saturating_sub(since) >= self.config.join_within
                    && self.source != ServerSource::Server(vm)
                {
                    *slot = Slot::Removing { vm };
                    let cause = RemovalCause::Late;
                    actions.push(Action::Remove {
                        slot: no,
                        vm,
                        cause,
                    });
                    self.fail(now);
                }
            }
            Slot::Serving { sick, .. } => {
                let was = sick.is_some();
                *sick = (health != ServerHealth::Up).then(|| sick.unwrap_or(now));
                if was != sick.is_some() {
                    self.window.clear();
                }
            }
            Slot::Draining { vm, idle, sick } => {
                *sick = (health != ServerHealth::Up).then(|| sick.unwrap_or(now));
                let open = sample.map(|it| it.open);
                *idle = match open {
                    Some(0) => idle.saturating_add(1),
                    Some(_) | None => 0,
                };
                let dead =
                    sick.is_some_and(|since| now.saturating_sub(since) >= self.config.sick_after);
                let cause = match (*idle >= IDLE_LOOKS, dead) {
                    (true, _) => RemovalCause::Drained,
                    (false, true) => RemovalCause::Sick,
                    (false, false) => return,
                };
                let vm = *vm;
                *slot = Slot::Removing { vm };
                actions.push(Action::Remove {
                    slot: no,
                    vm,
                    cause,
                });
            }
        }
    }

    /// Removes servers that have been sick for too long, while at least as many others are healthy:
    /// if most fail their checks, what fails is behind them all, and new ones would fail, too.
    fn bury(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut sick = self.count(Stage::Sick);
        let healthy = self.count(Stage::Serving);
        let full = !self.slots.contains(&Slot::Empty);
        for no in 0..self.config.most {
            let Some(slot) = self.slot(SlotNo(no)) else {
                return;
            };
            let Slot::Serving {
                vm,
                sick: Some(since),
                ..
            } = *slot
            else {
                continue;
            };
            let long = now.saturating_sub(since) >= self.config.sick_after;
            // Where nothing is healthy and there is no room to fork, one makes room at a time.
            let last = healthy == 0 && full && actions.is_empty() && self.gate.is_open(now);
            if !long || self.source == ServerSource::Server(vm) || !(healthy >= sick || last) {
                continue;
            }
            self.slots[usize::from(no)] = Slot::Removing { vm };
            sick -= 1;
            actions.push(Action::Remove {
                slot: SlotNo(no),
                vm,
                cause: RemovalCause::Sick,
            });
            self.fail(now);
        }
    }

    /// Decides how many servers are wanted.
    fn measure(&mut self, now: Duration, view: &LoadView) {
        let serving = self.serving(view);
        self.load = self.signal.load(&serving, view.waiting);
        let Some(load) = self.load else {
            return self.window.clear();
        };
        let shrink_after = self.config.shrink_after * self.calm.factor;
        let grow_after = self.config.grow_after;
        let kept = shrink_after.max(grow_after);
        self.window.push(now, load, grow_after, kept);
        let count = self.count(Stage::Serving);
        let coming = self.count(Stage::Forking) + self.count(Stage::Joining);
        if coming > 0 || count == 0 {
            return;
        }
        let grow = self.window.mean(grow_after);
        if grow.is_some_and(|mean| mean >= self.config.grow_at) {
            let doubled = count.saturating_mul(2).min(self.config.most);
            if doubled > self.wanted {
                self.wanted = doubled;
                self.calm.grown(now, shrink_after);
                self.window.clear();
            }
            return;
        }
        let Some(peak) = self.window.peak(shrink_after) else {
            return;
        };
        let enough = (f64::from(count) * peak / self.config.shrink_at).ceil();
        let least = self.config.least;
        // The fewest of which each has no more than it may; a float in the range of u16.
        let fits = (least..count).find(|fewer| f64::from(*fewer) >= enough);
        if let Some(fewer) = fits.filter(|fewer| *fewer < self.wanted) {
            self.wanted = fewer;
            self.calm.shrunk(now, shrink_after);
            self.window.clear();
        }
    }

    /// Makes servers as many as are wanted.
    fn reconcile(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let have =
            self.count(Stage::Serving) + self.count(Stage::Joining) + self.count(Stage::Forking);
        if have > self.wanted {
            return self.starve(have - self.wanted, actions);
        }
        let mut missing = self.wanted - have;
        // One that still has requests to answer takes new ones at once.
        for (no, slot) in (0..).map(SlotNo).zip(&mut self.slots) {
            if let Slot::Draining { vm, sick: None, .. } = *slot
                && missing > 0
            {
                let sick = None;
                *slot = Slot::Serving {
                    vm,
                    since: now,
                    sick,
                };
                self.window.clear();
                actions.push(Action::Admit(no));
                missing -= 1;
            }
        }
        if missing == 0 || self.count(Stage::Forking) > 0 || !self.gate.is_open(now) {
            return;
        }
        let Some(source) = self.forkable() else {
            return;
        };
        let most = missing.min(self.count(Stage::Serving).max(1));
        let free = (0..).map(SlotNo).zip(&self.slots);
        let free = free.filter(|(_, slot)| **slot == Slot::Empty);
        let slots: Vec<_> = free.map(|(no, _)| no).take(most.into()).collect();
        if slots.is_empty() {
            return;
        }
        for no in &slots {
            self.slots[usize::from(no.0)] = Slot::Forking;
        }
        actions.push(Action::Fork { source, slots });
    }

    /// Sends no more requests to so many servers: the youngest first, which the others do not
    /// descend from.
    fn starve(&mut self, surplus: u16, actions: &mut Vec<Action>) {
        for _ in 0..surplus {
            let source = self.source;
            let all = (0..).map(SlotNo).zip(&mut self.slots);
            let serving = all.filter_map(|(no, slot)| {
                let (vm, since) = slot.healthy()?;
                (source != ServerSource::Server(vm)).then_some((since, no, slot, vm))
            });
            let youngest = serving.max_by_key(|(since, no, ..)| (*since, *no));
            let Some((_, no, slot, vm)) = youngest else {
                return;
            };
            *slot = Slot::Draining {
                vm,
                idle: 0,
                sick: None,
            };
            self.window.clear();
            actions.push(Action::Starve(no));
        }
    }

    /// Source of the next fork: the original, or the oldest healthy clone of it.
    fn forkable(&self) -> Option<VmId> {
        let serving = self.slots.iter().filter_map(Slot::healthy);
        let mut serving: Vec<_> = serving.collect();
        serving.sort_by_key(|(_, since)| *since);
        match self.source {
            ServerSource::Checkpoint(vm) => Some(vm),
            ServerSource::Server(original) => {
                let is = |(vm, _): &&(VmId, Duration)| *vm == original;
                serving
                    .iter()
                    .find(is)
                    .or(serving.first())
                    .map(|(vm, _)| *vm)
            }
        }
    }

    fn serving(&self, view: &LoadView) -> Vec<ServerSample> {
        let all = (0..).map(SlotNo).zip(&self.slots);
        let serving = all.filter(|(_, slot)| slot.stage() == Some(Stage::Serving));
        serving
            .filter_map(|(no, _)| view.servers.get(&no).copied())
            .collect()
    }

    fn fail(&mut self, now: Duration) {
        self.gate
            .fail(now, self.config.retry, self.config.retry_most);
    }

    fn slot(&mut self, no: SlotNo) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(no.0))
    }
}

impl Calm {
    /// Servers are wanted again: soon after some were retired, that was too early.
    fn grown(&mut self, now: Duration, after: Duration) {
        if self
            .retired
            .is_some_and(|at| now.saturating_sub(at) < after * 4)
        {
            self.factor = (self.factor * 2).min(MOST_CALM);
        }
        self.retired = None;
    }

    fn shrunk(&mut self, now: Duration, after: Duration) {
        // Not followed by growth for long: no reason to wait for longer than was asked for.
        if self
            .retired
            .is_some_and(|at| now.saturating_sub(at) >= after * 4)
        {
            self.factor = 1;
        }
        self.retired = Some(now);
    }
}
