//! The users' daemon on machines that are made up: for tests of whole hosts that need no
//! guest.

use forkyard_fake_engine::FakeEngine;
use forkyard_fork::{Engine, Folders, Options, VmmError};
use std::{process::ExitCode, sync::Arc};

/// Program of a machine, beside this one.
const MACHINE: &str = "forkyard-fake-machine";

fn main() -> ExitCode {
    forkyardd::main(engine)
}

fn engine(folders: &Folders, options: Options) -> Result<Arc<dyn Engine>, VmmError> {
    let program = folders.bin.join(MACHINE);
    let engine = FakeEngine::new(program, &folders.run, options.patience);
    Ok(Arc::new(engine))
}
