//! `friendly`: guests that adapt their own demand: told to, on paper, rehearsed,
//! and policed.

mod guest;
mod police;

use crate::{args::Format, output};
use anyhow::Context;
use clap::{Args, Subcommand};
use forkyard_api_client::Client;
use forkyard_friendly::{Config, HostModel, LawConfig, Sharers, jain_index};
use forkyard_friendly_model::{
    Model, Regime, Roots, Steady, Trajectory, adapt, admit, plot, steady,
};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Differences that count as fair: a twentieth.
const FAIR: f64 = 0.05;

/// `friendly`
#[derive(Debug, Subcommand)]
pub enum Friendly {
    /// Have a VM adapt its demand to what its host can give, or end that.
    #[command(
        after_help = "Examples:\n  forkyard friendly set web\n  forkyard friendly set web --law quick monitor.threshold=2\n  forkyard friendly set web --group image --config friendly.toml\n  forkyard friendly set web --off"
    )]
    Set(guest::Set),
    /// Show whether a VM is friendly, what it senses, and what it does.
    #[command(after_help = "Example: forkyard friendly show web -o json")]
    Show(guest::Show),
    /// Follow the fluid model: guests that adapt, beside an admission controller.
    #[command(
        after_help = "Examples:\n  forkyard friendly model\n  forkyard friendly model --starts 1,1,40 --gamma 0.3 --out plots\n  forkyard friendly model --file model.toml -o json\n  forkyard friendly model --config friendly.toml"
    )]
    Model(Modelled),
    /// Rehearse a configuration: simulated guests that run the real monitor and
    /// the real controller on one host.
    #[command(
        after_help = "Example: forkyard friendly try --config friendly.toml --starts 4,7,10,13,16 --capacity 50"
    )]
    Try(Tried),
    /// Have a host's VMs policed: those that have more than a fair share of its CPUs
    /// while others wait, and do not yield, are named; with --enforce, capped.
    #[command(
        after_help = "Examples:\n  forkyard friendly police --seconds 60 -o json\n  forkyard friendly police --enforce\n  forkyard friendly police --enforce --detach\n  forkyard friendly police --show\n  forkyard friendly police --end"
    )]
    Police(police::Policed),
}

