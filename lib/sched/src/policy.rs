//! Policies by name, and what each is composed of.
//!
//! | name | order | filter | hook | spread |
//! |---|---|---|---|---|
//! | `rr` | arrival | – | – | steals |
//! | `bvt` | effective virtual time | – | – | steals |
//! | `atropos`, `sedf` | deadline | – | – | bound |
//! | `credit` | boosted, under, over | – | – | steals |
//! | `credit2` | credits, one queue for all | – | – | – |
//! | `cfs` | vruntime | – | – | evens out |
//! | `balance` | vruntime | siblings apart | – | evens out |
//! | `procco`, `cpuco` | vruntime | siblings apart | gang | evens out |
//! | `sbco` | vruntime | siblings apart | rank, debts, dirty marks | evens out |
//! | `speed` | any of the above, `credit` if not said | | | and pulls |

use crate::{
    composite::Composite,
    hooks::{Gang, Leader, Sbco, SbcoKnobs},
    parts::{Anywhere, Balance, Filter, Hook, Plain, Rule, Spread},
    rules::{Bvt, Cfs, CfsKnobs, Credit, Credit2, Edf, Flavour, RoundRobin},
    scheduler::Scheduler,
    speed::{Speed, SpeedKnobs},
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Round robin.
    Rr,
    /// Borrowed virtual time.
    Bvt,
    /// Reservations, none beyond what there is.
    Atropos,
    /// Simple earliest deadline first.
    Sedf,
    /// Credit.
    Credit,
    /// Credit2.
    Credit2,
    /// The host's default.
    Cfs,
    /// The default with siblings apart.
    Balance,
    /// Gangs that any vCPU starts.
    Procco,
    /// Gangs that CPU 0 starts.
    Cpuco,
    /// Self-boosted co-scheduling.
    Sbco,
    /// Speed balancing.
    Speed,
}

/// Means by which idle and short-queued CPUs get work, where a policy lets one
/// choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Migration {
    /// As the policy has it.
    #[default]
    Usual,
    /// Idle CPUs steal.
    Steal,
    /// Queue lengths are evened out.
    Even,
    /// None but at wake-up: what speed balancing is compared with in the
    /// thesis.
    Stay,
}

/// Further settings of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// Breaks ties between CPUs.
    pub seed: u64,
    /// Of `cfs` and those built on it.
    pub cfs: CfsKnobs,
    /// Of `sbco`.
    pub sbco: SbcoKnobs,
    /// Of `speed`.
    pub speed: SpeedKnobs,
    /// The policy that `speed` wraps; `credit` if absent.
    pub over: Option<Policy>,
    /// Means by which CPUs get work.
    pub migration: Migration,
}

/// Why a policy cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// There is no policy of this name.
    #[error(
        "no such policy: choose one of rr, bvt, atropos, sedf, credit, credit2, cfs, balance, procco, cpuco, sbco, speed"
    )]
    Unknown,
    /// Speed balancing needs queues to balance.
    #[error(
        "speed cannot balance {0}: choose a policy whose CPUs have queues of their own and may exchange vCPUs"
    )]
    NotOver(Policy),
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Rr,
        Self::Bvt,
        Self::Atropos,
        Self::Sedf,
        Self::Credit,
        Self::Credit2,
        Self::Cfs,
        Self::Balance,
        Self::Procco,
        Self::Cpuco,
        Self::Sbco,
        Self::Speed,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Bvt => "bvt",
            Self::Atropos => "atropos",
            Self::Sedf => "sedf",
            Self::Credit => "credit",
            Self::Credit2 => "credit2",
            Self::Cfs => "cfs",
            Self::Balance => "balance",
            Self::Procco => "procco",
            Self::Cpuco => "cpuco",
            Self::Sbco => "sbco",
            Self::Speed => "speed",
        }
    }

    /// Makes it for so many CPUs.
    pub fn build(self, cpus: usize, knobs: &Knobs) -> Result<Box<dyn Scheduler>, PolicyError> {
        let cfs = || Box::new(Cfs::new(knobs.cfs)) as Box<dyn Rule>;
        let anywhere = || Box::new(Anywhere) as Box<dyn Filter>;
        let balance = || Box::new(Balance) as Box<dyn Filter>;
        let plain = || Box::new(Plain) as Box<dyn Hook>;
        let gang = |leader| Box::new(Gang::new(leader, cpus)) as Box<dyn Hook>;
        let (rule, filter, hook, spread): (Box<dyn Rule>, _, _, _) = match self {
            Self::Rr => (
                Box::new(RoundRobin::default()),
                anywhere(),
                plain(),
                Spread::Steal,
            ),
            Self::Bvt => (Box::new(Bvt::default()), anywhere(), plain(), Spread::Steal),
            Self::Atropos => (
                Box::new(Edf::new(Flavour::Atropos)),
                anywhere(),
                plain(),
                Spread::Bound,
            ),
            Self::Sedf => (
                Box::new(Edf::new(Flavour::Sedf)),
                anywhere(),
                plain(),
                Spread::Bound,
            ),
            Self::Credit => (
                Box::new(Credit::default()),
                anywhere(),
                plain(),
                Spread::Steal,
            ),
            Self::Credit2 => (
                Box::new(Credit2::default()),
                anywhere(),
                plain(),
                Spread::Stay,
            ),
            Self::Cfs => (cfs(), anywhere(), plain(), Spread::Even),
            Self::Balance => (cfs(), balance(), plain(), Spread::Even),
            Self::Procco => (cfs(), balance(), gang(Leader::Anyone), Spread::Even),
            Self::Cpuco => (cfs(), balance(), gang(Leader::FirstCpu), Spread::Even),
            Self::Sbco => {
                let hook = Box::new(Sbco::new(knobs.sbco, cpus)) as Box<dyn Hook>;
                (cfs(), balance(), hook, Spread::Even)
            }
            Self::Speed => {
                let over = knobs.over.unwrap_or(Self::Credit);
                match over {
                    Self::Speed | Self::Credit2 | Self::Atropos | Self::Sedf => {
                        return Err(PolicyError::NotOver(over));
                    }
                    Self::Rr
                    | Self::Bvt
                    | Self::Credit
                    | Self::Cfs
                    | Self::Balance
                    | Self::Procco
                    | Self::Cpuco
                    | Self::Sbco => {}
                }
                let inner = over.build(cpus, knobs)?;
                return Ok(Box::new(Speed::new(inner, knobs.speed, cpus)));
            }
        };
        let spread = match (knobs.migration, spread) {
            (Migration::Usual, usual) | (_, usual @ Spread::Bound) => usual,
            (Migration::Steal, _) => Spread::Steal,
            (Migration::Even, _) => Spread::Even,
            (Migration::Stay, _) => Spread::Stay,
        };
        let parts = (rule, filter, hook);
        Ok(Box::new(Composite::new(
            self.name(),
            parts,
            spread,
            cpus,
            knobs.seed,
        )))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;
    fn from_str(name: &str) -> Result<Self, PolicyError> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or(PolicyError::Unknown)
    }
}
