//! A chore of several stages: runs them, times them, and lists what failed.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Stages run so far.
#[derive(Debug, Default)]
pub struct Stages(Vec<Stage>);

#[derive(Debug)]
struct Stage {
    name: &'static str,
    took: Duration,
    outcome: Outcome,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Stages {
    /// Runs a stage. `None` if it failed; a stage that needs its result stops there,
    /// and others go on, so that one run shows every failure.
    pub fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("== {name}");
        let start = Instant::now();
        let (result, outcome) = match work() {
            Ok(result) => (Some(result), Outcome::Passed),
            Err(error) => {
                println!("{error:#}");
                (None, Outcome::Failed)
            }
        };
        self.0.push(Stage {
            name,
            took: start.elapsed(),
            outcome,
        });
        result
    }

    /// Leaves a stage out, which is no failure, for this reason.
    pub fn skip(&mut self, name: &'static str, why: &anyhow::Error) {
        println!("== {name}\nskipped: {why:#}");
        self.0.push(Stage {
            name,
            took: Duration::ZERO,
            outcome: Outcome::Skipped,
        });
    }

    /// Prints each stage's time and outcome; an error if any failed.
    pub fn finish(self) -> Result<()> {
        println!("== stages");
        for stage in &self.0 {
            let outcome = match stage.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped => "SKIPPED",
            };
            println!(
                "{:>7.1} s  {outcome:7}  {}",
                stage.took.as_secs_f64(),
                stage.name
            );
        }
        let failed = self.0.iter().filter(|s| s.outcome == Outcome::Failed);
        let names: Vec<_> = failed.map(|s| s.name).collect();
        if !names.is_empty() {
            bail!("failed: {}", names.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_listed_and_none_stops_the_rest() {
        let mut stages = Stages::default();
        assert_eq!(stages.run("one", || bail!("broken")), None::<()>);
        assert_eq!(stages.run("two", || Ok(2)), Some(2));
        assert_eq!(stages.run("three", || bail!("broken")), None::<()>);
        stages.skip("four", &anyhow::anyhow!("no network"));
        let error = stages.finish().expect_err("two failed");
        assert_eq!(error.to_string(), "failed: one, three");
    }

    #[test]
    fn stages_that_all_pass_pass() {
        let mut stages = Stages::default();
        stages.run("one", || Ok(()));
        stages.finish().expect("none failed");
    }
}
