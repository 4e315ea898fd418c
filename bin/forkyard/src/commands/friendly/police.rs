//! `friendly police`: the daemon's client. The daemon names the guests that do not yield, and caps
//! them if told to.
//!
//! ```text
//! none there? PUT --> every interval: GET, new findings are told --> interrupted, or time over: DELETE
//!                       \--every so often: PUT again, or it ends by itself
//! ```
//!
//! Should this command be killed, the police ends a little later and lets all go.

use crate::{args::Format, output};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use forkyard_api_client::{Client, ClientError};
use forkyard_types::{ErrorKind, PoliceBy, PoliceFinding, PoliceSettings, PoliceState};
use hyper::Method;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

const PATH: &str = "/v1/friendly/police";
const ANOTHER: &str = "there is a police already: `forkyard friendly police --show` shows it, \
    `forkyard friendly police --end` ends it";
const DEAF: &str = "cannot hear of signals";
/// Seconds after which the police ends unless this command asks for it again, and the time between
/// two requests for it.
const LEASE_S: u32 = 60;
const RENEW: Duration = Duration::from_secs(10);
/// Time without an answer that is borne: the daemon is started anew, most likely.
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
    seconds: Option<u32>,
    /// Part of what other VMs want that they have to wait for, or more, for one to be
    /// asked to want less.
    #[arg(long, default_value_t = PoliceSettings::default().waiting, value_parser = part)]
    waiting: f64,
    /// Measure that VMs' shares are in proportion to.
    #[arg(long, value_enum, default_value_t = By::Vm)]
    by: By,
    /// Cap the guests that are named to a fair share of CPU time, by the dispatcher of
    /// `forkyard sched` under the policy credit, until the police ends.
    #[arg(long)]
    enforce: bool,
    /// Return at once; the daemon goes on, for as many seconds as --seconds says or until
    /// `friendly police --end`.
    #[arg(long)]
    detach: bool,
    /// Show the police that there is: which guests it has named, and which it has capped.
    #[arg(long, conflicts_with_all = ["interval", "seconds", "waiting", "by", "enforce", "detach"])]
    show: bool,
    /// End the police that there is; the guests that it capped are let go.
    #[arg(long, conflicts_with_all = ["interval", "seconds", "waiting", "by", "enforce", "detach", "show"])]
    end: bool,
}

/// Reads an interval: shorter ones would measure how long a tick is.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (0.1..=60.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("it must be 0.1 to 60 seconds".to_owned()),
    }
}

/// Reads a part of a whole.
fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match part > 0.0 && part <= 1.0 {
        true => Ok(part),
        false => Err("it must be over 0, at most 1".to_owned()),
    }
}

/// Names guests as they are found, a line each.
pub async fn police(client: &Client, format: Format, wanted: &Policed) -> anyhow::Result<()> {
    if wanted.show {
        return show(format, &client.call(Method::GET, PATH).await?);
    }
    if wanted.end {
        return show(format, &client.call(Method::DELETE, PATH).await?);
    }
    if wanted.detach {
        let begun = client.put(PATH, &wanted.settings(wanted.seconds)).await?;
        return show(format, &begun);
    }
    // From before there is anything to end.
    let ends = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [interrupt, terminate, hangup] = ends.map(signal);
    let signals = [
        interrupt.context(DEAF)?,
        terminate.context(DEAF)?,
        hangup.context(DEAF)?,
    ];
    // This command ends what it begins, and nothing else.
    match client.call::<PoliceState>(Method::GET, PATH).await {
        Ok(_) => bail!("{ANOTHER}"),
        Err(error) if is_over(&error) => {}
        Err(error) => return Err(error.into()),
    }
    let begun = client.put(PATH, &wanted.settings(Some(LEASE_S))).await?;
    let followed = follow(client, format, wanted, begun, signals).await;
    if let Ok(Outcome::EndedThere) = followed {
        bail!("the police was ended there: by another command, or for want of an answer");
    }
    let ended = end(client).await;
    followed.and(ended)
}

impl Policed {
    fn settings(&self, for_s: Option<u32>) -> PoliceSettings {
        PoliceSettings {
            interval_s: self.interval,
            waiting: self.waiting,
            by: match self.by {
                By::Vm => PoliceBy::Vm,
                By::Vcpu => PoliceBy::Vcpu,
            },
            enforce: self.enforce,
            for_s,
        }
    }
}

/// Reason for which it is followed no more.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The time is over, or a signal came.
    Over,
    /// There is none any more, or another.
    EndedThere,
}

