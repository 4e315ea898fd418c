//! Everything a change must pass.

use crate::{beside::Beside, dist, guest, run::cargo, stages::Stages};
use anyhow::Result;
use std::{env, path::Path, thread};

/// What cargo's test runs added up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
    /// Those of the ignored that count as passed as well.
    found_out: u32,
}

/// How many tests of one program run at a time, if somebody says. Else one more than there
/// are processors: those that take longest wait for much else.
const THREADS: &str = "RUST_TEST_THREADS";

/// Tests of whole hosts that are listed, for they took longest.
const LISTED: usize = 15;

/// How long tests of whole hosts had one, in seconds, as they say.
#[derive(Debug, Default)]
struct Times(Vec<(f64, String)>);

/// What the first test program says when all are built and run.
const BEGUN: &str = "running ";

/// Builds, prepares, tests and checks; reports every failure at the end. Tests wait for
/// something else than a processor a good part of the time: that is when it checks.
pub fn all(root: &Path) -> Result<()> {
    let mut stages = Stages::default();
    let dist = stages.run("build", || dist::build(root));
    let prepared = dist
        .and_then(|dist| stages.run("prepare", || guest::prepare(root, &dist, guest::TEST_IMAGE)));
    let mut tally = Tally::default();
    let mut times = Times::default();
    // By another cargo: our own program is built anew with the tests, and not where it was.
    let check = || Beside::begin(cargo(root).args(["xtask", "check"]));
    let mut checks = None;
    if let Some(prepared) = prepared {
        stages.run("tests", || {
            let mut run = cargo(root);
            run = run.args(["test", "--release", "--workspace", "--no-fail-fast"]);
            if env::var_os(THREADS).is_none() {
                run = run.env(
                    THREADS,
                    (thread::available_parallelism()?.get() + 1).to_string(),
                );
            }
            for (name, value) in prepared.variables() {
                run = run.env(name, value);
            }
            run.done_seeing(|line| {
                if line.starts_with(BEGUN) {
                    // Not before: two cargos that build wait for each other.
                    checks.get_or_insert_with(check);
                }
                tally.add(line);
                times.add(line);
            })
        });
    }
    stages.run("checks", || checks.unwrap_or_else(check).end());
    for (took, name) in times.longest(LISTED) {
        println!("{took:>7.1} s  {name}");
    }
    let outcome = stages.finish();
    let Tally {
        passed,
        failed,
        ignored,
        found_out,
    } = tally;
    let passed = passed.saturating_sub(found_out);
    println!("total: {passed} passed, {failed} failed, {ignored} skipped");
    outcome
}

impl Tally {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`. A test that
    /// finds out only when it runs that this host cannot do it says `skipped: NAME: WHY`,
    /// and then passes.
    fn add(&mut self, line: &str) {
        if line.starts_with("skipped: ") {
            self.ignored += 1;
            self.found_out += 1;
        }
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

impl Times {
    /// Adds a line such as `took 9.5 s: fork::clones_are_apart`.
    fn add(&mut self, line: &str) {
        let words = line
            .strip_prefix("took ")
            .and_then(|rest| rest.split_once(" s: "));
        if let Some((took, name)) = words
            && let Ok(took) = took.parse()
        {
            self.0.push((took, name.to_owned()));
        }
    }

    /// The first of them, the longest first.
    fn longest(&mut self, count: usize) -> impl Iterator<Item = &(f64, String)> {
        self.0.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.0.iter().take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_took_longest_come_first_and_other_lines_do_not_count() {
        let mut times = Times::default();
        for line in [
            "took 3.5 s: a::b",
            "took long",
            "took 12.0 s: c",
            "took 1.0 s: d",
        ] {
            times.add(line);
        }
        let names: Vec<_> = times.longest(2).map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["c", "a::b"]);
    }

    #[test]
    fn results_add_up_and_other_lines_do_not_count() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test a::b ... ok",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
            "5 passed; 5 failed",
            "skipped: c::d: this host has no hierarchy",
        ] {
            tally.add(line);
        }
        let wanted = Tally {
            passed: 43,
            failed: 2,
            ignored: 2,
            found_out: 1,
        };
        assert_eq!(tally, wanted);
    }
}
