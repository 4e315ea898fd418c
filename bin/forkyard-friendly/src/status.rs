//! What the agent says of itself, in a file.

use anyhow::Context;
use serde::Serialize;
use std::{fs, path::Path};

/// Where it is if nothing is said.
pub const PLACE: &str = "/run/forkyard-friendly/status.json";

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

/// Prints it.
pub fn show(path: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "cannot read {}: is forkyard-friendly running here?",
            path.display()
        )
    })?;
    println!("{text}");
    Ok(())
}
