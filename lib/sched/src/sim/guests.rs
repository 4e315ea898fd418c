//! Programs that run in the VMs: they compute, wait for each other, and sleep.
//!
//! A guest is asked what each of its vCPUs does next, whenever that one runs and
//! has come to the end of what it did. It sees no scheduler and knows no policy.

use super::SetupError;
use crate::{dice::Dice, units::Nanos, units::round};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, fmt};

/// Next act of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuAct {
    /// Computes: so much time on a CPU of usual speed.
    Work(Nanos),
    /// Waits until a sibling releases it: spins for so long, then blocks. Without
    /// a threshold it spins for ever.
    Wait(Option<Nanos>),
    /// Sleeps for so long.
    Sleep(Nanos),
}

/// A workload. Times are of a CPU of usual speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields,
    tag = "kind"
)]
pub enum Load {
    /// Computes for ever: SuperPI. One unit is a millisecond.
    Hog,
    /// Computes, then waits until all have: SPMD programs, NPB, SPEC OMP. One
    /// unit is a round.
    Barrier {
        /// Work between two barriers.
        work: Nanos,
        /// The most that work may differ, of itself: 0.1 for ±10 %.
        #[serde(default)]
        jitter: f64,
        /// Time one spins at the barrier before it blocks; for ever if absent.
        spin: Option<Nanos>,
    },
    /// Every vCPU is a stage that takes items from the one before: dedup. One
    /// unit is an item.
    Pipeline {
        /// Work of a stage on an item, on average; exponentially distributed.
        work: Nanos,
        /// Items that fit between two stages.
        depth: usize,
        /// Time a stage spins for an item or for room before it blocks.
        spin: Option<Nanos>,
    },
    /// Computes, takes a spin lock of the kernel for a while, and sometimes waits
    /// for the disk: a kernel build. One unit is one such turn.
    Build {
        /// Work between two locks, on average; exponentially distributed.
        work: Nanos,
        /// Time the lock is held.
        hold: Nanos,
        /// One of so many turns waits for the disk; none if 0.
        io_every: u64,
        /// Time it waits, on average; exponentially distributed.
        io: Nanos,
    },
    /// Answers requests that come by chance, whether it is ready or not: SPECjbb,
    /// a web server. One unit is an answer.
    Requests {
        /// Time between two requests, on average; a Poisson process.
        every: Nanos,
        /// Work on each, on average; exponentially distributed.
        work: Nanos,
    },
}

/// A workload under way.
pub trait SimGuest: fmt::Debug {
    /// Returns the next act of a vCPU; it runs. Those whose wait has ended are
    /// added to `released`.
    fn act(
        &mut self,
        who: usize,
        now: Nanos,
        dice: &mut Dice,
        released: &mut Vec<usize>,
    ) -> VcpuAct;

    /// Something comes from outside; when to call this again. `None`: never.
    fn arrive(&mut self, _now: Nanos, _: &mut Dice, _released: &mut Vec<usize>) -> Option<Nanos> {
        None
    }

    /// Units of work done so far.
    fn done(&self) -> u64;

    /// Returns the time of each answer, since the last call.
    fn latencies(&mut self) -> Vec<Nanos> {
        Vec::new()
    }
}

impl Load {
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let zero = |what, time| match time {
            Nanos::ZERO => Err(SetupError::Zero(what)),
            _ => Ok(()),
        };
        match self {
            Self::Hog => Ok(()),
            Self::Barrier { work, .. } => zero("the work between barriers", *work),
            Self::Pipeline { work, depth, .. } => {
                zero("the work of a stage", *work)?;
                zero("the depth of a pipeline", Nanos(*depth as u64))
            }
            Self::Build { work, .. } => zero("the work of a turn", *work),
            Self::Requests { every, work } => {
                zero("the work of a request", *work)?;
                zero("the time between requests", *every)
            }
        }
    }

    /// Starts it on so many vCPUs.
    pub fn start(&self, vcpus: usize) -> Box<dyn SimGuest> {
        match self.clone() {
            Self::Hog => Box::new(Hog::default()),
            Self::Barrier { work, jitter, spin } => Box::new(Barrier {
                work,
                jitter,
                spin,
                at: vec![At::Outside; vcpus],
                rounds: 0,
            }),
            Self::Pipeline { work, depth, spin } => Box::new(Pipeline {
                work,
                depth,
                spin,
                stages: vec![Stage::Ready; vcpus],
                between: vec![0; vcpus],
                items: 0,
            }),
            Self::Build {
                work,
                hold,
                io_every,
                io,
            } => Box::new(Build {
                knobs: (work, hold, io_every, io),
                turns: vec![Turn::Begin; vcpus],
                held: false,
                done: 0,
            }),
            Self::Requests { every, work } => Box::new(Requests {
                every,
                work,
                queue: VecDeque::new(),
                serving: vec![None; vcpus],
                idle: Vec::new(),
                done: 0,
                latencies: Vec::new(),
            }),
        }
    }
}

fn chance(mean: Nanos, dice: &mut Dice) -> Nanos {
    Nanos(round(mean.as_f64() * dice.wait()).max(1))
}

#[derive(Debug, Default)]
struct Hog {
    /// Milliseconds begun, of which all but one for each vCPU have been done.
    begun: u64,
}

impl SimGuest for Hog {
    fn act(&mut self, _: usize, _: Nanos, _: &mut Dice, _: &mut Vec<usize>) -> VcpuAct {
        const BITE: u64 = 10;
        self.begun += BITE;
        VcpuAct::Work(Nanos::millis(BITE))
    }

