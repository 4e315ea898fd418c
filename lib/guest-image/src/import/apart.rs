//! Unpacking in a process of its own, that sees the archive and the tree and nothing else of
//! the host: whatever an archive makes of it, it can spoil that tree and no more.
//!
//! ```text
//! daemon --order (JSON, argument)--> forkyard-unpack --answer (JSON, standard output)--> daemon
//! ```
//!
//! | fails | then |
//! |---|---|
//! | it refuses the archive | its words are the error |
//! | it ends without an answer, or says nonsense | the archive is refused: it may be made for that |
//! | the import is given up, the daemon dies | it is killed |

use super::{
    ArchiveError, Cancel, ImportError, MOST,
    unpack::{Order, Unpacked},
};
use crate::{
    cache::Workplace,
    error::{BuildError, io_error},
    progress::Progress,
    run::Program,
};
use forkyard_confine::{Confinement, Lifespan, Network, Who};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

const UNPACK: Program = Program::new("forkyard-unpack", "forkyard");
/// Fewest bytes that end in an answer.
const SPARE: u64 = 1 << 20;

/// Outcome of an order.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Unpacked(Unpacked),
    Refused { cause: Cause, said: String },
}

/// Fault that an order failed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Cause {
    /// The archive is not whole.
    Incoming,
    /// The archive is none of an image that a guest can be.
    Archive,
    /// The host could not do it.
    Host,
}

/// Has `program` unpack it, confined.
pub(super) fn unpack(
    program: &Path,
    order: &Order,
    (work, cancel): (&Workplace, &Cancel),
    progress: Progress<'_>,
) -> Result<Unpacked, ImportError> {
    File::create_new(&order.expanded).map_err(io_error("create", &order.expanded))?;
    let words = serde_json::to_string(order).map_err(io::Error::other);
    let words = words.map_err(io_error("describe", &order.archive))?;
    let ran = UNPACK
        .call_at(program)
        .arg(words)
        .confined(Confinement {
            who: Who::Unpacker,
            reads: &[program, &order.archive],
            writes: &[&order.root, &order.expanded],
            largest: MOST.0 + SPARE,
            network: Network::None,
            ends: Lifespan::WithStarter,
        })?
        .holding(work.lock())
        .until(cancel)
        .run(progress);
    cancel.check()?;
    let output = match ran {
        Ok(output) => output,
        Err(BuildError::Program { status, tail, .. }) => {
            let said = format!("what unpacks it ended: {status}: {tail}");
            return Err(ArchiveError::Refused { said }.into());
        }
        Err(other) => return Err(other.into()),
    };
    let answer = serde_json::from_slice(&output).map_err(|error| ArchiveError::Refused {
        said: format!("what unpacks it gave no answer: {error}"),
    })?;
    // Compressed, it is there once more.
    fs::remove_file(&order.expanded).map_err(io_error("remove", &order.expanded))?;
    match answer {
        Answer::Unpacked(unpacked) => Ok(unpacked),
        Answer::Refused { cause, said } => Err(match cause {
            Cause::Incoming => ImportError::Incoming {
                source: io::Error::new(io::ErrorKind::UnexpectedEof, said),
            },
            Cause::Archive => ArchiveError::Refused { said }.into(),
            Cause::Host => BuildError::Unpack(said).into(),
        }),
    }
}

/// Does what the order `words` says, and prints the answer: the whole of `forkyard-unpack`.
pub fn unpack_as_told(words: &str) -> ExitCode {
    let order: Order = match serde_json::from_str(words) {
        Ok(order) => order,
        Err(error) => {
            eprintln!("forkyard-unpack: this is no order of forkyardd's: {error}");
            return ExitCode::from(2);
        }
    };
    let answer = match super::unpack::unpack(&order, &Cancel::default()) {
        Ok(unpacked) => Answer::Unpacked(unpacked),
        Err(error) => Answer::Refused {
            cause: cause(&error),
            said: with_sources(&error),
        },
    };
    let words = serde_json::to_vec(&answer).map_err(io::Error::other);
    match words.and_then(|words| io::stdout().write_all(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyard-unpack: {error}");
            ExitCode::FAILURE
        }
    }
}

fn cause(error: &ImportError) -> Cause {
    match error {
        ImportError::Incoming { .. } => Cause::Incoming,
        ImportError::Archive(_) => Cause::Archive,
        ImportError::Taken { .. }
        | ImportError::Cancelled
        | ImportError::Disk(_)
        | ImportError::Registry { .. }
        | ImportError::Dockerfile { .. }
        | ImportError::Build(_) => Cause::Host,
    }
}

/// An error and all that led to it, in one line.
fn with_sources(error: &ImportError) -> String {
    // The daemon says that itself.
    let first: &dyn std::error::Error = if let ImportError::Incoming { source } = error {
        source
    } else {
        error
    };
    let mut said = first.to_string();
    let mut next = first.source();
    while let Some(source) = next {
        said = format!("{said}: {source}");
        next = source.source();
    }
    said
}