async fn follow(
    client: &Client,
    format: Format,
    wanted: &Policed,
    begun: PoliceState,
    mut signals: [Signal; 3],
) -> anyhow::Result<Outcome> {
    let pause = Duration::from_secs_f64(wanted.interval).min(RENEW);
    let began = Instant::now();
    let (mut heard, mut renewed) = (began, began);
    let mut told = last(&begun);
    while wanted
        .seconds
        .is_none_or(|seconds| began.elapsed() < Duration::from_secs(seconds.into()))
    {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told_to_end(&mut signals) => break,
        }
        let state = match ask(client, wanted, &mut renewed).await {
            Ok(Some(state)) => state,
            Ok(None) => return Ok(Outcome::EndedThere),
            Err(error) if is_over(&error) => return Ok(Outcome::EndedThere),
            // The daemon may be on its way back, and goes on then.
            Err(error) if heard.elapsed() < PATIENCE => {
                let error = anyhow::Error::new(error);
                tell!("forkyard: no answer ({error:#}): goes on");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        heard = Instant::now();
        for found in news(&state, told) {
            name(format, found)?;
            if let Some(problem) = &found.problem {
                bail!("{problem}");
            }
        }
        told = last(&state);
    }
    Ok(Outcome::Over)
}

/// Asks for the state, and from time to time for the police to go on. None if that is another by
/// now.
async fn ask(
    client: &Client,
    wanted: &Policed,
    renewed: &mut Instant,
) -> Result<Option<PoliceState>, ClientError> {
    // First: one that was ended is not to begin again.
    let state: PoliceState = client.call(Method::GET, PATH).await?;
    let for_s = state.settings.for_s;
    if wanted.settings(for_s) != state.settings {
        return Ok(None);
    }
    if renewed.elapsed() < RENEW {
        return Ok(Some(state));
    }
    let state = client.put(PATH, &wanted.settings(Some(LEASE_S))).await?;
    *renewed = Instant::now();
    Ok(Some(state))
}

/// Number of the last finding; 0 if there is none.
fn last(state: &PoliceState) -> u64 {
    state.named.last().map_or(0, |found| found.number)
}

/// Findings after this one.
fn news(state: &PoliceState, told: u64) -> impl Iterator<Item = &PoliceFinding> {
    let found = state.named.iter();
    found.filter(move |found| found.number > told)
}

/// Cancel-safe: a signal that was heard is not lost.
async fn told_to_end([interrupt, terminate, hangup]: &mut [Signal; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// Ends it; all that it capped are let go.
async fn end(client: &Client) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match client.call::<PoliceState>(Method::DELETE, PATH).await {
            Ok(_) => return Ok(()),
            Err(error) if is_over(&error) => return Ok(()),
            // The daemon may be on its way back.
            Err(error) if error.is_no_daemon() && began.elapsed() < RETURN => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tells whether there is no police any more.
fn is_over(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refused) if refused.kind == ErrorKind::NotFound)
}

fn show(format: Format, state: &PoliceState) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(state);
    }
    say!("{}", summary(state));
    for found in &state.named {
        name(format, found)?;
    }
    Ok(())
}

/// A line for people.
fn summary(state: &PoliceState) -> String {
    let PoliceSettings {
        interval_s,
        enforce,
        ..
    } = state.settings;
    let caps = state.capped.iter();
    let caps: Vec<String> = caps
        .map(|cap| format!("{} to {} % of a CPU", cap.guest, cap.percent))
        .collect();
    let capped = match (enforce, caps.is_empty()) {
        (false, _) => "caps none".to_owned(),
        (true, true) => "has capped none".to_owned(),
        (true, false) => format!("has capped {}", caps.join(", ")),
    };
    format!(
        "Looks every {interval_s} s, at {} VMs the last time; {capped}",
        state.watched
    )
}

fn name(format: Format, found: &PoliceFinding) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            let told = serde_json::to_value(found)?;
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
            if let Some(cap) = found.capped_percent {
                say!("{} is capped to {cap} % of a CPU", found.guest);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::{PoliceCap, VmId};

    fn finding(number: u64) -> PoliceFinding {
        PoliceFinding {
            number,
            guest: "p".to_owned(),
            vm: VmId::random(),
            before: 4.0,
            fell_to: 3.9,
            used: 1.5,
            share: 0.9,
            missed: 3,
            capped_percent: None,
            problem: None,
        }
    }

    #[test]
    fn each_finding_is_told_once_though_old_ones_are_dropped() {
        let mut state = PoliceState::default();
        assert_eq!(last(&state), 0);
        state.named = vec![finding(1), finding(2)];
        let told = last(&state);
        state.named = vec![finding(2), finding(3), finding(4)];
        let numbers = news(&state, told).map(|found| found.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_summary_says_what_is_capped() {
        let mut state = PoliceState::default();
        assert!(summary(&state).ends_with("caps none"));
        state.settings.enforce = true;
        assert!(summary(&state).ends_with("has capped none"));
        state.capped.push(PoliceCap {
            vm: VmId::random(),
            guest: "p".to_owned(),
            pid: 7,
            percent: 90,
        });
        assert!(summary(&state).ends_with("has capped p to 90 % of a CPU"));
    }

    #[test]
    fn parts_and_intervals_have_bounds() {
        assert_eq!(part("0.5"), Ok(0.5));
        assert_eq!(interval("0.1"), Ok(0.1));
        for wrong in ["0", "1.1", "NaN", "x"] {
            part(wrong).expect_err(wrong);
        }
        for wrong in ["0", "61", "NaN", "x"] {
            interval(wrong).expect_err(wrong);
        }
    }
}