    fn done(&self) -> u64 {
        self.begun
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Outside,
    Working,
    Waiting,
}

#[derive(Debug)]
struct Barrier {
    work: Nanos,
    jitter: f64,
    spin: Option<Nanos>,
    at: Vec<At>,
    rounds: u64,
}

impl SimGuest for Barrier {
    fn act(&mut self, who: usize, _: Nanos, dice: &mut Dice, released: &mut Vec<usize>) -> VcpuAct {
        if self.at[who] == At::Working {
            self.at[who] = At::Waiting;
            if !self.at.iter().all(|&at| at == At::Waiting) {
                return VcpuAct::Wait(self.spin);
            }
            self.rounds += 1;
            self.at.fill(At::Outside);
            released.extend((0..self.at.len()).filter(|&other| other != who));
        }
        self.at[who] = At::Working;
        let by = 1.0 + self.jitter * (2.0 * dice.unit() - 1.0);
        VcpuAct::Work(Nanos(round(self.work.as_f64() * by).max(1)))
    }

    fn done(&self) -> u64 {
        self.rounds
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Wants an item.
    Ready,
    /// Waits for one.
    Empty,
    /// Works on one.
    Working,
    /// Waits for room for one.
    Full,
}

#[derive(Debug)]
struct Pipeline {
    work: Nanos,
    depth: usize,
    spin: Option<Nanos>,
    stages: Vec<Stage>,
    /// Items after each stage.
    between: Vec<usize>,
    items: u64,
}

impl SimGuest for Pipeline {
    fn act(&mut self, who: usize, _: Nanos, dice: &mut Dice, released: &mut Vec<usize>) -> VcpuAct {
        let last = who + 1 == self.stages.len();
        if matches!(self.stages[who], Stage::Working | Stage::Full) {
            if last {
                self.items += 1;
            } else if self.between[who] == self.depth {
                self.stages[who] = Stage::Full;
                return VcpuAct::Wait(self.spin);
            } else {
                self.between[who] += 1;
                if self.stages[who + 1] == Stage::Empty {
                    released.push(who + 1);
                }
            }
        }
        if who > 0 {
            if self.between[who - 1] == 0 {
                self.stages[who] = Stage::Empty;
                return VcpuAct::Wait(self.spin);
            }
            self.between[who - 1] -= 1;
            if self.stages[who - 1] == Stage::Full {
                released.push(who - 1);
            }
        }
        self.stages[who] = Stage::Working;
        VcpuAct::Work(chance(self.work, dice))
    }

    fn done(&self) -> u64 {
        self.items
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Begin,
    Working,
    Spinning,
    Holding,
}

#[derive(Debug)]
struct Build {
    knobs: (Nanos, Nanos, u64, Nanos),
    turns: Vec<Turn>,
    held: bool,
    done: u64,
}

impl SimGuest for Build {
    fn act(&mut self, who: usize, _: Nanos, dice: &mut Dice, released: &mut Vec<usize>) -> VcpuAct {
        let (work, hold, io_every, io) = self.knobs;
        match self.turns[who] {
            Turn::Working | Turn::Spinning if self.held => {
                self.turns[who] = Turn::Spinning;
                return VcpuAct::Wait(None);
            }
            Turn::Working | Turn::Spinning => {
                self.held = true;
                self.turns[who] = Turn::Holding;
                return VcpuAct::Work(hold);
            }
            Turn::Holding => {
                self.held = false;
                self.done += 1;
                self.turns[who] = Turn::Begin;
                // The one that runs first has it: such locks knew no order.
                let spins = |&other: &usize| self.turns[other] == Turn::Spinning;
                released.extend((0..self.turns.len()).filter(spins));
                if io_every > 0 && dice.roll().is_multiple_of(io_every) {
                    return VcpuAct::Sleep(chance(io, dice));
                }
            }
            Turn::Begin => {}
        }
        self.turns[who] = Turn::Working;
        VcpuAct::Work(chance(work, dice))
    }

    fn done(&self) -> u64 {
        self.done
    }
}

#[derive(Debug)]
struct Requests {
    every: Nanos,
    work: Nanos,
    queue: VecDeque<Nanos>,
    serving: Vec<Option<Nanos>>,
    idle: Vec<usize>,
    done: u64,
    latencies: Vec<Nanos>,
}

impl SimGuest for Requests {
    fn act(&mut self, who: usize, now: Nanos, dice: &mut Dice, _: &mut Vec<usize>) -> VcpuAct {
        if let Some(came) = self.serving[who].take() {
            self.latencies.push(now.minus(came));
            self.done += 1;
        }
        match self.queue.pop_front() {
            Some(came) => {
                self.serving[who] = Some(came);
                VcpuAct::Work(chance(self.work, dice))
            }
            None => {
                self.idle.push(who);
                VcpuAct::Wait(Some(Nanos::ZERO))
            }
        }
    }

    fn arrive(&mut self, now: Nanos, dice: &mut Dice, released: &mut Vec<usize>) -> Option<Nanos> {
        // The first call only says when the first comes.
        if now > Nanos::ZERO {
            self.queue.push_back(now);
            released.extend(self.idle.pop());
        }
        Some(now + chance(self.every, dice))
    }

    fn done(&self) -> u64 {
        self.done
    }

    fn latencies(&mut self) -> Vec<Nanos> {
        std::mem::take(&mut self.latencies)
    }
}
