//! Guests that adapt their demand: the program for that is brought to a guest, started, asked and
//! ended, all by commands there.
//!
//! ```text
//! digest? --another, or none--> stop, copy --+
//!    +-- the same ---------------------------+--> set constants --> start
//! ```
//!
//! The program lives in memory there, in Forkyard's own folder, and in a group of its own among those that
//! stand still while the VM is forked: a clone has it as it has everything else that runs.
//! A step that fails leaves those before it done. Each may be done again.

use crate::{Following, Host, HostError, blocking};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_friendly::{Config, LawConfig};
use forkyard_types::{
    ApiError, ErrorKind, ExecEvent, ExecRequest, ExitStatus, FileWrite, FriendlyLaw,
    FriendlySettings, NotStarted,
};
use serde_json::{Value, json};
use std::{fs, io, path::PathBuf};

/// The program, in guests.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-friendly";
/// Paths of its configuration and state.
const CONFIG: &str = "/opt/forkyard/friendly/friendly.toml";
const STATUS: &str = "/opt/forkyard/friendly/status.json";
/// Folder of a guest's groups: what runs there is user code, and stands still
/// while its VM is forked.
const USER: &str = "/opt/forkyard/cgroup/user";
/// The group that the program itself is in.
const HOME: &str = "/opt/forkyard/cgroup/user/friendly";
/// Exit status of the program if none runs.
const NONE_RUNS: u8 = 3;
/// Seconds that one command there may take: it waits for a turn as all do.
const PATIENCE: u32 = 300;
/// Most bytes that it may say: the guest's owner may have put anything in its place.
const MOST: usize = 1 << 20;
/// Bytes of the program that are sent at once.
const PIECE: usize = 128 << 10;

/// Reason for which a guest was not made friendly, or not asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FriendlyError {
    /// The configuration cannot be read.
    #[error("the configuration is refused: {said}")]
    Config {
        /// Reason.
        said: String,
    },
    /// The program refused constants.
    #[error("{vm} cannot: {said}")]
    Refused {
        /// The VM.
        vm: String,
        /// Words of the program.
        said: String,
    },
    /// The program failed there.
    #[error("{vm} cannot: {said}")]
    Guest {
        /// The VM.
        vm: String,
        /// Words of the program, or what happened to it.
        said: String,
    },
    /// The program took too long.
    #[error("{vm} cannot: {PROGRAM} took longer than {PATIENCE} s there")]
    Slow {
        /// The VM.
        vm: String,
    },
    /// The command broke off.
    #[error("{0}")]
    Told(ApiError),
    /// The host has no program to bring.
    #[error("cannot read {path}: is Forkyard installed whole (`make install`)?", path = .path.display())]
    NoProgram {
        /// Path of the program.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}

impl FriendlyError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } | Self::Refused { .. } => ErrorKind::Invalid,
            Self::Guest { .. } => ErrorKind::Guest,
            Self::Slow { .. } => ErrorKind::Timeout,
            Self::Told(error) => error.kind,
            Self::NoProgram { .. } => ErrorKind::Host,
        }
    }
}

impl Host {
    /// Has a VM adapt its demand; returns its state. Not cancel-safe: it may be done in part.
    pub async fn set_friendly(
        &self,
        vm: &str,
        wanted: FriendlySettings,
    ) -> Result<Value, HostError> {
        if let Some(text) = &wanted.config {
            Config::parse(text).map_err(|error| FriendlyError::Config {
                said: error.to_string(),
            })?;
        }
        let law = wanted.law.map(change);
        let guest = Guest { host: self, vm };
        // Before another build is brought, which ends the one that runs.
        let group = match wanted.group {
            Some(name) if ["exec", "image"].contains(&name.as_str()) => format!("{USER}/{name}"),
            Some(folder) if folder.starts_with('/') => folder,
            Some(other) => {
                return Err(HostError::Invalid(format!(
                    "the group is {other:?}: wanted exec, image, or the path of a control group's folder in the guest"
                )));
            }
            None => match guest.state().await?["group"].as_str() {
                Some(group) => group.to_owned(),
                None => format!("{USER}/exec"),
            },
        };
        guest.bring().await?;
        let mut words = vec!["set", "--config", CONFIG];
        if wanted.config.is_some() {
            words.push("--from-stdin");
        }
        let plain = words.len();
        words.extend(law.as_deref());
        words.extend(wanted.changes.iter().map(String::as_str));
        if wanted.config.is_some() || words.len() > plain {
            guest.told(&words, wanted.config).await?;
        }
        let start = ["start", "--cgroup", &group, "--home", HOME];
        let places = ["--config", CONFIG, "--status", STATUS];
        guest.told(&[&start[..], &places].concat(), None).await?;
        guest.state().await
    }

