//! Guests that are told to be friendly: the program is brought, started, asked
//! and ended, all by commands there.
//!
//! ```text
//! digest? --another, or none--> stop, copy --+
//!    +-- the same ---------------------------+--> set constants --> start
//! ```
//!
//! It lives in memory there, in Forkyard's own folder, and in a group of its own
//! among those that stand still while the VM is forked: a clone has it as it has
//! everything else that runs.

use crate::{args::Format, commands::copy, output};
use anyhow::{Context, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, ValueEnum};
use forkyard_client::{Client, ClientError};
use forkyard_friendly::{Config, LawConfig};
use forkyard_types::{ExecEvent, ExecRequest, ExecTimedOut, ExitStatus, NotStarted};
use serde_json::{Value, json};
use std::{env, fs, path::PathBuf};

/// The program, in guests.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-friendly";
/// Paths of its configuration and state.
const CONFIG: &str = "/opt/forkyard/friendly/friendly.toml";
const STATUS: &str = "/opt/forkyard/friendly/status.json";
/// Where a guest has its groups: what runs there is user code, and stands still
/// while its VM is forked.
const USER: &str = "/opt/forkyard/cgroup/user";
/// The group that the program itself is in.
const HOME: &str = "/opt/forkyard/cgroup/user/friendly";
/// Exit status of the program if none runs.
const NONE_RUNS: u8 = 3;
/// Seconds that one command there may take: it waits for a turn as all do.
const PATIENCE: u32 = 300;
/// Bytes that it may say: the guest's owner may have put anything in its place.
const MOST: usize = 1 << 20;

/// `friendly set`
#[derive(Debug, Args)]
pub struct Set {
    /// VM: name or id.
    vm: String,
    /// End it: everything there is as it was before.
    #[arg(long, conflicts_with_all = ["config", "law", "group", "changes"])]
    off: bool,
    /// Constants, in TOML; without, they stay as they are, at first the usual ones.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The law that threads follow, with its usual constants.
    #[arg(long)]
    law: Option<Law>,
    /// Group to adapt: `exec`, commands that the host has run there; `image`, processes
    /// that the image's init or entry point started; or a group's folder. Without, the one
    /// it adapts already, at first `exec`.
    #[arg(long)]
    group: Option<String>,
    /// Constants to change: KEY=VALUE, as in `monitor.threshold=2`.
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

/// `friendly show`
#[derive(Debug, Args)]
pub struct Show {
    /// VM: name or id.
    vm: String,
}

/// Laws by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Law {
    /// One more, or 1.5 times fewer: the paper's.
    Aimd,
    /// AIMD of congestion as a part, which grows as the threshold comes near.
    Careful,
    /// As careful, but waits for the effect of a step down, and from there goes
    /// up slowly.
    Steady,
    /// Steps of a square root.
    Binomial,
    /// AIMD whose steps double while there is no congestion.
    Quick,
    /// Proportional and integral control.
    Pi,
}

impl Law {
    fn config(self) -> LawConfig {
        match self {
            Self::Aimd => LawConfig::AIMD,
            Self::Careful => LawConfig::CAREFUL,
            Self::Steady => LawConfig::STEADY,
            Self::Binomial => LawConfig::BINOMIAL,
            Self::Quick => LawConfig::QUICK,
            Self::Pi => LawConfig::PI,
        }
    }

    /// As the program takes constants to change.
    fn change(self) -> anyhow::Result<String> {
        let mut config = Config::default();
        config.threads.law = self.config();
        let json = serde_json::to_value(&config)?;
        let law = json["threads"]["law"].as_object().context("no law")?;
        let constants: Vec<_> = law
            .iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        Ok(format!("threads.law={{ {} }}", constants.join(", ")))
    }
}

impl Set {
    /// Returns the folder of the group, if one was given.
    fn group(&self) -> Option<String> {
        self.group.as_deref().map(|group| match group {
            name @ ("exec" | "image") => format!("{USER}/{name}"),
            folder => folder.to_owned(),
        })
    }
}

