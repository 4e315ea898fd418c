//! `keepalive`, `idle`, `update` and `rename`: for how long VMs are wanted, whether they come back, and what they are called.

use super::vms::PARTLY;
use crate::{args::Format, output};
use clap::{Args, ValueEnum};
use forkyard_api_client::{Client, ClientError, of_vm};
use forkyard_types::{Idle, Lifetime, RenameRequest, Restart, RestartRequest, VmName, VmView};
use hyper::Method;
use std::process::ExitCode;

/// Action on a VM whose time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtEnd {
    /// Remove the VM with all that is its own: the default.
    Rm,
    /// Power the VM off; its disk stays.
    Stop,
    /// Pause the VM until `forkyard resume`.
    Pause,
    /// Keep the VM's last instant as a checkpoint of its name, to be forked
    /// later, and remove the VM.
    Checkpoint,
}

impl From<AtEnd> for forkyard_types::AtEnd {
    fn from(at_end: AtEnd) -> Self {
        match at_end {
            AtEnd::Rm => Self::Rm,
            AtEnd::Stop => Self::Stop,
            AtEnd::Pause => Self::Pause,
            AtEnd::Checkpoint => Self::Checkpoint,
        }
    }
}

/// Life of a VM without its user: lifetime, idleness, restarts.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Life")]
pub struct Life {
    /// Time for which it is wanted, as in 90, 10m, 8h or 2d; until it is removed if absent.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub ttl: Option<u32>,
    /// Action then.
    #[arg(long, value_name = "WHAT", requires = "ttl")]
    pub at_end: Option<AtEnd>,
    /// Action if it is not used for so long: pause if not said, or stop, checkpoint, rm.
    /// Once paused or stopped, its next command, copy or connection by the API wakes it.
    #[arg(long, value_name = "TIME[:WHAT]", value_parser = idle_after)]
    pub idle: Option<Idle>,
    /// Starts it again if it ends by itself, or its host goes down: no, always,
    /// on-failure or on-failure:N. Clones are not.
    #[arg(long, value_name = "WHEN", default_value_t, conflicts_with = "from")]
    pub restart: Restart,
}

impl Life {
    /// Lifetime as the API has it.
    pub fn lifetime(self) -> Option<Lifetime> {
        let action = self.at_end.map(Into::into);
        self.ttl.map(|ttl_s| Lifetime { ttl_s, action })
    }
}

/// `idle`
#[derive(Debug, Args)]
pub struct IdleAfter {
    /// Name or id of the VM.
    vm: String,
    /// Time without use, and what becomes of it then: pause, stop, checkpoint or rm.
    #[arg(value_name = "TIME[:WHAT]", value_parser = idle_after, required_unless_present = "never")]
    after: Option<Idle>,
    /// Let it run on.
    #[arg(long, conflicts_with = "after")]
    never: bool,
}

/// A time without use, with what is done then.
fn idle_after(text: &str) -> Result<Idle, String> {
    let (time, action) = match text.split_once(':') {
        Some((time, action)) => (time, AtEnd::from_str(action, false)?),
        None => (text, AtEnd::Pause),
    };
    Ok(Idle {
        after_s: seconds(time)?,
        action: action.into(),
    })
}

/// Says what becomes of a VM that is not used.
pub async fn idle(client: &Client, format: Format, wanted: IdleAfter) -> anyhow::Result<ExitCode> {
    let path = of_vm(&wanted.vm, "idle");
    let vm: VmView = match wanted.after {
        Some(idle) => client.post(&path, &idle).await?,
        None => client.call(Method::DELETE, &path).await?,
    };
    match (format, vm.idle) {
        (Format::Json, _) => output::json(&vm)?,
        (Format::Text, Some(idle)) => {
            let action = output::word(&idle.action);
            say!("{}: {action} after {} s without use", vm.name, idle.after_s);
        }
        (Format::Text, None) => say!("{} runs on", vm.name),
    }
    Ok(ExitCode::SUCCESS)
}

/// `update`
#[derive(Debug, Args)]
pub struct Update {
    /// Starts them again if they end by themselves, or their host goes down: no, always,
    /// on-failure or on-failure:N. Clones are not.
    #[arg(long, value_name = "WHEN")]
    restart: Restart,
    /// Names or ids of the VMs.
    #[arg(required = true)]
    vms: Vec<String>,
}

