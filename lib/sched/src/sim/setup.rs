//! Setup of a simulation.

use super::Load;
use crate::{CpuSet, InvalidParams, Nanos, Params, Policy, PolicyError, PolicySettings};
use serde::{Deserialize, Serialize};

/// Costs of the hardware, in time of the vCPU that runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// To switch from one vCPU to another.
    pub switch: Nanos,
    /// To interrupt a CPU that runs: each kick, which is what gangs are made of.
    pub kick: Nanos,
    /// To run on another CPU than before, beside its cold cache.
    pub migration: Nanos,
    /// To fill a cache that others have taken over wholly.
    pub cold: Nanos,
    /// Time others must have run on a CPU for its cache to be that cold.
    pub footprint: Nanos,
}

impl Default for Costs {
    /// As measured on contemporary hardware: a switch of vCPUs takes 2.5 to 3
    /// times one of processes (Wang §4.3.2), and a cold cache up to 2 ms
    /// (Gutierrez §3.3), here a tenth of that.
    fn default() -> Self {
        Self {
            switch: Nanos::micros(5),
            kick: Nanos::micros(10),
            migration: Nanos::micros(20),
            cold: Nanos::micros(200),
            footprint: Nanos::millis(10),
        }
    }
}

impl Costs {
    /// A machine that takes nothing for itself.
    pub const FREE: Self = Self {
        switch: Nanos::ZERO,
        kick: Nanos::ZERO,
        migration: Nanos::ZERO,
        cold: Nanos::ZERO,
        footprint: Nanos(1),
    };
}

/// A VM.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSetup {
    /// Name of the VM, for tables.
    pub name: String,
    /// Load of the VM.
    pub load: Load,
    /// Number of its vCPUs.
    pub vcpus: usize,
    /// Parameters of the VM.
    pub params: Params,
    /// The CPUs each vCPU may run on: one set for all, or one for each.
    pub affinity: Vec<CpuSet>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Speeds of the CPUs in thousandths of a usual one's.
    pub cpus: Vec<u32>,
    /// Costs of the hardware.
    pub costs: Costs,
    /// The VMs.
    pub domains: Vec<DomainSetup>,
    /// The policy.
    pub policy: Policy,
    /// Further settings of the policy. Its seed is replaced by one drawn from
    /// `seed`.
    pub knobs: PolicySettings,
    /// Seed of all chance.
    pub seed: u64,
    /// Time not measured, at the beginning.
    pub warm_up: Nanos,
    /// Time measured, after that.
    pub length: Nanos,
    /// Time between two looks at the queues.
    pub sample: Nanos,
    /// Time over which lag is taken.
    pub lag: Nanos,
}

/// Reason why a setup cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// There are no CPUs, too many, or one that stands still.
    #[error("wanted 1 to 128 CPUs, each of a speed above 0")]
    Cpus,
    /// A domain has no vCPUs.
    #[error("domain {0} has no vCPUs: give it at least one")]
    NoVcpus(String),
    /// A domain's affinity is not of it.
    #[error("domain {0} may run on no CPU there is, or has affinities for another number of vCPUs")]
    Affinity(String),
    /// A period is zero.
    #[error("{0} is zero: give it a time")]
    Zero(&'static str),
    /// The policy cannot be made.
    #[error("cannot make the policy")]
    Policy(#[from] PolicyError),
    /// The policy refuses a domain.
    #[error("{policy} refuses domain {domain}")]
    Refused {
        /// The policy.
        policy: Policy,
        /// Name of the domain.
        domain: String,
        /// Cause.
        source: InvalidParams,
    },
}

impl DomainSetup {
    /// A VM that may run anywhere, with nothing promised.
    pub fn new(name: impl Into<String>, vcpus: usize, load: Load) -> Self {
        Self {
            name: name.into(),
            load,
            vcpus,
            params: Params::default(),
            affinity: Vec::new(),
        }
    }

    /// The CPUs one of its vCPUs may run on.
    pub(super) fn affinity(&self, who: usize) -> CpuSet {
        match self.affinity.as_slice() {
            [] => CpuSet::ALL,
            [all] => *all,
            each => each.get(who).copied().unwrap_or(CpuSet::NONE),
        }
    }
}

impl Setup {
    /// CPUs of usual speed and these VMs, for ten seconds after one.
    pub fn new(cpus: usize, policy: Policy, domains: Vec<DomainSetup>) -> Self {
        Self {
            cpus: vec![1_000; cpus],
            costs: Costs::default(),
            domains,
            policy,
            knobs: PolicySettings::default(),
            seed: 1,
            warm_up: Nanos::secs(1),
            length: Nanos::secs(10),
            sample: Nanos::millis(50),
            lag: Nanos::secs(1),
        }
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<(), SetupError> {
        let most = CpuSet::MOST;
        if self.cpus.is_empty() || self.cpus.len() > most || self.cpus.contains(&0) {
            return Err(SetupError::Cpus);
        }
        for (what, time) in [
            ("the length", self.length),
            ("the sample period", self.sample),
            ("the lag period", self.lag),
            ("the footprint of caches", self.costs.footprint),
            ("the interval of speed balancing", self.knobs.speed.interval),
        ] {
            if time == Nanos::ZERO {
                return Err(SetupError::Zero(what));
            }
        }
        for domain in &self.domains {
            if domain.vcpus == 0 {
                return Err(SetupError::NoVcpus(domain.name.clone()));
            }
            let fits =
                matches!(domain.affinity.len(), 0 | 1) || domain.affinity.len() == domain.vcpus;
            let some = (0..domain.vcpus).all(|who| {
                let set = domain.affinity(who);
                (0..self.cpus.len()).any(|cpu| set.contains(crate::CpuId::from_place(cpu)))
            });
            if !fits || !some {
                return Err(SetupError::Affinity(domain.name.clone()));
            }
            domain.load.check()?;
        }
        Ok(())
    }
}
