//! Everything a change must pass.

use crate::{check, dist, guest, run::cargo, stages::Stages};
use anyhow::Result;
use std::path::Path;

/// What cargo's test runs added up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
}

/// Builds, prepares, checks and tests; reports every failure at the end.
pub fn all(root: &Path) -> Result<()> {
    let mut stages = Stages::default();
    let dist = stages.run("build", || dist::build(root));
    let prepared = dist
        .and_then(|dist| stages.run("prepare", || guest::prepare(root, &dist, guest::TEST_IMAGE)));
    check::into(&mut stages, root);
    let mut tally = Tally::default();
    if let Some(prepared) = prepared {
        stages.run("tests", || {
            let mut run = cargo(root);
            run = run.args(["test", "--release", "--workspace", "--no-fail-fast"]);
            for (name, value) in prepared.variables() {
                run = run.env(name, value);
            }
            run.done_seeing(|line| tally.add(line))
        });
    }
    let outcome = stages.finish();
    let Tally {
        passed,
        failed,
        ignored,
    } = tally;
    println!("total: {passed} passed, {failed} failed, {ignored} skipped");
    outcome
}

impl Tally {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            let (number, what) = count.split_once(' ').unwrap_or_default();
            let field = match what {
                "passed" => &mut self.passed,
                "failed" => &mut self.failed,
                "ignored" => &mut self.ignored,
                _ => continue,
            };
            *field += number.parse::<u32>().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_add_up_and_other_lines_do_not_count() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test a::b ... ok",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
            "5 passed; 5 failed",
        ] {
            tally.add(line);
        }
        let wanted = Tally {
            passed: 43,
            failed: 2,
            ignored: 1,
        };
        assert_eq!(tally, wanted);
    }
}
