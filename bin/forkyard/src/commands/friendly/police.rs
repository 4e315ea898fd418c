//! `friendly police`: names the guests that do not yield, and caps them if told to.
//!
//! A cap is the dispatcher's, of `forkyard sched`: it holds a VM back to its fair
//! share for as long as the police goes on.

use crate::{args::Format, commands::top};
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_friendly::{Finding, Police, PoliceConfig, Sample, Use};
use forkyard_types::{
    ErrorKind, SchedLevel, SchedPolicy, SchedSettings, SchedState, Usage, VmId, VmUsage,
};
use hyper::Method;
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The least a VM is capped to, in per cent of a CPU: it is to answer still.
const LEAST: u32 = 5;

const DEAF: &str = "cannot hear of signals";
/// Time without a sample that is borne: the daemon is started anew, most likely.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time a daemon is waited for at the end, to let guests go, and the time between two tries.
const RETURN: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(200);

/// Measure that VMs' shares are in proportion to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// All have equal shares.
    Vm,
    /// Their virtual CPUs.
    Vcpu,
}

/// `friendly police`
#[derive(Debug, Args)]
pub struct Policed {
    /// Seconds between samples, such as 0.5.
    #[arg(long, default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Seconds to go on for; without, until interrupted.
    #[arg(long)]
    seconds: Option<u64>,
    /// Part of what other VMs want that they have to wait for, or more, for one to be
    /// asked to want less.
    #[arg(long, default_value_t = PoliceConfig::default().waiting)]
    waiting: f64,
    /// Measure that VMs' shares are in proportion to.
    #[arg(long, value_enum, default_value_t = By::Vm)]
    by: By,
    /// Cap the guests that are named to a fair share of CPU time, by the dispatcher of
    /// `forkyard sched` under the policy credit, until this command ends.
    #[arg(long)]
    enforce: bool,
}

/// Reads an interval: shorter ones would measure how long a tick is.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (0.1..=60.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("it must be 0.1 to 60 seconds".to_owned()),
    }
}

/// Names guests as they are found, a line each.
pub async fn police(client: &Client, format: Format, wanted: &Policed) -> anyhow::Result<()> {
    ensure!(
        wanted.waiting > 0.0 && wanted.waiting <= 1.0,
        "--waiting is {}: it must be over 0, at most 1",
        wanted.waiting
    );
    let mut custody = match wanted.enforce {
        true => Some(Custody::new(client).await?),
        false => None,
    };
    let policed = go_on(client, format, wanted, custody.as_mut()).await;
    if let Some(custody) = custody {
        custody.end().await;
    }
    policed
}

async fn go_on(
    client: &Client,
    format: Format,
    wanted: &Policed,
    mut custody: Option<&mut Custody<'_>>,
) -> anyhow::Result<()> {
    let ends = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [interrupt, terminate, hangup] = ends.map(signal);
    let mut signals = [
        interrupt.context(DEAF)?,
        terminate.context(DEAF)?,
        hangup.context(DEAF)?,
    ];
    let began = Instant::now();
    let mut police = Police::new(PoliceConfig {
        waiting: wanted.waiting,
        ..PoliceConfig::default()
    });
    let mut before = top::sample(client).await?;
    let mut sampled = Instant::now();
    while wanted
        .seconds
        .is_none_or(|seconds| began.elapsed() < Duration::from_secs(seconds))
    {
        let pause = tokio::time::sleep(Duration::from_secs_f64(wanted.interval));
        tokio::select! {
            () = pause => {}
            () = told_to_end(&mut signals) => break,
        }
        let now = match top::sample(client).await {
            Ok(now) => now,
            // The daemon may be on its way back; a capped guest is to stay so.
            Err(error) if sampled.elapsed() < PATIENCE => {
                tell!("forkyard: no sample ({error:#}): goes on");
                continue;
            }
            Err(error) => return Err(error),
        };
        sampled = Instant::now();
        for found in police.sample(&seen(&before, &now, wanted.by)) {
            let cap = match &mut custody {
                Some(custody) => custody.take(&now, &found).await?,
                None => None,
            };
            name(format, &found, cap)?;
        }
        before = now;
    }
    Ok(())
}