/// `friendly set`: all of it may be done any number of times.
pub async fn set(client: &Client, format: Format, wanted: &Set) -> anyhow::Result<()> {
    let guest = Guest {
        client,
        vm: &wanted.vm,
    };
    if wanted.off {
        if guest.digest().await?.is_some() {
            guest.told(&["stop", "--status", STATUS], None).await?;
        }
        return shown(format, &guest.state().await?);
    }
    let base = match &wanted.config {
        Some(path) => {
            let text = super::read(path)?;
            Config::parse(&text).with_context(|| format!("{} is refused", path.display()))?;
            Some(text)
        }
        None => None,
    };
    let law = wanted.law.map(Law::change).transpose()?;
    // Before another build is brought, which ends the one that runs.
    let group = match wanted.group() {
        Some(group) => group,
        None => match guest.state().await?["group"].as_str() {
            Some(group) => group.to_owned(),
            None => format!("{USER}/exec"),
        },
    };
    guest.bring().await?;
    let mut words = vec!["set", "--config", CONFIG];
    if base.is_some() {
        words.push("--from-stdin");
    }
    let plain = words.len();
    words.extend(law.as_deref());
    words.extend(wanted.changes.iter().map(String::as_str));
    if base.is_some() || words.len() > plain {
        guest.told(&words, base).await?;
    }
    let start = ["start", "--cgroup", &group, "--home", HOME];
    let places = ["--config", CONFIG, "--status", STATUS];
    guest.told(&[&start[..], &places].concat(), None).await?;
    shown(format, &guest.state().await?)
}

/// `friendly show`
pub async fn show(client: &Client, format: Format, wanted: &Show) -> anyhow::Result<()> {
    let guest = Guest {
        client,
        vm: &wanted.vm,
    };
    shown(format, &guest.state().await?)
}

fn shown(format: Format, state: &Value) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(state);
    }
    say!("{}", summary(state));
    Ok(())
}

/// A few lines for people.
fn summary(state: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.2}"),
            _ => number.to_string(),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => "-".to_owned(),
    };
    let vm = text(&state["vm"]);
    if state["friendly"] != true {
        return format!("{vm} is not friendly");
    }
    let congestion = match state["congested"].as_bool() {
        Some(true) => "congested",
        Some(false) => "not congested",
        None => "its first period has not ended",
    };
    let now = match state["state"]["rate_hz"].as_f64() {
        Some(hz) => format!(
            "one thread at a time, sleeping for {:.1} s in every period",
            1.0 / hz
        ),
        None => format!("{} may run", text(&state["allowed"])),
    };
    let name = |path: &Value| {
        text(path)
            .replace(USER, "")
            .trim_start_matches('/')
            .to_owned()
    };
    format!(
        "{vm} is friendly: {congestion}\n\
         group {}, by {}, law {}\n\
         {now}; {} wanted to, {} stand still\n\
         virtual clock time {} ms, at the least {} ms\n\
         {}",
        name(&state["group"]),
        text(&state["means"]),
        text(&state["config"]["threads"]["law"]["kind"]),
        text(&state["wanting"]),
        text(&state["standing_still"]),
        text(&state["vct_ms"]),
        text(&state["least_vct_ms"]),
        signals(state),
    )
}

/// Lists the value of each signal, whether it counts, and which came first most
/// often.
fn signals(state: &Value) -> String {
    let counts = |name: &str| {
        let counting = state["config"]["monitor"]["signals"].as_array();
        counting.is_some_and(|all| all.iter().any(|one| one == name))
    };
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let measured = state["signals"].as_object();
    let lines: Vec<String> = measured
        .into_iter()
        .flatten()
        .map(|(name, one)| {
            format!(
                "{name} {:.2} of {:.2}{}{}",
                number(&one["value"]),
                number(&one["threshold"]),
                if one["raised"] == true {
                    ", raised"
                } else {
                    ""
                },
                if counts(name) {
                    ""
                } else {
                    " (does not count)"
                },
            )
        })
        .collect();
    let leader = match state["leader"].as_str() {
        Some(leader) => format!("{leader} comes first most often"),
        None => "none was raised yet".to_owned(),
    };
    format!("signals: {}; {leader}", lines.join("; "))
}

