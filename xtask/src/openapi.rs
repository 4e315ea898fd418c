//! The description of the HTTP API, generated from the daemon's code and kept
//! in the tree, so that a reader of the tree or of a change sees what clients
//! see.

use crate::{dist::Profile, run::program};
use anyhow::{Context, Result, bail};
use std::{fs, path::Path};

/// Path in the tree.
pub const PLACE: &str = "sdk/openapi.json";

/// Writes the description that the code calls for.
pub fn write(root: &Path) -> Result<()> {
    fs::write(root.join(PLACE), generate(root)?).context(PLACE)
}

/// Compares the description kept with the one that the code calls for.
pub fn check(root: &Path) -> Result<()> {
    compare(root, &generate(root)?)
}

fn compare(root: &Path, generated: &str) -> Result<()> {
    let kept = fs::read_to_string(root.join(PLACE)).context(PLACE)?;
    if kept != generated {
        bail!("{PLACE} is not what the code says: run `cargo xtask openapi`");
    }
    Ok(())
}

fn generate(root: &Path) -> Result<String> {
    // As tests have it, so that nothing is compiled twice.
    Profile::Quick
        .cargo(root)
        .args(["build", "--profile", Profile::Quick.name()])
        .args(["--workspace", "--bins", "--quiet"])
        .done()?;
    program(&root.join("target/quick/forkyardd"), root)
        .args(["--openapi"])
        .printed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_that_is_not_what_the_code_says_is_found() {
        let root = tempfile::tempdir().expect("a directory");
        compare(root.path(), "{}").expect_err("there is none yet");
        fs::create_dir(root.path().join("sdk")).expect("made");
        fs::write(root.path().join(PLACE), "{}").expect("written");
        compare(root.path(), "{}").expect("the same");
        compare(root.path(), "{ }").expect_err("another");
    }
}
