//! Test whether this host's KVM can be trusted with a guest.
//!
//! /dev/kvm proves nothing: there are hosts where it opens, creates machines,
//! and then fails at a kernel's first instructions. So a guest is booted on
//! it, once for each kernel, and must reach user space.

mod cache;

use crate::{
    BootSpec, Cause, Engine, Kernel, Limits, Machine, MachineSpec, Owner, Qemu, RunState, VmmError,
    VmmErrorKind, console,
};
use forkyard_types::{ByteCount, VmId};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    num::NonZeroU8,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

const DEVICE: &str = "/dev/kvm";

/// Accelerator: executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// The processor, by way of Linux.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl Accel {
    /// QEMU's name for the best model of a processor it can give.
    ///
    /// The translator executes `rep movsb` byte by byte. A kernel that is told that the
    /// instruction is fast (ERMS, FSRM) copies and clears all memory by it; one that is not
    /// takes eight bytes at a time.
    pub(crate) fn cpu_model(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max,-erms,-fsrm",
        }
    }

    /// Groups a QEMU must be in besides its own: the one that may open the
    /// device, where the host lets a group do so.
    pub(crate) fn groups(self) -> Vec<u32> {
        const GROUP_RW: u32 = 0o060;
        match (self, fs::metadata(DEVICE)) {
            (Self::Kvm, Ok(device)) if device.mode() & GROUP_RW == GROUP_RW => vec![device.gid()],
            (Self::Kvm, Ok(_) | Err(_)) | (Self::Tcg, _) => Vec::new(),
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// Choice of the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccelChoice {
    /// KVM if it proves itself, else TCG.
    #[default]
    Auto,
    /// KVM, unproven.
    Kvm,
    /// TCG.
    Tcg,
}

/// Text that names no choice of accelerator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is none of auto, kvm and tcg")]
pub struct UnknownAccel {
    /// Text that was given.
    pub text: String,
}

impl FromStr for AccelChoice {
    type Err = UnknownAccel;
    fn from_str(text: &str) -> Result<Self, UnknownAccel> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(UnknownAccel { text: text.into() }),
        }
    }
}

impl fmt::Display for AccelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// A guest that says a word from user space.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Kernel to boot.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: PathBuf,
    /// The kernel's command line: its console must be the serial port, and
    /// the RAM disk's init must be told to say the word.
    pub cmdline: String,
    /// The word.
    pub marker: String,
    /// User that QEMU runs as.
    pub owner: Owner,
    /// A directory for it, which exists and is otherwise empty.
    pub dir: PathBuf,
    /// Time the test may take. A guest that takes longer proves nothing.
    pub within: Duration,
}

/// The accelerator to use, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The accelerator.
    pub accel: Accel,
    /// Reason, in words for the operator.
    pub why: String,
}

impl Verdict {
    fn new(accel: Accel, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { accel, why }
    }

    /// Returns the verdict that needs no test, if there is one: the operator has chosen, or the
    /// host has no device.
    pub fn untested(choice: AccelChoice) -> Option<Self> {
        match choice {
            AccelChoice::Kvm => Some(Self::new(Accel::Kvm, "asked for")),
            AccelChoice::Tcg => Some(Self::new(Accel::Tcg, "asked for")),
            AccelChoice::Auto if Path::new(DEVICE).exists() => None,
            AccelChoice::Auto => Some(Self::new(Accel::Tcg, "the host has no /dev/kvm")),
        }
    }
}

/// Outcome of a test of KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// The guest reached user space, or failed on the way there.
    Proof(Verdict),
    /// The test was late or disturbed, in words: a busy host is not a broken one.
    Accident(String),
}

impl Finding {
    fn against(why: impl fmt::Display) -> Self {
        Self::Proof(Verdict::new(Accel::Tcg, format!("kvm: {why}")))
    }

