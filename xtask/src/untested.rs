//! Targets that have tests, and those that say they have none.
//!
//! A test program is built of every library and program, and linked, also where it has no test
//! to run. `test = false` in `Cargo.toml` spares that; but then a test that is added there would
//! never run. So each target must say what is true of it.

use crate::run::cargo;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Kinds of targets whose tests stand beside their code.
const KINDS: [&str; 6] = ["lib", "rlib", "cdylib", "staticlib", "proc-macro", "bin"];
/// Attributes that begin a test.
const TESTS: [&str; 3] = ["#[test]", "#[tokio::test", "proptest! {"];

/// Lists every target of the workspace that says what is not true of it.
pub fn check(root: &Path) -> Result<()> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&cargo(root).args(metadata).printed()?)?;
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let mut kinds = target["kind"].as_array().into_iter().flatten();
            if !kinds.any(|kind| KINDS.iter().any(|known| kind == known)) {
                continue;
            }
            let source = target["src_path"].as_str().context("no source")?;
            if let Err(why) = judge(target["test"] == true, has_tests(Path::new(source))?) {
                wrong.push(format!("{} {source}: {why}", package["name"]));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

fn judge(runs: bool, has: bool) -> Result<(), &'static str> {
    match (runs, has) {
        (true, false) => Err("it has no tests: say `test = false`, or one is built for nothing"),
        (false, true) => Err("its tests never run: take `test = false` away"),
        (true, true) | (false, false) => Ok(()),
    }
}

/// True if this root of a crate, or a module below it, has tests.
fn has_tests(root: &Path) -> Result<bool> {
    let mut left = vec![(root.to_owned(), root.parent().unwrap_or(root).to_owned())];
    while let Some((file, below)) = left.pop() {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for line in text.lines().map(str::trim) {
            if TESTS.iter().any(|test| line.starts_with(test)) {
                return Ok(true);
            }
            if let Some(name) = module(line) {
                left.push((place(&below, name), below.join(name)));
            }
        }
    }
    Ok(false)
}

/// Name of the module that this line says is in another file.
fn module(line: &str) -> Option<&str> {
    let (visibility, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
    let known = visibility.is_empty() || visibility.starts_with("pub");
    (known && !name.contains(' ')).then_some(name)
}

fn place(below: &Path, name: &str) -> PathBuf {
    let file = below.join(name).with_extension("rs");
    match file.exists() {
        true => file,
        false => below.join(name).join("mod.rs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_in_modules_of_modules_and_not_elsewhere() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("lib.rs");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("one")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("lib.rs", "pub(crate) mod a;\nmod b {}\n// #[test]\n");
        write("a.rs", "mod c;\n");
        write("a/c/mod.rs", "fn f() {}\n");
        write("other.rs", "    #[test]\n");
        assert!(!has_tests(&root).expect("read"));
        write("a/c/mod.rs", "mod tests {\n    #[test]\n");
        assert!(has_tests(&root).expect("read"));
        write("a.rs", "mod nowhere;\n");
        has_tests(&root).expect_err("a module without a file");
    }

    #[test]
    fn a_target_says_what_is_true_of_it() {
        assert_eq!((judge(true, true), judge(false, false)), (Ok(()), Ok(())));
        judge(true, false).expect_err("built for nothing");
        judge(false, true).expect_err("never run");
    }
}
