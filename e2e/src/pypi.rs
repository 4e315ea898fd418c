//! Python environments with packages from PyPI, kept in `target/`.

use crate::programs::tree;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the interpreter of the environment `target/NAME`, which has the packages that `pins`
/// lists, a file of the tree. It is made anew when those have changed.
///
/// None where they cannot be had, which is printed as a skip. Panics instead if `CI` is set.
pub fn environment(name: &str, pins: &str) -> Option<PathBuf> {
    match install(&tree().join("target").join(name), &tree().join(pins)) {
        Ok(python) => Some(python),
        Err(why) if std::env::var_os("CI").is_none() => {
            let why = why.lines().last().unwrap_or_default();
            println!("\nskipped: {name} cannot be had from PyPI: {why}");
            None
        }
        Err(why) => panic!("{name} cannot be had from PyPI: {why}"),
    }
}

/// Installs packages of this tree into an environment that has `setuptools`, whatever there was of them.
pub fn install_ours(python: &Path, packages: &[&str]) {
    // Building writes beside the sources: of copies, then.
    let copies = tempfile::tempdir().expect("a folder");
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ])
    .args([
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--force-reinstall",
    ]);
    for (number, package) in packages.iter().enumerate() {
        let copy = copies.path().join(number.to_string());
        let from = tree().join(package);
        run(Command::new("cp").arg("-r").arg(from).arg(&copy)).expect("copied");
        pip.arg(copy);
    }
    run(&mut pip).expect("a package that pip installs");
}

/// The error says why the packages cannot be installed.
fn install(place: &Path, pins: &Path) -> Result<PathBuf, String> {
    let wanted = fs::read_to_string(pins).expect("pins");
    let (installed, python) = (place.join("installed.txt"), place.join("bin/python"));
    if fs::read_to_string(&installed).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(place))?;
    let pip = ["install", "--quiet", "--disable-pip-version-check", "-r"];
    run(Command::new(place.join("bin/pip")).args(pip).arg(pins))?;
    fs::write(&installed, wanted).expect("noted");
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let ran = command.output().map_err(|error| error.to_string())?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}
