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
    parts::{Anywhere, Balance, Hook, PlainFront, QueueFilter, Rule, Spread},
    rules::{Bvt, Cfs, CfsKnobs, Credit, Credit2, Edf, Flavour, RoundRobin},
    scheduler::Scheduler,
    speed::{Speed, SpeedKnobs},
};
use forkyard_types::SchedPolicy as Policy;
use serde::{Deserialize, Serialize};

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
pub struct PolicySettings {
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

/// Reason why a policy cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Speed balancing needs queues to balance.
    #[error(
        "speed cannot balance {0}: choose a policy whose CPUs have queues of their own and may exchange vCPUs"
    )]
    NotOver(Policy),
}

/// Makes a policy for so many CPUs.
pub fn build(
    policy: Policy,
    cpus: usize,
    knobs: &PolicySettings,
) -> Result<Box<dyn Scheduler>, PolicyError> {
    let cfs = || Box::new(Cfs::new(knobs.cfs)) as Box<dyn Rule>;
    let anywhere = || Box::new(Anywhere) as Box<dyn QueueFilter>;
    let balance = || Box::new(Balance) as Box<dyn QueueFilter>;
    let plain = || Box::new(PlainFront) as Box<dyn Hook>;
    let gang = |leader| Box::new(Gang::new(leader, cpus)) as Box<dyn Hook>;
    let (rule, filter, hook, spread): (Box<dyn Rule>, _, _, _) = match policy {
        Policy::Rr => (
            Box::new(RoundRobin::default()),
            anywhere(),
            plain(),
            Spread::Steal,
        ),
        Policy::Bvt => (Box::new(Bvt::default()), anywhere(), plain(), Spread::Steal),
        Policy::Atropos => (
            Box::new(Edf::new(Flavour::Atropos)),
            anywhere(),
            plain(),
            Spread::Bound,
        ),
        Policy::Sedf => (
            Box::new(Edf::new(Flavour::Sedf)),
            anywhere(),
            plain(),
            Spread::Bound,
        ),
        Policy::Credit => (
            Box::new(Credit::default()),
            anywhere(),
            plain(),
            Spread::Steal,
        ),
        Policy::Credit2 => (
            Box::new(Credit2::default()),
            anywhere(),
            plain(),
            Spread::Stay,
        ),
        Policy::Cfs => (cfs(), anywhere(), plain(), Spread::Even),
        Policy::Balance => (cfs(), balance(), plain(), Spread::Even),
        Policy::Procco => (cfs(), balance(), gang(Leader::Anyone), Spread::Even),
        Policy::Cpuco => (cfs(), balance(), gang(Leader::FirstCpu), Spread::Even),
        Policy::Sbco => {
            let hook = Box::new(Sbco::new(knobs.sbco, cpus)) as Box<dyn Hook>;
            (cfs(), balance(), hook, Spread::Even)
        }
        Policy::Speed => {
            let over = knobs.over.unwrap_or(Policy::Credit);
            match over {
                Policy::Speed | Policy::Credit2 | Policy::Atropos | Policy::Sedf => {
                    return Err(PolicyError::NotOver(over));
                }
                Policy::Rr
                | Policy::Bvt
                | Policy::Credit
                | Policy::Cfs
                | Policy::Balance
                | Policy::Procco
                | Policy::Cpuco
                | Policy::Sbco => {}
            }
            let inner = build(over, cpus, knobs)?;
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
        policy.name(),
        parts,
        spread,
        cpus,
        knobs.seed,
    )))
}
