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
    failure: Option<anyhow::Error>,
}

impl Stages {
    /// Runs a stage. `None` if it failed; whoever needs its result stops there,
    /// and others go on, so that one run shows every failure.
    pub fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("== {name}");
        let start = Instant::now();
        let (result, failure) = match work() {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        if let Some(error) = &failure {
            println!("{error:#}");
        }
        self.0.push(Stage {
            name,
            took: start.elapsed(),
            failure,
        });
        result
    }

    /// Prints each stage's time and outcome; an error if any failed.
    pub fn finish(self) -> Result<()> {
        println!("== stages");
        for stage in &self.0 {
            let outcome = stage.failure.as_ref().map_or("ok", |_| "FAILED");
            println!(
                "{:>7.1} s  {outcome:6}  {}",
                stage.took.as_secs_f64(),
                stage.name
            );
        }
        let failed = self.0.iter().filter(|s| s.failure.is_some());
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
