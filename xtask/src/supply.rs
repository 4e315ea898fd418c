//! Supply of others: source, licence and number of versions.
//!
//! Reads `Cargo.lock` and what cargo tells of the packages in it; asks no server. So it knows of
//! no advisories: `cargo deny` or `cargo audit` does, with a database that it fetches, where one of them is installed.

use crate::run::cargo;
use anyhow::{Context, Result, anyhow, bail};
use std::{collections::BTreeMap, env, ffi::OsStr, fs, path::Path};

/// The one place that packages come from.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Licences that go with this project's, which is Apache-2.0.
const LICENCES: [&str; 17] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "WTFPL",
    "Zlib",
];
/// Packages that are not to come in: there is one TLS, and it is in Rust.
const BANNED: [&str; 4] = ["native-tls", "openssl", "openssl-sys", "aws-lc-sys"];
/// Most versions of one package.
const VERSIONS: usize = 3;

/// Programs that know of advisories, and what they are asked.
const ADVISERS: [(&str, &[&str]); 2] = [
    ("cargo-deny", &["deny", "check", "advisories"]),
    ("cargo-audit", &["audit"]),
];

/// Asks one of these what is known to be wrong with a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adviser(&'static [&'static str]);

impl Adviser {
    /// Finds one; the error says what to install.
    pub fn find() -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        Self::among(&path).ok_or_else(|| {
            anyhow!("neither cargo-deny nor cargo-audit is installed: `cargo install --locked cargo-audit`")
        })
    }

    fn among(path: &OsStr) -> Option<Self> {
        let is_there =
            |program: &str| env::split_paths(path).any(|folder| folder.join(program).is_file());
        let found = ADVISERS.into_iter().find(|(program, _)| is_there(program));
        found.map(|(_, words)| Self(words))
    }

    /// Asks; an error if something is wrong, or its database cannot be had.
    pub fn ask(self, root: &Path) -> Result<()> {
        cargo(root).args(self.0).done()
    }
}

/// Lists everything that is not as it should be.
pub fn check(root: &Path) -> Result<()> {
    let path = root.join("Cargo.lock");
    let lock = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut wrong = of_lock(&lock);
    let tree = cargo(root)
        .args(["tree", "--quiet", "--workspace", "--locked"])
        .args(["--target", "all", "--edges", "normal,build,dev"])
        .args(["--prefix", "none", "--format", "{p}|{l}"])
        .printed()?;
    wrong.extend(of_licences(&tree));
    match wrong.is_empty() {
        true => Ok(()),
        false => bail!("{}", wrong.join("\n")),
    }
}

/// Lists the faults of a lock file: other sources, no checksum, banned, or too
/// many versions.
fn of_lock(lock: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions = BTreeMap::<_, usize>::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let mut lines = package.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = ").map(unquoted))
        };
        let name = value("name").unwrap_or_default();
        *versions.entry(name).or_default() += 1;
        if BANNED.contains(&name) {
            wrong.push(format!("{name}: is not to come in"));
        }
        match value("source") {
            // Of the workspace.
            None => {}
            Some(SOURCE) if value("checksum").is_some() => {}
            Some(SOURCE) => wrong.push(format!("{name}: has no checksum")),
            Some(other) => wrong.push(format!("{name}: comes from {other}")),
        }
    }
    let many = versions.into_iter().filter(|(_, count)| *count > VERSIONS);
    wrong.extend(many.map(|(name, count)| format!("{name}: is there in {count} versions")));
    wrong
}

fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

/// The packages of a tree whose licence is none that is known to do.
fn of_licences(tree: &str) -> Vec<String> {
    let lines = tree.lines().filter_map(|line| line.split_once('|'));
    let refused = lines.filter_map(|(package, licence)| {
        let licence = licence.trim_end_matches(" (*)").trim();
        (!does(licence)).then(|| format!("{package}: licence {licence:?}"))
    });
    let mut refused: Vec<_> = refused.collect();
    refused.sort();
    refused.dedup();
    refused
}

/// Tells whether a licence, as SPDX writes expressions of them, can be met by
/// those allowed.
fn does(licence: &str) -> bool {
    // An old way to say OR.
    let licence = licence.replace('/', " OR ");
    either(licence.trim())
}

fn either(expression: &str) -> bool {
    parts(expression, " OR ").into_iter().any(all)
}

fn all(expression: &str) -> bool {
    parts(expression, " AND ").into_iter().all(|part| {
        let inner = part
            .strip_prefix('(')
            .and_then(|part| part.strip_suffix(')'));
        inner.map_or_else(|| LICENCES.contains(&part), either)
    })
}

/// An expression cut at a word, wherever that is in no parentheses.
fn parts<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in expression.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && expression[at..].starts_with(word) => {
                parts.push(expression[start..at].trim());
                start = at + word.len();
            }
            _ => {}
        }
    }
    parts.push(expression[start..].trim());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adviser_is_found_where_programs_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = env::join_paths([Path::new("/nonexistent"), folder.path()]).expect("a path");
        assert_eq!(Adviser::among(&path), None);
        fs::write(folder.path().join("cargo-audit"), "").expect("written");
        assert_eq!(Adviser::among(&path), Some(Adviser(&["audit"])));
    }

    #[test]
    fn a_licence_does_if_it_can_be_met() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
        ] {
            assert!(does(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND AGPL-3.0-only",
            "(MIT AND SSPL-1.0) OR GPL-2.0-only",
        ] {
            assert!(!does(bad), "{bad}");
        }
        assert_eq!(
            of_licences("a v1|MIT (*)\nb v2|SSPL-1.0\nb v2|SSPL-1.0"),
            ["b v2: licence \"SSPL-1.0\""]
        );
    }

    #[test]
    fn a_package_from_elsewhere_without_checksum_or_banned_is_told() {
        let package = |name: &str, source: &str, rest: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"1\"\n{source}{rest}\n")
        };
        let from = format!("source = \"{SOURCE}\"\n");
        let sum = "checksum = \"00\"\n";
        let lock = [
            package("ours", "", ""),
            package("good", &from, sum),
            package("bare", &from, ""),
            package("stray", "source = \"git+https://example.org/x\"\n", ""),
            package("openssl-sys", &from, sum),
            package("many", &from, sum).repeat(4),
        ];
        let wrong = of_lock(&lock.concat());
        let names: Vec<_> = wrong.iter().filter_map(|it| it.split(':').next()).collect();
        assert_eq!(names, ["bare", "stray", "openssl-sys", "many"]);
    }
}
