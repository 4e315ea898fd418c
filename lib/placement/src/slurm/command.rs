//! Slurm's commands, run.

use std::{io, path::PathBuf, process::Stdio, time::Duration};
use tokio::{process::Command, time::timeout};

/// Time a command may take: `salloc` looks for room for two seconds of it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of what a command complains, so much is told.
const SAID: usize = 500;

/// Reason why Slurm does not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlurmError {
    /// A command cannot be run.
    #[error("Slurm's {program} cannot be run")]
    Run {
        /// Program.
        program: &'static str,
        /// Error of the host.
        source: io::Error,
    },
    /// A command failed.
    #[error("Slurm's {program} failed: {said}")]
    Failed {
        /// Program.
        program: &'static str,
        /// Message of the command.
        said: String,
    },
    /// A command did not end.
    #[error("Slurm's {program} did not answer within {} s", PATIENCE.as_secs())]
    Late {
        /// Program.
        program: &'static str,
    },
}

impl SlurmError {
    /// Returns advice to the client.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Run { .. } => "install Debian's slurm-client on this node",
            Self::Failed { .. } => {
                "`sinfo -N -l` and `squeue` show what Slurm has; `scontrol ping` whether it is reached"
            }
            Self::Late { .. } => "`scontrol ping` tells whether Slurm is reached",
        })
    }
}

/// Programs of Slurm.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    conf: Option<PathBuf>,
}

impl Commands {
    /// By this configuration, rather than what this host or the environment says.
    pub fn of(conf: PathBuf) -> Self {
        Self { conf: Some(conf) }
    }

    /// Runs one; what it prints. Cancelled, it is ended.
    pub async fn run(&self, program: &'static str, words: &[&str]) -> Result<String, SlurmError> {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).kill_on_drop(true);
        // What is set for the parent process is not meant for it; where Slurm is, is.
        for variable in ["SLURM_HOSTFILE", "SALLOC_PARTITION", "SLURM_JOB_ID"] {
            command.env_remove(variable);
        }
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        let output = timeout(PATIENCE, command.output())
            .await
            .map_err(|_| SlurmError::Late { program })?
            .map_err(|source| SlurmError::Run { program, source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().replace('\n', "; ");
        Err(SlurmError::Failed {
            program,
            said: said.chars().take(SAID).collect(),
        })
    }

    /// Allocations that have not ended, a line each.
    pub async fn squeue(&self, format: &str) -> Result<String, SlurmError> {
        let words = [
            "--noheader",
            "--all",
            "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED",
            "--format",
            format,
        ];
        self.run("squeue", &words).await
    }
}
