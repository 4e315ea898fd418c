//! Runs a scenario, and takes means over its seeds.

use crate::{Case, Scenario, ScenarioError};
use forkyard_sched::{
    Nanos, Policy,
    sim::{Outcome, simulate},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Measure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Units of work a second of the first VM.
    Rate,
    /// That, relative to the first policy.
    SpeedUp,
    /// Units of work a second of the second VM, relative to the first policy.
    Neighbour,
    /// vCPUs that share a queue with a sibling, in per cent.
    Stacked,
    /// Fronts of queues with a sibling far away, in per cent; the queue being
    /// those that wait.
    Distant,
    /// Fronts of queues with a sibling far away, in per cent; the queue being
    /// those that wait and the one that runs.
    DistantRunning,
    /// Greatest difference of VMs' times over a lag period, in ms.
    Lag,
    /// Standard deviation of the lag, in per cent of it.
    LagDeviation,
    /// Context switches a second.
    Switches,
    /// Migrations a second.
    Migrations,
    /// Time that the first VM spins, in per cent of its time running.
    Spinning,
    /// The share of all CPUs that the first VM has, in per cent.
    Share,
    /// Median latency of the first VM that has one, in ms.
    Latency,
    /// The latency that 99 of 100 keep under, in ms.
    LatencyP99,
}

/// The means of a case under a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The policy.
    pub policy: Policy,
    /// The means, as far as there is anything to measure.
    pub values: Vec<(Measure, f64)>,
    /// The means of each VM's rate and share: name, units a second, part of all.
    pub vms: Vec<(String, f64, f64)>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimResults {
    /// The scenario's title.
    pub title: String,
    /// Notes on the scenario.
    pub notes: String,
    /// Seeds each mean is over.
    pub seeds: u64,
    /// Case by case, policy by policy.
    pub rows: Vec<Row>,
    /// Measures to draw.
    pub plots: Vec<Measure>,
    /// Published figures: case, policy, measure, figure.
    pub papers: Vec<(String, Policy, Measure, String)>,
    /// Simulated time in all.
    pub simulated: Nanos,
}

/// Runs everything. `told` hears of each run before it begins. Blocks for as long
/// as it takes.
pub fn run(scenario: &Scenario, mut told: impl FnMut(&str)) -> Result<SimResults, ScenarioError> {
    let mut rows = Vec::new();
    let mut simulated = Nanos::ZERO;
    for case in &scenario.cases {
        let mut first: Option<Vec<Outcome>> = None;
        for &policy in &scenario.policies {
            told(&format!("{}: {policy}", case.name));
            let outcomes = seeds(scenario, case, policy)?;
            simulated += (scenario.warm_up + scenario.length).scale(scenario.seeds, 1);
            let base = first.as_ref().unwrap_or(&outcomes);
            rows.push(row(case, policy, &outcomes, base));
            first.get_or_insert(outcomes);
        }
    }
    let papers = scenario.papers.iter();
    Ok(SimResults {
        title: scenario.title.clone(),
        notes: scenario.notes.clone(),
        seeds: scenario.seeds,
        rows,
        plots: scenario.plots.clone(),
        papers: papers
            .map(|p| (p.case.clone(), p.policy, p.measure, p.value.clone()))
            .collect(),
        simulated,
    })
}

fn seeds(scenario: &Scenario, case: &Case, policy: Policy) -> Result<Vec<Outcome>, ScenarioError> {
    let one = |seed| {
        simulate(&scenario.setup(case, policy, seed)).map_err(|source| ScenarioError::Case {
            case: case.name.clone(),
            policy,
            source,
        })
    };
    (1..=scenario.seeds).map(one).collect()
}

