//! House rules no tool knows: length of files, their language, and promises about cancelling.

use crate::{cancel, language};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lines of code a file may have, tests aside.
const CODE: usize = 500;
/// Lines of tests that may stand in the file they test; a file of tests alone
/// may have as many as a file of code.
const TESTS: usize = 300;
/// Folders of Rust code.
const PLACES: [&str; 7] = ["bin", "e2e", "lib", "sdk", "sys", "types", "xtask"];

/// Lists every file that breaks a rule.
pub fn check(root: &Path) -> Result<()> {
    let mut broken = Vec::new();
    for place in PLACES {
        for path in rust_files(&root.join(place))? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(root).unwrap_or(&path);
            if let Err(why) = judge(&text) {
                broken.push(format!("{}: {why}", path.display()));
            }
            let faults = language::faults(&text, is_test(path));
            broken.extend(faults.iter().map(|why| format!("{}:{why}", path.display())));
            if cancel::applies(path) && !is_test(path) {
                let faults = cancel::faults(&text);
                broken.extend(faults.iter().map(|why| format!("{}:{why}", path.display())));
            }
        }
    }
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    Ok(())
}

fn judge(text: &str) -> Result<(), String> {
    let lines = text.lines().count();
    let code = text
        .lines()
        .position(|l| l.trim() == "#[cfg(test)]")
        .unwrap_or(lines);
    let tests = lines - code;
    if code > CODE {
        return Err(format!("{code} lines of code: split it ({CODE} at most)"));
    }
    if tests > TESTS {
        return Err(format!("{tests} lines of tests: move them to tests.rs"));
    }
    Ok(())
}

/// Tells whether all of a file is tests.
fn is_test(path: &Path) -> bool {
    let of_tests = ["e2e", "tests", "tests.rs"];
    path.iter()
        .any(|part| of_tests.iter().any(|name| part == *name))
}

fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    for entry in entries {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(code: usize, tests: usize) -> String {
        let tests = match tests.checked_sub(1) {
            Some(rest) => "#[cfg(test)]\n".to_owned() + &"t\n".repeat(rest),
            None => String::new(),
        };
        "c\n".repeat(code) + &tests
    }

    #[test]
    fn limits_themselves_are_allowed_and_one_line_more_is_not() {
        assert_eq!(judge(&file(CODE, TESTS)), Ok(()));
        assert_eq!(judge(&file(CODE, 0)), Ok(()));
        judge(&file(CODE + 1, 0)).expect_err("too much code");
        judge(&file(0, TESTS + 1)).expect_err("too many tests");
    }

    #[test]
    fn language_is_judged_by_the_place_of_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        for place in PLACES {
            fs::create_dir_all(dir.path().join(place).join("tests")).expect("made");
        }
        let text = "/// Who.\nfn a() { \"nobody waits\" }\n";
        for name in ["lib/a.rs", "lib/tests/b.rs"] {
            fs::write(dir.path().join(name), text).expect("written");
        }
        let error = check(dir.path()).expect_err("who is nobody").to_string();
        let places: Vec<_> = error.lines().filter_map(|l| l.split_once(": ")).collect();
        let places: Vec<_> = places.iter().map(|(place, _)| *place).collect();
        assert_eq!(
            places,
            [
                "lib/a.rs:1",
                "lib/a.rs:1",
                "lib/a.rs:2",
                "lib/tests/b.rs:1",
                "lib/tests/b.rs:1"
            ]
        );
    }

    #[test]
    fn long_files_are_all_listed_by_their_place() {
        let dir = tempfile::tempdir().expect("a directory");
        for place in PLACES {
            fs::create_dir_all(dir.path().join(place).join("src")).expect("made");
        }
        for name in ["lib/src/a.rs", "types/src/b.rs"] {
            fs::write(dir.path().join(name), file(CODE + 1, 0)).expect("written");
        }
        fs::write(dir.path().join("lib/src/fine.rs"), file(1, 1)).expect("written");
        let error = check(dir.path()).expect_err("two are too long").to_string();
        let listed: Vec<_> = error.lines().filter_map(|l| l.split_once(':')).collect();
        let names: Vec<_> = listed.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["lib/src/a.rs", "types/src/b.rs"]);
    }
}
