//! One build for programs and tests.
//!
//! If a test asks a dependency for a feature that programs are built without,
//! cargo compiles that dependency twice, and with it everything that depends on
//! it: once, it was every crate of ours.

use crate::run::cargo;
use anyhow::{Result, bail};
use std::{collections::BTreeMap, path::Path};

/// Lists every crate that tests would have with other features.
pub fn check(root: &Path) -> Result<()> {
    let programs = crates(root, "normal,build")?;
    let tests = crates(root, "normal,build,dev")?;
    let twice: Vec<_> = programs
        .iter()
        .filter_map(|(name, features)| {
            let theirs = tests.get(name).filter(|theirs| *theirs != features)?;
            Some(format!("{name}: {features:?}; in tests {theirs:?}"))
        })
        .collect();
    if !twice.is_empty() {
        bail!(
            "built twice, for want of one set of features:\n{}",
            twice.join("\n")
        );
    }
    Ok(())
}

/// Each crate of the workspace or that it depends on along these edges, and the
/// sets of features that it is built with.
fn crates(root: &Path, edges: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let tree = cargo(root)
        .args(["tree", "--quiet", "--workspace", "--no-dedupe"])
        .args(["--prefix", "none", "--format", "{p}|{f}", "--edges", edges])
        .printed()?;
    Ok(listed(&tree))
}

fn listed(tree: &str) -> BTreeMap<String, Vec<String>> {
    let mut crates = BTreeMap::<_, Vec<_>>::new();
    for line in tree.lines() {
        if let Some((name, features)) = line.split_once('|') {
            // What cargo has said already it marks so.
            let features = features.trim_end_matches(" (*)");
            let sets = crates.entry(name.to_owned()).or_default();
            if let Err(place) = sets.binary_search_by(|set: &String| set.as_str().cmp(features)) {
                sets.insert(place, features.to_owned());
            }
        }
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_listed_once_with_all_its_sets_of_features() {
        let listed = listed("a v1|std\nb v1|\n\na v1|\na v1|std (*)\n");
        let wanted = [
            ("a v1".to_owned(), vec![String::new(), "std".to_owned()]),
            ("b v1".to_owned(), vec![String::new()]),
        ];
        assert_eq!(listed, wanted.into());
    }
}