    /// Ends a VM's adaptation: everything there is as it was before. Not cancel-safe: it may be
    /// done in part.
    pub async fn end_friendly(&self, vm: &str) -> Result<Value, HostError> {
        let guest = Guest { host: self, vm };
        if guest.digest().await?.is_some() {
            guest.told(&["stop", "--status", STATUS], None).await?;
        }
        guest.state().await
    }

    /// Reads whether a VM adapts its demand, what it senses and what it does. Cancel-safe.
    pub async fn friendly(&self, vm: &str) -> Result<Value, HostError> {
        Guest { host: self, vm }.state().await
    }
}

/// Writes a law as the program takes constants to change.
fn change(law: FriendlyLaw) -> String {
    let mut config = Config::default();
    config.threads.law = match law {
        FriendlyLaw::Aimd => LawConfig::AIMD,
        FriendlyLaw::Careful => LawConfig::CAREFUL,
        FriendlyLaw::Steady => LawConfig::STEADY,
        FriendlyLaw::Binomial => LawConfig::BINOMIAL,
        FriendlyLaw::Quick => LawConfig::QUICK,
        FriendlyLaw::Pi => LawConfig::PI,
    };
    let law = json!(config.threads.law);
    let constants: Vec<_> = { law.as_object().into_iter().flatten() }
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    format!("threads.law={{ {} }}", constants.join(", "))
}

/// Result of a command there.
struct Ran {
    status: ExitStatus,
    out: String,
    said: String,
}

/// A VM, asked from here.
struct Guest<'a> {
    host: &'a Host,
    vm: &'a str,
}

