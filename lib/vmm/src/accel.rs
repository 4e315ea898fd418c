//! Test whether this host's KVM can be trusted with a guest.
//!
//! /dev/kvm proves nothing: there are hosts where it opens, creates machines,
//! and then fails at a kernel's first instructions. So a guest is booted on
//! it, once for each kernel, and must reach user space.

mod cache;

use crate::{
    BootSpec, Kernel, Limits, Machine, MachineSpec, Owner, Qemu, RunState, VmmError, console,
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
}

impl Qemu {
    /// Chooses an accelerator; a proof is remembered in `cache`. Takes up to
    /// [`Probe::within`] once for each kernel. Cancel-safe.
    pub async fn choose_accel(
        &self,
        choice: AccelChoice,
        probe: &Probe,
        cache: &Path,
    ) -> Result<Verdict, VmmError> {
        match choice {
            AccelChoice::Kvm => return Ok(Verdict::new(Accel::Kvm, "asked for")),
            AccelChoice::Tcg => return Ok(Verdict::new(Accel::Tcg, "asked for")),
            AccelChoice::Auto => {}
        }
        if !Path::new(DEVICE).exists() {
            return Ok(Verdict::new(Accel::Tcg, "the host has no /dev/kvm"));
        }
        let key = cache::key(&probe.kernel)?;
        if let Some(verdict) = cache::recall(cache, &key) {
            return Ok(verdict);
        }
        let Some(verdict) = self.prove_kvm(probe).await? else {
            // Slow is not broken: a host that was busy once must not emulate for ever.
            let why = format!(
                "kvm: a guest was not in user space after {:?}; the next daemon tries again, \
                 and --accel kvm needs no proof",
                probe.within
            );
            return Ok(Verdict::new(Accel::Tcg, why));
        };
        tracing::info!(accel = %verdict.accel, why = verdict.why, "accelerator proven");
        cache::remember(cache, key, &verdict)?;
        Ok(verdict)
    }

    /// Boots the probe on KVM. A QEMU that dies speaks against KVM; one that
    /// could not even be started, or is late, proves nothing.
    async fn prove_kvm(&self, probe: &Probe) -> Result<Option<Verdict>, VmmError> {
        let machine = match self.boot(probe_machine(probe)).await {
            Ok(machine) => machine,
            Err(died @ VmmError::Died { .. }) => {
                return Ok(Some(Verdict::new(Accel::Tcg, format!("kvm: {died}"))));
            }
            Err(error) => return Err(error),
        };
        let verdict = tokio::time::timeout(probe.within, watch(&machine, probe)).await;
        if let Err(error) = machine.kill().await {
            tracing::error!(%error, "probe of KVM not cleaned up");
        }
        Ok(verdict.ok())
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
async fn watch(machine: &impl Machine, probe: &Probe) -> Verdict {
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
            return Verdict::new(Accel::Kvm, "a guest reached user space");
        }
        match state {
            Ok(RunState::Running) => tokio::time::sleep(PAUSE).await,
            Ok(
                stuck @ (RunState::Paused | RunState::Waiting | RunState::Failed | RunState::Ended),
            ) => {
                return Verdict::new(Accel::Tcg, format!("kvm: the guest is {stuck:?}"));
            }
            Err(error) => return Verdict::new(Accel::Tcg, format!("kvm: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_survives_its_text() {
        for choice in [AccelChoice::Auto, AccelChoice::Kvm, AccelChoice::Tcg] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("hvf".parse::<AccelChoice>().is_err());
    }
}
