//! State of the agent, in a file.

use crate::life::Living;
use anyhow::Context;
use serde::Serialize;
use std::{fs, io, path::Path};

/// Path if nothing is said.
pub const PLACE: &str = "/run/forkyard-friendly/status.json";

/// Exit status where none runs: as by the Linux Standard Base, for programs that are asked how a
/// service is.
pub const NONE_RUNS: u8 = 3;

/// Writes it; it appears whole.
pub fn write(path: &Path, status: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(status)?;
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, &text)?;
        fs::rename(new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Prints it; whether one runs.
pub fn show(path: &Path) -> anyhow::Result<bool> {
    // One that was killed takes nothing back.
    if Living::find(path).is_none() {
        eprintln!(
            "forkyard-friendly is not running here: nothing that lives says so in {}",
            path.display()
        );
        return Ok(false);
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    println!("{text}");
    Ok(true)
}

/// Removes it. None is no failure.
pub fn forget(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