    /// Returns the accelerator to use, and remembers a proof: after an accident, guests are
    /// emulated until the next daemon tests again.
    fn settle(self, cache: &Path, key: String) -> Result<Verdict, VmmError> {
        match self {
            Self::Proof(verdict) => {
                tracing::info!(accel = %verdict.accel, why = verdict.why, "accelerator proven");
                cache::remember(cache, key, &verdict)?;
                Ok(verdict)
            }
            Self::Accident(what) => {
                tracing::warn!(what, "KVM not proven");
                let why = format!(
                    "kvm: {what}; the next daemon tries again, and --accel kvm needs no proof"
                );
                Ok(Verdict::new(Accel::Tcg, why))
            }
        }
    }
}

impl Qemu {
    /// Chooses an accelerator; a proof is remembered in `cache`. Takes up to
    /// [`Probe::within`] once for each kernel and QEMU. Cancel-safe.
    pub async fn choose_accel(
        &self,
        choice: AccelChoice,
        probe: &Probe,
        cache: &Path,
    ) -> Result<Verdict, VmmError> {
        if let Some(verdict) = Verdict::untested(choice) {
            return Ok(verdict);
        }
        let key = cache::key(&probe.kernel, &self.version()?)?;
        if let Some(verdict) = cache::recall(cache, &key) {
            return Ok(verdict);
        }
        self.prove_kvm(probe).await?.settle(cache, key)
    }

    /// Boots the probe on KVM.
    async fn prove_kvm(&self, probe: &Probe) -> Result<Finding, VmmError> {
        let machine = match self.boot(probe_machine(probe)).await {
            Ok(machine) => machine,
            Err(error) => return not_booted(error),
        };
        let watched = tokio::time::timeout(probe.within, watch(&machine, probe)).await;
        if let Err(error) = machine.kill().await {
            tracing::error!(%error, "probe of KVM not cleaned up");
        }
        let late = |_| {
            let within = probe.within;
            Finding::Accident(format!("a guest was not in user space after {within:?}"))
        };
        Ok(watched.unwrap_or_else(late))
    }
}

/// Judges a probe that did not begin to run. A QEMU that dies by then, or is silent, may lack
/// memory, a processor, or the right to open the device. Once that is mended, nothing remembered
/// must be in the way.
fn not_booted(error: VmmError) -> Result<Finding, VmmError> {
    match error.kind() {
        VmmErrorKind::Gone | VmmErrorKind::Timeout => Ok(Finding::Accident(error.to_string())),
        VmmErrorKind::Refused | VmmErrorKind::Host => Err(error),
    }
}

fn probe_machine(probe: &Probe) -> BootSpec {
    const MEMORY: ByteCount = ByteCount(256 << 20);
    BootSpec {
        machine: MachineSpec {
            id: VmId::random(),
            dir: probe.dir.clone(),
            owner: probe.owner,
            vcpus: NonZeroU8::MIN,
            memory: MEMORY,
            booted: MEMORY,
            accel: Accel::Kvm,
            withheld: Vec::new(),
            disk: None,
            data: Vec::new(),
            volumes: None,
            nic: None,
            limits: Limits::default(),
            page_reporting: true,
        },
        kernel: Some(Kernel {
            image: probe.kernel.clone(),
            initrd: Some(probe.initrd.clone()),
            cmdline: probe.cmdline.clone(),
        }),
    }
}

/// Waits until the guest has said its word, or cannot any more.
async fn watch(machine: &impl Machine, probe: &Probe) -> Finding {
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        let state = machine.run_state().await;
        if !matches!(state, Ok(RunState::Running)) {
            // Its last words may be on their way.
            tokio::time::sleep(PAUSE).await;
        }
        // After the state: a guest that says it and switches off has said it.
        let said = console::kept(&probe.dir).unwrap_or_default();
        if String::from_utf8_lossy(&said).contains(&probe.marker) {
            return Finding::Proof(Verdict::new(Accel::Kvm, "a guest reached user space"));
        }
        match state {
            Ok(RunState::Running) => tokio::time::sleep(PAUSE).await,
            Ok(state) => return stopped(state),
            Err(error) => {
                let cause = match error.kind() {
                    VmmErrorKind::Gone => machine.cause().await,
                    VmmErrorKind::Timeout | VmmErrorKind::Refused | VmmErrorKind::Host => {
                        Cause::Unknown
                    }
                };
                return unasked(&error, cause);
            }
        }
    }
}

