//! The description of the HTTP API as other people's tools read it: a validator, and a generator of
//! clients that must not have to leave anything out; and a checker of the Python client's types. From PyPI,
//! into a virtual environment under `target/`.

use crate::{openapi::PLACE, run::program};
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Versions of the tools.
const PINS: &str = "xtask/openapi/requirements.txt";
/// Configuration of the generator.
const CONFIG: &str = "xtask/openapi/client.yml";

/// The tools, installed.
#[derive(Debug)]
pub struct Validators(PathBuf);

impl Validators {
    /// Installs them, unless those of these versions are there.
    pub fn install(root: &Path) -> Result<Self> {
        let place = root.join("target/openapi-tools");
        let pins = fs::read_to_string(root.join(PINS)).context(PINS)?;
        let installed = place.join("installed.txt");
        if fs::read_to_string(&installed).is_ok_and(|there| there == pins) {
            return Ok(Self(place));
        }
        program(Path::new("python3"), root)
            .args(["-m", "venv", "--clear"])
            .args([&place])
            .done()
            .context(
                "no virtual environment: install Debian's python3-venv (scripts/setup does)",
            )?;
        program(&place.join("bin/pip"), root)
            .args(["install", "--quiet", "--disable-pip-version-check", "-r", PINS])
            .done()
            .context("no tools from PyPI: run this once where PyPI, or a mirror that pip knows, is reached")?;
        fs::write(&installed, pins).context("target/openapi-tools")?;
        Ok(Self(place))
    }

    /// Has the description that is kept read by them.
    pub fn check(&self, root: &Path) -> Result<()> {
        program(&self.0.join("bin/python"), root)
            .args(["-m", "openapi_spec_validator", PLACE])
            .done()?;
        program(&self.0.join("bin/openapi-python-client"), root)
            .args(["generate", "--fail-on-warning", "--path", PLACE])
            .args(["--config", CONFIG, "--meta", "none", "--overwrite"])
            .args(["--output-path", "target/openapi-client"])
            .done()
    }

    /// Has the types of the Python client checked.
    pub fn types(&self, root: &Path) -> Result<()> {
        program(&self.0.join("bin/mypy"), root)
            .args(["--strict", "--cache-dir", "target/mypy"])
            .arg("sdk/python/forkyard_host")
            .done()
    }
}