/// Cancel-safe: a signal that was heard is not lost.
async fn told_to_end([interrupt, terminate, hangup]: &mut [Signal; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// Guests that are capped, until its end.
struct Custody<'a> {
    client: &'a Client,
    /// VMs, and their names.
    capped: BTreeMap<VmId, String>,
}

impl<'a> Custody<'a> {
    /// Checks that VMs can be capped, and let go afterwards: nothing else schedules them.
    async fn new(client: &'a Client) -> anyhow::Result<Self> {
        match client.call::<SchedState>(Method::GET, "/v1/sched").await {
            Ok(state) if !state.vms.is_empty() => bail!(
                "VMs are scheduled there already, by the policy {}: release them first (forkyard sched release VM)",
                state.policy
            ),
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            client,
            capped: BTreeMap::new(),
        })
    }

    /// Caps a VM to its share; to how many per cent of a CPU. None if it has gone,
    /// or is capped already.
    async fn take(&mut self, now: &Usage, found: &Finding<String>) -> anyhow::Result<Option<u32>> {
        let named = |one: &&VmUsage| one.vm.name.to_string() == found.guest;
        let Some(vm) = now.vms.iter().find(named).map(|one| one.vm.id) else {
            return Ok(None);
        };
        if self.capped.contains_key(&vm) {
            return Ok(None);
        }
        let cap = percent(found.share);
        let settings = SchedSettings {
            level: Some(SchedLevel::Enforce),
            policy: Some(SchedPolicy::Credit),
            cap: Some(cap),
            ..SchedSettings::default()
        };
        // Before it is done: what is half done is undone as well.
        self.capped.insert(vm, found.guest.clone());
        let path = of_vm(&vm.to_string(), "sched");
        match self.client.put::<SchedState>(&path, &settings).await {
            Ok(_) => Ok(Some(cap)),
            // It has ended since it was looked at.
            Err(error) if is_gone(&error) => {
                self.capped.remove(&vm);
                Ok(None)
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                Err(error.context(format!("cannot cap {}", found.guest)))
            }
        }
    }

    /// Lets them go.
    async fn end(self) {
        for (vm, name) in &self.capped {
            let path = of_vm(&vm.to_string(), "sched");
            let began = Instant::now();
            let released = loop {
                let released = self.client.call::<SchedState>(Method::DELETE, &path).await;
                match &released {
                    // The daemon may be on its way back.
                    Err(error) if error.is_no_daemon() && began.elapsed() < RETURN => {
                        tokio::time::sleep(AGAIN).await;
                    }
                    _ => break released,
                }
            };
            // One that has ended is forgotten by the dispatcher itself.
            if let Err(error) = released
                && !is_gone(&error)
            {
                let error = anyhow::Error::new(error);
                tell!("forkyard: {name} stays capped ({error:#}): forkyard sched release {name}");
            }
        }
    }
}

/// Tells whether the VM is not there any more, does not run, or is not scheduled.
fn is_gone(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Refused(refused)
            if matches!(refused.kind, ErrorKind::NotFound | ErrorKind::Conflict)
    )
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "it is rounded, and far below what is too much"
)]
fn percent(share: f64) -> u32 {
    (share * 100.0).round().clamp(f64::from(LEAST), 1e6) as u32
}

/// Computes VMs' use and demand between two looks, in CPUs that the host had itself.
/// One that was started again since has used nothing yet.
fn seen(before: &Usage, now: &Usage, by: By) -> Sample<String> {
    let stolen = now.stolen_us.saturating_sub(before.stolen_us) / u64::from(now.cpus.max(1));
    let elapsed = now.at_us.saturating_sub(before.at_us);
    let had = elapsed.saturating_sub(stolen).max(1) as f64;
    let used = |vm: &VmUsage| {
        let earlier = before.vms.iter().find(|one| one.vm.id == vm.vm.id)?;
        let used = vm.cpu_us.saturating_sub(earlier.cpu_us);
        let waited = vm.waited_us.saturating_sub(earlier.waited_us);
        let one = Use {
            used: used as f64 / had,
            wanted: (used + waited) as f64 / had,
            weight: match by {
                By::Vm => 1.0,
                By::Vcpu => vm.vm.vcpus.into(),
            },
        };
        Some((vm.vm.name.to_string(), one))
    };
    now.vms.iter().filter_map(used).collect()
}

fn name(format: Format, found: &Finding<String>, cap: Option<u32>) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            let mut told = serde_json::to_value(found)?;
            told["capped_percent"] = json!(cap);
            say!("{told}");
        }
        Format::Text => {
            say!(
                "{} does not yield: it had {:.2} CPUs, where a fair share was {:.2} and others \
                 waited; it wanted {:.2} before, and {:.2} at the least since; {} times on end",
                found.guest,
                found.used,
                found.share,
                found.before,
                found.fell_to,
                found.missed
            );
            if let Some(cap) = cap {
                say!("{} is capped to {cap} % of a CPU", found.guest);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::rows;
    use forkyard_types::FamilyId;

    #[test]
    fn what_is_waited_for_is_wanted_and_what_is_stolen_was_never_there() {
        let mut vm = rows::tests::vm("p", FamilyId::random(), 0, None);
        let before = rows::tests::at(0, std::slice::from_ref(&vm));
        (vm.cpu_us, vm.waited_us, vm.vm.vcpus) = (800, 400, 2);
        // A fifth of the time of two CPUs.
        let now = Usage {
            stolen_us: 400,
            ..rows::tests::at(1000, &[vm])
        };
        let wanted = |weight| Use {
            used: 1.0,
            wanted: 1.5,
            weight,
        };
        assert_eq!(seen(&before, &now, By::Vm)["p"], wanted(1.0));
        assert_eq!(seen(&before, &now, By::Vcpu)["p"], wanted(2.0));
    }

    #[test]
    fn caps_are_shares_and_leave_something_to_answer_with() {
        assert_eq!(percent(0.333), 33);
        assert_eq!(percent(1.5), 150);
        assert_eq!(percent(0.0), LEAST);
    }
}
