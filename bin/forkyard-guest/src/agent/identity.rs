//! Applying an identity: the properties that tell this VM from every other of its
//! family. On the way of every clone between waking and going on, so no
//! process is started and nothing is waited for.
//!
//! What costs here is code that runs for the first time: an emulated clone has
//! to translate all of it anew, the kernel's as well. So a thing is done by
//! as few different calls as it takes.

mod connections;
mod cpus;
pub mod etc;
pub mod generators;
mod growth;
pub mod network;
mod routes;
pub mod secrets;

use super::userland::Userland;
use crate::{
    foreign,
    init::{Outcome, doing},
};
use forkyard_agent_link::{Cloned, IDENTITY_FILE, Identify, SOCKET};
use forkyard_sys_guest::random;
use forkyard_types::{Epoch, Identity};
use network::Connections;
use std::path::{Path, PathBuf};

/// Result of applying an identity.
#[derive(Debug, Default)]
pub struct Applied {
    /// Parts that failed, one line each: this VM must not go on.
    pub problems: Vec<String>,
    /// Problems of this guest that its user should know, one line each.
    pub notes: Vec<String>,
}

impl Applied {
    fn take(&mut self, outcome: Outcome) {
        self.problems.extend(outcome.err());
    }
}

/// Applies all of it, as far as it goes. User code must stand still in a clone.
pub fn apply(identify: &Identify, userland: &Userland) -> Applied {
    let Identify {
        identity,
        cloned,
        scrub,
        growth,
    } = identify;
    let mut applied = Applied::default();
    // Randomness before anything that might draw on it.
    applied.take(random::reseed(identity.seed).map_err(doing("seed the kernel's random numbers")));
    applied.take(generators::show(identity.epoch));
    if cloned.is_some() {
        generators::refill(&userland.processes());
    }
    applied
        .take(nix::unistd::sethostname(identity.name.as_str()).map_err(doing("set the host name")));
    let whose = match cloned {
        Some(_) => Connections::Parents,
        None => Connections::Own,
    };
    match network::become_address(identity.address, identity.route.as_ref(), whose) {
        Ok(notes) => applied.notes.extend(notes),
        Err(problem) => applied.problems.push(problem),
    }
    applied.notes.extend(etc::write(Path::new("/"), identity));
    for path in scrub {
        applied.take(secrets::scrub(Path::new(path)));
    }
    if let Some(granted) = cloned.and_then(|cloned| cloned.vcpus) {
        // More of them than were granted is no reason to have none.
        applied
            .notes
            .extend(cpus::set_online(Path::new(cpus::CPUS), granted).err());
    }
    if let Some(growth) = growth {
        applied.take(growth::take(*growth));
    }
    applied.take(tell_programs(identity, *cloned));
    applied
}

/// Variables that tell a program its VM's identity.
pub fn variables() -> Vec<(String, String)> {
    let text = foreign::text(identity_file()).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Returns the last identity this VM was given, and its number as a clone.
pub fn told() -> Option<(Epoch, u16)> {
    let variables = variables();
    let find = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let epoch = find("FORKYARD_EPOCH")?.parse().ok()?;
    Some((epoch, find("FORKYARD_ID")?.parse().ok()?))
}

fn identity_file() -> PathBuf {
    Path::new(SOCKET).with_file_name(IDENTITY_FILE)
}

fn tell_programs(identity: &Identity, cloned: Option<Cloned>) -> Outcome {
    let text = format!(
        "FORKYARD_VM={}\nFORKYARD_NAME={}\nFORKYARD_ID={}\nFORKYARD_MEMBER={}\nFORKYARD_IP={}\nFORKYARD_PARENT_IP={}\nFORKYARD_EPOCH={}\n",
        identity.vm,
        identity.name,
        cloned.map_or(0, |cloned| cloned.id),
        identity.member.0,
        identity.address.ip,
        identity.parent_ip,
        identity.epoch,
    );
    foreign::put(identity_file(), text).map_err(doing("write the identity file"))
}