/// `friendly model`
#[derive(Debug, Args)]
pub struct Modelled {
    /// Constants in TOML, by the names of the flags; a flag beats it.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Threads of each guest at first.
    #[arg(long, value_delimiter = ',')]
    starts: Option<Vec<f64>>,
    /// K₁: what a thread takes of the resource.
    #[arg(long)]
    k1: Option<f64>,
    /// γ: weight of the newest price.
    #[arg(long)]
    gamma: Option<f64>,
    /// σ: congestion for each unit of the price.
    #[arg(long)]
    sigma: Option<f64>,
    /// A configuration of guests, as forkyard-friendly reads it: what its law adds and
    /// divides by, and its γ, a unit of time being a control period.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Threads that guests add in a unit of time without congestion.
    #[arg(long)]
    add: Option<f64>,
    /// Factor that they divide their threads by under congestion.
    #[arg(long)]
    divide: Option<f64>,
    /// K₂: how fast the admission controller reacts.
    #[arg(long)]
    k2: Option<f64>,
    /// Price that the admission controller aims at.
    #[arg(long)]
    target: Option<f64>,
    /// Part of the threads that ends in a unit of time, under the admission
    /// controller.
    #[arg(long)]
    churn: Option<f64>,
    /// Duration of the simulation.
    #[arg(long)]
    until: Option<f64>,
    /// Folder for the plots fig3a.svg and fig3b.svg; made if missing.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// `friendly try`
#[derive(Debug, Args)]
pub struct Tried {
    /// The configuration, as forkyard-friendly reads it; without, what holds if nothing
    /// is said there.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Threads of each guest at first.
    #[arg(long, value_delimiter = ',', default_value = "4,7,10,13,16")]
    starts: Vec<u32>,
    /// Threads of all guests with which the host is three times slower.
    #[arg(long, default_value_t = 50.0)]
    capacity: f64,
    /// Steepness of the onset: 1 as of a CPU, 8 as of memory.
    #[arg(long, default_value_t = 8.0)]
    steepness: f64,
    /// By what part single ticks differ.
    #[arg(long, default_value_t = 0.05)]
    noise: f64,
    /// A few threads keep a guest's CPUs busy: more get no more done.
    #[arg(long)]
    busy: bool,
    /// Control periods.
    #[arg(long, default_value_t = 240)]
    periods: u32,
    /// Seed of chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Carries out what needs no daemon; None of what does.
pub fn alone(format: Format, wanted: &Friendly) -> Option<anyhow::Result<ExitCode>> {
    let done = match wanted {
        Friendly::Model(wanted) => model(format, wanted),
        Friendly::Try(wanted) => rehearse(format, wanted),
        Friendly::Set(_) | Friendly::Show(_) | Friendly::Police(_) => return None,
    };
    Some(done.map(|()| ExitCode::SUCCESS))
}

/// Carries it out.
pub async fn friendly(
    client: &Client,
    format: Format,
    wanted: &Friendly,
) -> anyhow::Result<ExitCode> {
    match wanted {
        Friendly::Model(wanted) => model(format, wanted)?,
        Friendly::Try(wanted) => rehearse(format, wanted)?,
        Friendly::Set(wanted) => guest::set(client, format, wanted).await?,
        Friendly::Show(wanted) => guest::show(client, format, wanted).await?,
        Friendly::Police(wanted) => police::police(client, format, wanted).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

impl Modelled {
    fn model(&self) -> anyhow::Result<Model> {
        let mut model = match &self.file {
            Some(path) => Model::parse(&read(path)?)
                .with_context(|| format!("{} is refused", path.display()))?,
            None => Model::default(),
        };
        if let Some(path) = &self.config {
            let config = Config::parse(&read(path)?)
                .with_context(|| format!("{} is refused", path.display()))?;
            (model.add, model.divide) = steps(&config.threads.law)?;
            model.gamma = config.monitor.ewma;
        }
        if let Some(starts) = &self.starts {
            model.starts.clone_from(starts);
        }
        for (flag, field) in [
            (self.k1, &mut model.k1),
            (self.gamma, &mut model.gamma),
            (self.sigma, &mut model.sigma),
            (self.add, &mut model.add),
            (self.divide, &mut model.divide),
            (self.k2, &mut model.k2),
            (self.target, &mut model.target),
            (self.churn, &mut model.churn),
            (self.until, &mut model.until),
        ] {
            if let Some(value) = flag {
                *field = value;
            }
        }
        model.check()?;
        Ok(model)
    }
}

/// Returns a law's step up and the factor of its step down: the values that
/// equation 7 uses.
fn steps(law: &LawConfig) -> anyhow::Result<(f64, f64)> {
    match *law {
        LawConfig::Aimd { add, divide }
        | LawConfig::Careful { add, divide, .. }
        | LawConfig::Steady { add, divide, .. } => Ok((add, divide)),
        LawConfig::Binomial { .. } | LawConfig::Pi { .. } | LawConfig::Quick { .. } => {
            anyhow::bail!(
                "the model has no equation for the law {:?}: rehearse it with `forkyard friendly try`",
                law.build().name()
            )
        }
    }
}

fn model(format: Format, wanted: &Modelled) -> anyhow::Result<()> {
    let model = wanted.model()?;
    let rest = steady(&model);
    let adapted = adapt(&model)?;
    let admitted = admit(&model)?;
    if let Some(out) = &wanted.out {
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        for (trajectory, title, name) in [
            (&adapted, "Guests that adapt", "fig3a.svg"),
            (&admitted, "An admission controller", "fig3b.svg"),
        ] {
            plot(trajectory, title, &out.join(name))?;
        }
    }
    if format == Format::Json {
        return output::json(&json!({
            "model": model,
            "steady": rest,
            "adaptation": adapted,
            "admission": admitted,
        }));
    }
    over_time("Guests that adapt (figure 3a): threads", &adapted);
    over_time("Admission control (figure 3b): threads", &admitted);
    at_rest(&rest);
    for (name, trajectory) in [("adaptation", &adapted), ("admission", &admitted)] {
        match trajectory.fair_from(FAIR) {
            Some(from) => say!("{name}: guests within 5 % of each other from {from:.1} on"),
            None => say!("{name}: guests never within 5 % of each other"),
        }
    }
    Ok(())
}

/// A line for each eleventh part of the time, or thereabouts.
fn over_time(title: &str, trajectory: &Trajectory) {
    const LINES: usize = 10;
    say!("{title}");
    let step = (trajectory.times.len() / LINES).max(1);
    let last = trajectory.times.len().saturating_sub(1);
    let at = |values: &[f64], n: usize| values.get(n).copied().unwrap_or(f64::NAN);
    let lines = (0..trajectory.times.len()).filter(|n| n % step == 0 && n + step / 2 < last);
    for n in lines.chain([last]) {
        let threads: Vec<_> = trajectory
            .threads
            .iter()
            .map(|line| format!("{:6.2}", at(line, n)))
            .collect();
        say!(
            "{:8.1}  {}  price {:9.0}  feedback {:.3}",
            at(&trajectory.times, n),
            threads.join(" "),
            at(&trajectory.price, n),
            at(&trajectory.control, n),
        );
    }
    say!("");
}

fn at_rest(rest: &Steady) {
    say!(
        "At rest: {:.3} threads each, congestion {:.4}, price {:.0}",
        rest.threads,
        rest.congestion,
        rest.price
    );
    say!(
        "Linearised: alpha {:.3}, beta {:.4}; roots {}: {}",
        rest.alpha,
        rest.beta,
        roots(&rest.roots),
        regime(rest.regime)
    );
    say!(
        "By equation 15: G {:.4}; roots {}: {}",
        rest.g,
        roots(&rest.paper_roots),
        regime(rest.paper_regime)
    );
}

fn roots(roots: &Roots) -> String {
    let [a, b] = roots;
    match a.im == 0.0 {
        true => format!("{:.4} and {:.4}", a.re, b.re),
        false => format!("{:.4} ± {:.4}i", a.re, a.im),
    }
}

fn regime(regime: Regime) -> &'static str {
    match regime {
        Regime::Exponential => "straight to rest",
        Regime::Oscillatory => "swinging to rest",
        Regime::Unstable => "never at rest",
    }
}

fn rehearse(format: Format, wanted: &Tried) -> anyhow::Result<()> {
    let config = match &wanted.config {
        Some(path) => {
            Config::parse(&read(path)?).with_context(|| format!("{} is refused", path.display()))?
        }
        None => Config::default(),
    };
    for (name, value, fine) in [
        ("--capacity", wanted.capacity, wanted.capacity > 0.0),
        (
            "--steepness",
            wanted.steepness,
            (0.1..=64.0).contains(&wanted.steepness),
        ),
        ("--noise", wanted.noise, (0.0..1.0).contains(&wanted.noise)),
    ] {
        anyhow::ensure!(
            fine && value.is_finite(),
            "{name} is {value}: capacity is over 0, steepness 0.1 to 64, noise 0 to 1"
        );
    }
    anyhow::ensure!(
        !wanted.starts.is_empty() && (1..=1_000_000).contains(&wanted.periods),
        "nothing to rehearse: give guests, and 1 to 1000000 periods"
    );
    let host = HostModel {
        capacity: wanted.capacity,
        steepness: wanted.steepness,
        noise: wanted.noise,
        busy: wanted.busy,
    };
    let mut sharers = Sharers::new(&config, &wanted.starts, host, wanted.seed);
    let rounds: Vec<_> = (0..wanted.periods).map(|_| sharers.period()).collect();
    let fair = |demand: &[f64]| jain_index(demand).unwrap_or(0.0);
    if format == Format::Json {
        let rounds: Vec<_> = rounds
            .iter()
            .map(|round| {
                json!({
                    "demand": round.demand,
                    "slowdown": round.slowdown,
                    "congested": round.congested,
                    "jain": fair(&round.demand),
                })
            })
            .collect();
        return output::json(&json!({ "config": config, "periods": rounds }));
    }
    say!(
        "Threads of each guest, by the law {:?}",
        config.threads.law.build().name()
    );
    let step = rounds.len().div_ceil(24).max(1);
    for (n, round) in rounds.iter().enumerate().step_by(step) {
        let demand: Vec<_> = round.demand.iter().map(|n| format!("{n:6.2}")).collect();
        say!(
            "{n:6}  {}  slowdown {:6.2}  fairness {:.3}",
            demand.join(" "),
            round.slowdown,
            fair(&round.demand)
        );
    }
    let half = &rounds[rounds.len() / 2..];
    let mean = |of: &dyn Fn(&forkyard_friendly::PeriodRecord) -> f64| {
        half.iter().map(of).sum::<f64>() / half.len() as f64
    };
    say!(
        "Second half: fairness {:.3}, load {:.2} of capacity, slowdown {:.2}",
        mean(&|round| fair(&round.demand)),
        mean(&|round| round.demand.iter().sum::<f64>() / wanted.capacity),
        mean(&|round| round.slowdown)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_takes_the_constants_of_laws_that_it_has_an_equation_for() {
        assert_eq!(steps(&LawConfig::STEADY).expect("fine"), (1.0, 1.5));
        steps(&LawConfig::QUICK).expect_err("its steps grow");
    }
}