/// Says whether VMs are started again.
pub async fn update(client: &Client, format: Format, wanted: Update) -> anyhow::Result<ExitCode> {
    let request = RestartRequest {
        restart: wanted.restart,
    };
    let mut answers = Vec::new();
    for vm in &wanted.vms {
        answers.push(client.post(&of_vm(vm, "restart-policy"), &request).await);
    }
    several(format, answers)
}

/// `keepalive`
#[derive(Debug, Args)]
pub struct Keepalive {
    /// Time from now on, as in 90, 10m, 8h or 2d.
    #[arg(long, value_name = "TIME", value_parser = seconds, required_unless_present = "forever")]
    ttl: Option<u32>,
    /// Action then; as before, or rm, if absent.
    #[arg(long, value_name = "WHAT", conflicts_with = "forever")]
    at_end: Option<AtEnd>,
    /// Until they are removed.
    #[arg(long, conflicts_with = "ttl")]
    forever: bool,
    /// Names or ids of the VMs.
    #[arg(required = true)]
    vms: Vec<String>,
}

/// A time in seconds, or with `s`, `m`, `h` or `d`.
pub fn seconds(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(86400),
        _ => None,
    };
    let seconds = factor.and_then(|factor| digits.parse::<u32>().ok()?.checked_mul(factor));
    match seconds {
        Some(seconds @ 1..=Lifetime::MOST_S) => Ok(seconds),
        Some(_) | None => Err(
            "wanted a time of at least a second and at most ten years, as in 90, 10m, 8h or 2d"
                .to_owned(),
        ),
    }
}

/// Says for how long VMs are wanted.
pub async fn keepalive(
    client: &Client,
    format: Format,
    wanted: Keepalive,
) -> anyhow::Result<ExitCode> {
    let mut answers = Vec::new();
    for vm in &wanted.vms {
        let path = of_vm(vm, "lifetime");
        answers.push(match wanted.ttl {
            Some(ttl_s) => {
                let action = wanted.at_end.map(Into::into);
                client.post(&path, &Lifetime { ttl_s, action }).await
            }
            None => client.call(Method::DELETE, &path).await,
        });
    }
    several(format, answers)
}

/// Shows VMs that were changed, and complains of those that were not.
fn several(format: Format, answers: Vec<Result<VmView, ClientError>>) -> anyhow::Result<ExitCode> {
    let asked = answers.len();
    let mut changed: Vec<VmView> = Vec::new();
    for answer in answers {
        match answer {
            Ok(vm) => changed.push(vm),
            Err(error) => output::complain(&error.into()),
        }
    }
    match format {
        Format::Json => output::json(&changed)?,
        Format::Text => changed.iter().for_each(|vm| say!("{}", vm.name)),
    }
    Ok(match changed.len() {
        done if done == asked => ExitCode::SUCCESS,
        0 => ExitCode::FAILURE,
        _ => ExitCode::from(PARTLY),
    })
}

/// `rename`
#[derive(Debug, Args)]
pub struct Rename {
    /// Name or id of the VM or checkpoint.
    vm: String,
    /// Name from now on.
    name: VmName,
}

/// Gives a VM another name.
pub async fn rename(client: &Client, format: Format, wanted: Rename) -> anyhow::Result<ExitCode> {
    let request = RenameRequest { name: wanted.name };
    let vm: VmView = client.post(&of_vm(&wanted.vm, "rename"), &request).await?;
    match format {
        Format::Json => output::json(&vm)?,
        Format::Text => say!("{}", vm.name),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::{idle_after, seconds};
    use forkyard_types::AtEnd;

    #[test]
    fn a_time_without_use_may_say_what_is_done_then() {
        for (text, after_s, action) in [
            ("10m", 600, AtEnd::Pause),
            ("90:stop", 90, AtEnd::Stop),
            ("1h:checkpoint", 3600, AtEnd::Checkpoint),
            ("1:rm", 1, AtEnd::Rm),
        ] {
            let idle = idle_after(text).expect("a time");
            assert_eq!((idle.after_s, idle.action), (after_s, action), "{text}");
        }
        for wrong in ["", ":stop", "10m:", "10m:sleep", "0:stop", "stop"] {
            assert!(idle_after(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units_and_bounds() {
        for (text, wanted) in [
            ("90", 90),
            ("90s", 90),
            ("10m", 600),
            ("8h", 28_800),
            ("2d", 172_800),
        ] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for wrong in ["", "0", "m", "-1", "1w", "1.5h", "99999999d", "4000d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