/// Result of a command there.
struct Ran {
    status: ExitStatus,
    out: String,
    said: String,
}

/// A VM, asked from here.
struct Guest<'a> {
    client: &'a Client,
    vm: &'a str,
}

impl Guest<'_> {
    /// Which build of the program is there.
    async fn digest(&self) -> anyhow::Result<Option<String>> {
        let ran = self.run(&["digest"], None).await?;
        let fine = ran.map(|ran| self.fine(ran)).transpose()?;
        Ok(fine.map(|out| out.trim().to_owned()))
    }

    /// Brings the program, unless it is there.
    async fn bring(&self) -> anyhow::Result<()> {
        let program = program()?;
        let content =
            fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        let ours = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&content));
        let theirs = self.digest().await?;
        if theirs.as_deref() == Some(&ours) {
            return Ok(());
        }
        if theirs.is_some() {
            // With it go its limits, which might keep out what copies.
            self.told(&["stop", "--status", STATUS], None).await?;
        }
        let copied = copy::send_quietly(self.client, program, self.vm, PROGRAM);
        copied.await.context("cannot bring forkyard-friendly there")
    }

    /// Reads the present state there.
    async fn state(&self) -> anyhow::Result<Value> {
        let shown = self.run(&["show", "--status", STATUS], None).await?;
        let runs = shown.filter(|ran| ran.status != ExitStatus::Code(NONE_RUNS));
        let mut state = match runs {
            Some(ran) => serde_json::from_str(&self.fine(ran)?)
                .with_context(|| format!("{} says what is no state", self.vm))?,
            None => json!({}),
        };
        state["friendly"] = json!(state.get("agent").is_some());
        state["vm"] = json!(self.vm);
        Ok(state)
    }

    /// Has the program do something, which it must.
    async fn told(&self, words: &[&str], stdin: Option<String>) -> anyhow::Result<()> {
        match self.run(words, stdin).await? {
            Some(ran) => self.fine(ran).map(drop),
            None => bail!("{} has no {PROGRAM} any more: try again", self.vm),
        }
    }

    /// Returns the output of a command that has to have succeeded.
    fn fine(&self, ran: Ran) -> anyhow::Result<String> {
        match ran.status {
            ExitStatus::Code(0) => Ok(ran.out),
            ExitStatus::Code(_) => bail!("{} cannot: {}", self.vm, ran.said.trim()),
            ExitStatus::Signal(signal) => bail!(
                "{} cannot: {PROGRAM} was ended there by signal {signal}",
                self.vm
            ),
        }
    }

    /// Runs the program there; None if there is none. By itself, not in a shell:
    /// it is never stopped, and needs no other process.
    async fn run(&self, words: &[&str], stdin: Option<String>) -> anyhow::Result<Option<Ran>> {
        let argv = std::iter::once(&PROGRAM).chain(words);
        let request = ExecRequest {
            argv: argv.map(|word| (*word).to_owned()).collect(),
            user: Some("0".to_owned()),
            stdin: stdin.map(|text| BASE64_STANDARD.encode(text)),
            timeout_s: Some(PATIENCE),
            ..ExecRequest::default()
        };
        let (mut out, mut said) = (Vec::new(), Vec::new());
        let mut events = self.client.exec(self.vm, &request).await?;
        loop {
            ensure!(
                out.len() + said.len() <= MOST,
                "{} cannot: {PROGRAM} says more than {MOST} bytes there: it is another program",
                self.vm
            );
            match events.next().await? {
                Some(ExecEvent::Stdout(data)) => out.extend(BASE64_STANDARD.decode(data)?),
                Some(ExecEvent::Stderr(data)) => said.extend(BASE64_STANDARD.decode(data)?),
                Some(ExecEvent::Exit(status)) => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    return Ok(Some(Ran {
                        status,
                        out: text(&out),
                        said: text(&said),
                    }));
                }
                Some(ExecEvent::NotStarted(why)) if why.code == NotStarted::NOT_FOUND => {
                    return Ok(None);
                }
                Some(ExecEvent::NotStarted(why)) => bail!("{} {}", self.vm, why.message),
                Some(ExecEvent::TimedOut(ExecTimedOut { after_s })) => {
                    bail!(
                        "{} cannot: {PROGRAM} took longer than {after_s} s there",
                        self.vm
                    )
                }
                Some(ExecEvent::Error(error)) => return Err(ClientError::from(error).into()),
                Some(ExecEvent::Taken(_) | ExecEvent::Started(_)) => {}
                None => bail!("the daemon closed the connection before the command ended"),
            }
        }
    }
}