fn row(case: &Case, policy: Policy, outcomes: &[Outcome], base: &[Outcome]) -> Row {
    let mean = |of: &dyn Fn(&Outcome) -> Option<f64>| {
        let all: Vec<f64> = outcomes.iter().filter_map(of).collect();
        mean(&all)
    };
    let rate = |nth: usize| move |o: &Outcome| o.domains.get(nth).map(|d| d.rate);
    // Mean of all against mean of all: seeds differ in where VMs began.
    let relative = |nth: usize| {
        let ours: Vec<f64> = outcomes.iter().filter_map(rate(nth)).collect();
        let theirs: Vec<f64> = base.iter().filter_map(rate(nth)).collect();
        Some(self::mean(&ours)? / self::mean(&theirs).filter(|rate| *rate > 0.0)?)
    };
    let vms: usize = case.vms.iter().map(|vm| vm.count).sum();
    let latency = |of: fn(&forkyard_sched::sim::AnswerTimes) -> f64| {
        move |o: &Outcome| {
            let first = o.domains.iter().find_map(|d| d.latency.as_ref());
            first.map(|latency| of(latency) * 1e3)
        }
    };
    let several = case.vms.iter().any(|vm| vm.vcpus > 1);
    let part = |away: forkyard_sched::sim::Away| Some(away.part() * 100.0).filter(|_| several);
    let all = [
        (Measure::Rate, mean(&rate(0))),
        (Measure::SpeedUp, relative(0)),
        (Measure::Neighbour, relative(1)),
        (
            Measure::Share,
            mean(&|o| Some(o.domains.first()?.share * 100.0)),
        ),
        (
            Measure::Spinning,
            mean(&|o| Some(o.domains.first()?.spinning * 100.0)),
        ),
        (Measure::Stacked, mean(&|o| part(o.stacked))),
        (Measure::Distant, mean(&|o| part(o.distant))),
        (Measure::DistantRunning, mean(&|o| part(o.distant_running))),
        (
            Measure::Lag,
            mean(&|o| Some(o.lag.mean * 1e3).filter(|_| vms > 1)),
        ),
        (
            Measure::LagDeviation,
            mean(&|o| Some(o.lag.deviation * 100.0).filter(|_| vms > 1)),
        ),
        (Measure::Switches, mean(&|o| Some(o.switches))),
        (Measure::Migrations, mean(&|o| Some(o.migrations))),
        (Measure::Latency, mean(&latency(|l| l.median))),
        (Measure::LatencyP99, mean(&latency(|l| l.p99))),
    ];
    let names = outcomes
        .first()
        .map(|o| o.domains.as_slice())
        .unwrap_or_default();
    let vm = |(n, domain): (usize, &forkyard_sched::sim::DomainOutcome)| {
        let share = |o: &Outcome| o.domains.get(n).map(|d| d.share);
        (
            domain.name.clone(),
            mean(&rate(n)).unwrap_or(0.0),
            mean(&share).unwrap_or(0.0),
        )
    };
    Row {
        case: case.name.clone(),
        policy,
        values: { all.into_iter() }
            .filter_map(|(measure, value)| Some((measure, value?)))
            .collect(),
        vms: names.iter().enumerate().map(vm).collect(),
    }
}

fn mean(all: &[f64]) -> Option<f64> {
    let count = u32::try_from(all.len()).ok().filter(|&count| count > 0)?;
    Some(all.iter().sum::<f64>() / f64::from(count))
}

impl Row {
    /// One of its means.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        let mut values = self.values.iter();
        values.find(|(m, _)| *m == measure).map(|(_, value)| *value)
    }
}

impl Measure {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 14] = [
        Self::Rate,
        Self::SpeedUp,
        Self::Neighbour,
        Self::Share,
        Self::Spinning,
        Self::Stacked,
        Self::Distant,
        Self::DistantRunning,
        Self::Lag,
        Self::LagDeviation,
        Self::Switches,
        Self::Migrations,
        Self::Latency,
        Self::LatencyP99,
    ];

    /// As the head of a column.
    pub fn head(self) -> &'static str {
        match self {
            Self::Rate => "units/s",
            Self::SpeedUp => "speed-up",
            Self::Neighbour => "neighbour",
            Self::Share => "share %",
            Self::Spinning => "spins %",
            Self::Stacked => "stacked %",
            Self::Distant => "distant %",
            Self::DistantRunning => "(all) %",
            Self::Lag => "lag ms",
            Self::LagDeviation => "lag RSD %",
            Self::Switches => "switches/s",
            Self::Migrations => "moves/s",
            Self::Latency => "p50 ms",
            Self::LatencyP99 => "p99 ms",
        }
    }

    /// As the name of a file.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::SpeedUp => "speed-up",
            Self::Neighbour => "neighbour",
            Self::Share => "share",
            Self::Spinning => "spinning",
            Self::Stacked => "stacked",
            Self::Distant => "distant",
            Self::DistantRunning => "distant-running",
            Self::Lag => "lag",
            Self::LagDeviation => "lag-deviation",
            Self::Switches => "switches",
            Self::Migrations => "migrations",
            Self::Latency => "latency",
            Self::LatencyP99 => "latency-p99",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.head())
    }
}
