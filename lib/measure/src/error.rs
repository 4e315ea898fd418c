//! Reasons why a measurement came to nothing.

use forkyard_agent_link::LinkError;
use forkyard_api_client::ClientError;
use forkyard_guest_image::{BuildError, RecipeError};
use forkyard_types::{ApiError, InvalidId};
use std::io;

/// Reason why a measurement came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The benchmark was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The daemon refused, or is gone.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon gives its guests an accelerator that the baseline has no counterpart of.
    #[error(
        "the guests of this daemon have the accelerator {name:?}, which the baseline does not know"
    )]
    Accel {
        /// Name of the accelerator.
        name: String,
    },
    /// One of the clones of a fork could not be made.
    #[error("a clone failed")]
    Clone {
        /// Cause.
        source: ApiError,
    },
    /// A command in a guest did not end well.
    #[error("{command:?} failed in {vm}: {outcome}")]
    Command {
        /// The VM.
        vm: String,
        /// The command.
        command: String,
        /// End of the command.
        outcome: String,
    },
    /// The parts of the baseline could not be made.
    #[error("the baseline cannot be built")]
    Build {
        /// Cause.
        #[from]
        source: BuildError,
    },
    /// The image's recipe cannot be used.
    #[error("the baseline has no image")]
    Recipe {
        /// Cause.
        #[from]
        source: RecipeError,
    },
    /// A guest of the baseline could not be talked to.
    #[error("a guest of the baseline does not answer")]
    Link {
        /// Cause.
        #[from]
        source: LinkError,
    },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {answer}")]
    Qemu {
        /// The command.
        command: &'static str,
        /// Answer of the program.
        answer: String,
    },
    /// The host refused something.
    #[error("cannot {what}")]
    Host {
        /// Operation that was refused.
        what: &'static str,
        /// Error of the host.
        source: io::Error,
    },
    /// Something was waited for in vain.
    #[error("timed out waiting for {what}")]
    Silent {
        /// Event that was waited for.
        what: &'static str,
    },
    /// A name for a VM of the benchmark is none.
    #[error(transparent)]
    Name(#[from] InvalidId),
}

impl BenchError {
    /// Wraps an error of the host, for `map_err`.
    pub(crate) fn host(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}
