//! `keepalive` and `rename`: for how long VMs are wanted, and what they are called.

use super::vms::PARTLY;
use crate::{args::Format, output};
use clap::{Args, ValueEnum};
use forkyard_client::{Client, of_vm};
use forkyard_types::{Lifetime, RenameRequest, VmName, VmView};
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
    let mut kept: Vec<VmView> = Vec::new();
    for vm in &wanted.vms {
        let path = of_vm(vm, "lifetime");
        let answer = match wanted.ttl {
            Some(ttl_s) => {
                let action = wanted.at_end.map(Into::into);
                client.post(&path, &Lifetime { ttl_s, action }).await
            }
            None => client.call(Method::DELETE, &path).await,
        };
        match answer {
            Ok(vm) => kept.push(vm),
            Err(error) => output::complain(&error.into()),
        }
    }
    match format {
        Format::Json => output::json(&kept)?,
        Format::Text => kept.iter().for_each(|vm| say!("{}", vm.name)),
    }
    Ok(match (kept.len(), wanted.vms.len()) {
        (done, asked) if done == asked => ExitCode::SUCCESS,
        (0, _) => ExitCode::FAILURE,
        (_, _) => ExitCode::from(PARTLY),
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
    use super::seconds;

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