impl Guest<'_> {
    fn failed(&self, said: impl Into<String>) -> HostError {
        let (vm, said) = (self.vm.to_owned(), said.into());
        FriendlyError::Guest { vm, said }.into()
    }

    /// Reads which build of the program is there.
    async fn digest(&self) -> Result<Option<String>, HostError> {
        let ran = self.run(&["digest"], None).await?;
        let fine = ran.map(|ran| self.fine(ran)).transpose()?;
        Ok(fine.map(|out| out.trim().to_owned()))
    }

    /// Brings the program, unless it is there.
    async fn bring(&self) -> Result<(), HostError> {
        let path = self
            .host
            .parts
            .folders
            .guest()
            .join("bin/forkyard-friendly");
        let (content, ours) = blocking(move || {
            let content =
                fs::read(&path).map_err(|source| FriendlyError::NoProgram { path, source })?;
            let digest = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&content));
            Ok::<_, HostError>((content, digest))
        })
        .await?;
        let theirs = self.digest().await?;
        if theirs.as_deref() == Some(&ours) {
            return Ok(());
        }
        if theirs.is_some() {
            // With it go its limits, which might keep out what copies.
            self.told(&["stop", "--status", STATUS], None).await?;
        }
        let wanted = FileWrite {
            path: PROGRAM.to_owned(),
            mode: Some("755".to_owned()),
            parents: true,
        };
        let mut file = self.host.use_vm(self.vm).await?.write_file(wanted).await?;
        for piece in content.chunks(PIECE) {
            if !file.push(piece.to_vec()).await {
                break;
            }
        }
        file.finish().await?;
        Ok(())
    }

    /// Reads the present state there.
    async fn state(&self) -> Result<Value, HostError> {
        let shown = self.run(&["show", "--status", STATUS], None).await?;
        let runs = shown.filter(|ran| ran.status != ExitStatus::Code(NONE_RUNS));
        let mut state = match runs {
            Some(ran) => serde_json::from_str(&self.fine(ran)?)
                .ok()
                .filter(Value::is_object)
                .ok_or_else(|| self.failed(format!("{PROGRAM} says what is no state")))?,
            None => json!({}),
        };
        state["friendly"] = json!(state.get("agent").is_some());
        state["vm"] = json!(self.host.find(self.vm)?.name);
        Ok(state)
    }

    /// Has the program do something, which it must.
    async fn told(&self, words: &[&str], stdin: Option<String>) -> Result<(), HostError> {
        match self.run(words, stdin).await? {
            Some(ran) if words.first() == Some(&"set") => match ran.status {
                ExitStatus::Code(0) => Ok(()),
                ExitStatus::Code(_) => Err(FriendlyError::Refused {
                    vm: self.vm.to_owned(),
                    said: ran.said.trim().to_owned(),
                }
                .into()),
                ExitStatus::Signal(_) => self.fine(ran).map(drop),
            },
            Some(ran) => self.fine(ran).map(drop),
            None => Err(self.failed(format!("{PROGRAM} is not there any more: try again"))),
        }
    }

    /// Returns the output of a command that has to have succeeded.
    fn fine(&self, ran: Ran) -> Result<String, HostError> {
        match ran.status {
            ExitStatus::Code(0) => Ok(ran.out),
            ExitStatus::Code(_) => Err(self.failed(ran.said.trim())),
            ExitStatus::Signal(signal) => {
                Err(self.failed(format!("{PROGRAM} was ended there by signal {signal}")))
            }
        }
    }

    /// Runs the program there; None if there is none. By itself, not in a shell:
    /// it is never stopped, and needs no other process.
    async fn run(&self, words: &[&str], stdin: Option<String>) -> Result<Option<Ran>, HostError> {
        let argv = std::iter::once(&PROGRAM).chain(words);
        let request = ExecRequest {
            argv: argv.map(|word| (*word).to_owned()).collect(),
            user: Some("0".to_owned()),
            stdin: stdin.map(|text| BASE64_STANDARD.encode(text)),
            timeout_s: Some(PATIENCE),
            ..ExecRequest::default()
        };
        let (mut out, mut said) = (Vec::new(), Vec::new());
        let mut events = self
            .host
            .use_vm(self.vm)
            .await?
            .exec(request, Following::Nothing)
            .await?;
        loop {
            if out.len() + said.len() > MOST {
                return Err(self.failed(format!(
                    "{PROGRAM} says more than {MOST} bytes there: it is another program"
                )));
            }
            match events.recv().await {
                Some(ExecEvent::Stdout(data)) => out.extend(decoded(&data)),
                Some(ExecEvent::Stderr(data)) => said.extend(decoded(&data)),
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
                Some(ExecEvent::NotStarted(why)) => return Err(self.failed(why.message)),
                Some(ExecEvent::TimedOut(_)) => {
                    let vm = self.vm.to_owned();
                    return Err(FriendlyError::Slow { vm }.into());
                }
                Some(ExecEvent::Error(error)) => return Err(FriendlyError::Told(error).into()),
                Some(ExecEvent::Taken(_) | ExecEvent::Started(_)) => {}
                None => return Err(self.failed("the connection ended before the command did")),
            }
        }
    }
}

/// Decodes what this daemon has encoded itself.
fn decoded(data: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(data).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_are_said_as_configurations_have_them() {
        for law in FriendlyLaw::ALL {
            let change = change(law);
            let (key, value) = change.split_once('=').expect("KEY=VALUE");
            assert_eq!(key, "threads.law");
            let config = Config::parse(&format!("[threads]\nlaw = {value}\n")).expect("fine");
            let named = json!(config.threads.law);
            assert_eq!(named["kind"], json!(law), "{value}");
        }
    }

    #[test]
    fn constants_are_the_askers_and_programs_that_fail_the_guests() {
        let (vm, said) = ("p".to_owned(), "no".to_owned());
        let refused = FriendlyError::Refused { vm, said };
        assert_eq!(HostError::from(refused).kind(), ErrorKind::Invalid);
        let vm = "p".to_owned();
        let slow = FriendlyError::Slow { vm };
        assert_eq!(HostError::from(slow).kind(), ErrorKind::Timeout);
    }
}
