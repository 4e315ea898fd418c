//! Debian packages that chores take.

use crate::run::program;
use anyhow::{Context, Result};
use std::path::Path;

/// Installs Debian packages that are missing.
pub fn install(root: &Path, packages: &[&str]) -> Result<()> {
    let status = |package: &str| {
        program(Path::new("sh"), root)
            .args([
                "-c",
                "dpkg-query -W -f '${Status}' \"$0\" 2>/dev/null || true",
            ])
            .args([package])
            .printed()
    };
    let mut missing = Vec::new();
    for package in packages {
        if status(package)? != "install ok installed" {
            missing.push(*package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    program(Path::new("apt-get"), root)
        .args(["install", "-y", "-q", "--no-install-recommends"])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .done()
        .context("as root, or install them by hand")
}