/// Judges a guest that stands still without having said the word.
fn stopped(state: RunState) -> Finding {
    let what = format!("the guest is {state:?}");
    match state {
        RunState::Failed | RunState::Ended => Finding::against(what),
        // Not by its own doing.
        RunState::Running | RunState::Paused | RunState::Waiting => Finding::Accident(what),
    }
}

/// Judges a guest whose QEMU does not tell its state, and has ended if there is a cause of that.
/// QEMU ends with its guest; one that was killed, say for lack of memory, says nothing about KVM.
fn unasked(error: &VmmError, cause: Cause) -> Finding {
    match cause {
        Cause::PoweredOff => Finding::against("the guest switched itself off before user space"),
        Cause::Reset => Finding::against("the guest reset itself before user space"),
        Cause::Told | Cause::Unknown => Finding::Accident(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QmpError;

    fn died() -> VmmError {
        VmmError::Died {
            pid: 7,
            status: None,
            stderr: "cannot set up guest memory 'ram0': Cannot allocate memory".into(),
        }
    }

    /// The verdict of a finding, and what is remembered of it.
    fn settled(finding: Finding) -> (Verdict, Option<Verdict>) {
        let dir = tempfile::tempdir().expect("dir");
        let cache = dir.path().join("accel.json");
        let verdict = finding.settle(&cache, "key".into()).expect("settled");
        (verdict, cache::recall(&cache, "key"))
    }

    fn is_tried_again(finding: Finding) {
        let (verdict, remembered) = settled(finding);
        assert_eq!(verdict.accel, Accel::Tcg, "{verdict:?}");
        assert!(verdict.why.contains("tries again"), "{verdict:?}");
        assert_eq!(remembered, None);
    }

    fn is_remembered(finding: Finding) {
        let (verdict, remembered) = settled(finding);
        assert_eq!(remembered, Some(verdict));
    }

    #[test]
    fn a_qemu_that_dies_before_it_runs_is_tried_again() {
        is_tried_again(not_booted(died()).expect("no error"));
    }

    #[test]
    fn a_qemu_that_is_silent_before_it_runs_is_tried_again() {
        let source = QmpError::Timeout {
            after: Duration::from_secs(1),
        };
        let command = "cont";
        is_tried_again(not_booted(VmmError::Qmp { command, source }).expect("no error"));
    }

    #[test]
    fn a_qemu_that_could_not_be_started_is_an_error() {
        let error = VmmError::io("start", "qemu")(std::io::ErrorKind::NotFound.into());
        assert!(not_booted(error).is_err());
    }

    #[test]
    fn a_question_that_is_not_answered_is_asked_again() {
        let sources = [
            QmpError::Timeout {
                after: Duration::from_secs(1),
            },
            QmpError::Closed,
        ];
        for source in sources {
            let command = "query-status";
            is_tried_again(unasked(&VmmError::Qmp { command, source }, Cause::Unknown));
        }
    }

    #[test]
    fn a_qemu_that_was_killed_is_tried_again() {
        for cause in [Cause::Unknown, Cause::Told] {
            is_tried_again(unasked(&died(), cause));
        }
    }

    #[test]
    fn a_guest_that_was_stopped_is_tried_again() {
        for state in [RunState::Paused, RunState::Waiting] {
            is_tried_again(stopped(state));
        }
    }

    #[test]
    fn a_guest_that_fails_speaks_against_kvm_for_good() {
        for state in [RunState::Failed, RunState::Ended] {
            is_remembered(stopped(state));
        }
        for cause in [Cause::PoweredOff, Cause::Reset] {
            is_remembered(unasked(&died(), cause));
        }
    }

    #[test]
    fn what_was_asked_for_is_not_tested() {
        let untested = |choice| Verdict::untested(choice).map(|verdict| verdict.accel);
        assert_eq!(untested(AccelChoice::Kvm), Some(Accel::Kvm));
        assert_eq!(untested(AccelChoice::Tcg), Some(Accel::Tcg));
    }

    #[test]
    fn a_choice_survives_its_text() {
        for choice in [AccelChoice::Auto, AccelChoice::Kvm, AccelChoice::Tcg] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("hvf".parse::<AccelChoice>().is_err());
    }
}
