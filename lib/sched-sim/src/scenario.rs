//! Format of a scenario file.

use crate::Measure;
use forkyard_sched::{
    CpuId, CpuSet, Nanos, Params, Policy, PolicySettings, round,
    sim::{Costs, DomainSetup, Load, Setup, SetupError},
};
use serde::Deserialize;

/// A scenario: cases, each run under several policies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Title of the scenario.
    pub title: String,
    /// Origin, and what to heed when reading it.
    #[serde(default)]
    pub notes: String,
    /// Policies to run; the first is what the others are compared with.
    pub policies: Vec<Policy>,
    /// Number of seeds each is run with, from 1 on.
    #[serde(default = "some")]
    pub seeds: u64,
    /// Time measured of each run.
    pub length: Nanos,
    /// Time before that.
    #[serde(default = "second")]
    pub warm_up: Nanos,
    /// Time between looks at the queues.
    #[serde(default = "sample")]
    pub sample: Nanos,
    /// Costs of the hardware.
    #[serde(default)]
    pub costs: Costs,
    /// Settings of the policies.
    #[serde(default)]
    pub knobs: PolicySettings,
    /// Measures to draw, and in which to show the paper's figures.
    #[serde(default)]
    pub plots: Vec<Measure>,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// Published figures.
    #[serde(default, rename = "paper")]
    pub papers: Vec<Paper>,
}

/// A machine, and the VMs on it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Speeds of the CPUs, 1 being a usual one's.
    #[serde(default)]
    pub speeds: Vec<f64>,
    /// Number of CPUs of usual speed, if their speeds are not given.
    #[serde(default)]
    pub cpus: usize,
    /// Time over which lag is taken.
    #[serde(default = "second")]
    pub lag: Nanos,
    /// The VMs. The first is the one whose speed is compared.
    #[serde(rename = "vm")]
    pub vms: Vec<ScenarioVm>,
}

/// A VM, or several alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ScenarioVm {
    /// Name of the VM.
    pub name: String,
    /// Number of them.
    #[serde(default = "one")]
    pub count: usize,
    /// vCPUs of each.
    pub vcpus: usize,
    /// Load of the VM.
    pub load: Load,
    /// Parameters of the VM.
    #[serde(default)]
    pub params: Params,
    /// The CPUs each vCPU may run on: one list for all, or one for each.
    #[serde(default)]
    pub affinity: Vec<Vec<u32>>,
}

/// A figure that was published.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Of which case.
    pub case: String,
    /// Under which policy.
    pub policy: Policy,
    /// Measure of the figure.
    pub measure: Measure,
    /// The figure, as printed there.
    pub value: String,
}

/// Reason why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The text is no scenario.
    #[error("cannot read the scenario")]
    Syntax(#[from] toml::de::Error),
    /// There is nothing to run.
    #[error("the scenario has no {0}: give it at least one")]
    None(&'static str),
    /// A published figure is of a case that there is not.
    #[error("a published figure is of the case {0:?}, of which there is none")]
    NoCase(String),
    /// A case makes no sense.
    #[error("cannot simulate the case {case:?} under {policy}")]
    Case {
        /// Name of the case.
        case: String,
        /// The policy.
        policy: Policy,
        /// Cause.
        source: SetupError,
    },
}

fn one() -> usize {
    1
}

fn some() -> u64 {
    5
}

fn second() -> Nanos {
    Nanos::secs(1)
}

fn sample() -> Nanos {
    Nanos::millis(50)
}

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text)?;
        for (what, none) in [
            ("policies", scenario.policies.is_empty()),
            ("cases", scenario.cases.is_empty()),
            ("seeds", scenario.seeds == 0),
            (
                "VMs in a case",
                scenario.cases.iter().any(|c| c.vms.is_empty()),
            ),
        ] {
            if none {
                return Err(ScenarioError::None(what));
            }
        }
        let known = |name: &str| scenario.cases.iter().any(|case| case.name == name);
        if let Some(paper) = scenario.papers.iter().find(|paper| !known(&paper.case)) {
            return Err(ScenarioError::NoCase(paper.case.clone()));
        }
        Ok(scenario)
    }

    /// One run of it.
    pub fn setup(&self, case: &Case, policy: Policy, seed: u64) -> Setup {
        let cpus = match case.speeds.as_slice() {
            [] => vec![1_000; case.cpus],
            speeds => speeds
                .iter()
                .map(|speed| u32::try_from(round(speed * 1e3)).unwrap_or(u32::MAX))
                .collect(),
        };
        Setup {
            cpus,
            costs: self.costs,
            domains: case.vms.iter().flat_map(domains).collect(),
            policy,
            knobs: self.knobs,
            seed,
            warm_up: self.warm_up,
            length: self.length,
            sample: self.sample,
            lag: case.lag,
        }
    }
}

fn domains(vm: &ScenarioVm) -> Vec<DomainSetup> {
    let name = |n: usize| match vm.count {
        1 => vm.name.clone(),
        _ => format!("{}-{}", vm.name, n + 1),
    };
    let affinity = |cpus: &Vec<u32>| CpuSet::of(cpus.iter().map(|&cpu| CpuId(cpu)));
    (0..vm.count)
        .map(|n| DomainSetup {
            name: name(n),
            load: vm.load.clone(),
            vcpus: vm.vcpus,
            params: vm.params,
            affinity: vm.affinity.iter().map(affinity).collect(),
        })
        .collect()
}
