//! `friendly set` and `show`: the daemon's client.

use crate::{args::Format, output};
use clap::{Args, ValueEnum};
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{FriendlyLaw, FriendlySettings};
use hyper::Method;
use serde_json::Value;
use std::path::PathBuf;

/// Folder of a guest's groups.
const USER: &str = "/opt/forkyard/cgroup/user";

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
    fn wanted(self) -> FriendlyLaw {
        match self {
            Self::Aimd => FriendlyLaw::Aimd,
            Self::Careful => FriendlyLaw::Careful,
            Self::Steady => FriendlyLaw::Steady,
            Self::Binomial => FriendlyLaw::Binomial,
            Self::Quick => FriendlyLaw::Quick,
            Self::Pi => FriendlyLaw::Pi,
        }
    }
}

/// `friendly set`: all of it may be done any number of times.
pub async fn set(client: &Client, format: Format, wanted: &Set) -> anyhow::Result<()> {
    let path = of_vm(&wanted.vm, "friendly");
    let state = match wanted.off {
        true => client.call(Method::DELETE, &path).await?,
        false => {
            let settings = FriendlySettings {
                config: wanted.config.as_deref().map(super::read).transpose()?,
                law: wanted.law.map(Law::wanted),
                group: wanted.group.clone(),
                changes: wanted.changes.clone(),
            };
            client.put(&path, &settings).await?
        }
    };
    shown(format, &state)
}

/// `friendly show`
pub async fn show(client: &Client, format: Format, wanted: &Show) -> anyhow::Result<()> {
    let path = of_vm(&wanted.vm, "friendly");
    shown(format, &client.call(Method::GET, &path).await?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        set: Set,
    }

    fn parsed(line: &str) -> Result<Set, clap::Error> {
        Alone::try_parse_from(line.split(' ')).map(|alone| alone.set)
    }

    #[test]
    fn off_goes_with_nothing_else() {
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