/// The program for guests, installed beside this one.
fn program() -> anyhow::Result<PathBuf> {
    const PLACE: &str = "guest/bin/forkyard-friendly";
    let beside = env::current_exe()?
        .parent()
        .map(|bin| bin.join("../share/forkyard"));
    let share = env::var_os("FORKYARD_SHARE_DIR").map(PathBuf::from);
    let share = share.or(beside).context("where is share/forkyard?")?;
    let program = share.join(PLACE);
    ensure!(
        program.is_file(),
        "{} is missing: is this forkyard installed whole (`make install`)? FORKYARD_SHARE_DIR says where \
         share/forkyard is",
        program.display()
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        set: Set,
    }

    fn parsed(line: &str) -> Result<Set, clap::Error> {
        Alone::try_parse_from(line.split(' ')).map(|alone| alone.set)
    }

    #[test]
    fn laws_are_said_as_configurations_have_them() {
        for law in Law::value_variants() {
            let change = law.change().expect("a change");
            let (key, value) = change.split_once('=').expect("KEY=VALUE");
            assert_eq!(key, "threads.law");
            let config = Config::parse(&format!("[threads]\nlaw = {value}\n")).expect("fine");
            assert_eq!(config.threads.law, law.config());
        }
    }

    #[test]
    fn groups_have_short_names_and_off_goes_with_nothing_else() {
        let group = |line| parsed(line).expect("fine").group();
        assert_eq!(group("x p"), None);
        assert_eq!(
            group("x p --group image").as_deref(),
            Some("/opt/forkyard/cgroup/user/image")
        );
        assert_eq!(group("x p --group /sys/a").as_deref(), Some("/sys/a"));
        parsed("x p --off").expect("fine");
        for refused in [
            "x p --off --law quick",
            "x p --off a=1",
            "x p --law fast",
            "x",
        ] {
            parsed(refused).expect_err(refused);
        }
    }

    #[test]
    fn people_are_told_whether_and_how() {
        let none = summary(&json!({"vm": "p", "friendly": false}));
        assert_eq!(none, "p is not friendly");
        let told = summary(&json!({
            "vm": "p", "friendly": true, "congested": true,
            "group": "/opt/forkyard/cgroup/user/exec", "means": "signals",
            "state": {"threads": 3.0}, "allowed": 3, "wanting": 9, "standing_still": 6,
            "vct_ms": 31.25, "least_vct_ms": 10.0,
            "config": {"threads": {"law": {"kind": "quick"}}, "monitor": {"signals": ["vct"]}},
            "signals": {
                "vct": {"value": 3.0, "threshold": 1.25, "raised": true},
                "steal": {"value": 0.02, "threshold": 0.1, "raised": false},
            },
            "leader": "vct",
        }));
        for part in [
            "congested",
            "group exec",
            "quick",
            "3 may run",
            "6 stand",
            "31.25",
            "vct 3.00 of 1.25, raised;",
            "steal 0.02 of 0.10 (does not count)",
            "vct comes first",
        ] {
            assert!(told.contains(part), "{told}");
        }
        let slow = summary(&json!({"vm": "p", "friendly": true, "state": {"rate_hz": 0.5}}));
        assert!(slow.contains("2.0 s"), "{slow}");
    }
}
