//! Programs that run several at a time, and are heard one by one.
//!
//! ```text
//! waiting --its turn--> running --end of its output, exit--> ended
//! ```
//!
//! One thread a program reads what it prints. All that is seen of it is seen by the caller's
//! thread, in the order in which it happened. A program that cannot be started has ended; the
//! others go on.

use crate::run::Run;
use anyhow::{Context, Result, bail};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader},
    sync::mpsc::{Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// A program to run.
#[derive(Debug)]
pub struct Job {
    /// Name of the job.
    pub name: String,
    /// Condition under which it may run.
    pub turn: Turn,
    /// Command of the job.
    pub run: Run,
}

impl Job {
    /// Another of the same.
    pub fn copy(&self) -> Self {
        Self {
            name: self.name.clone(),
            turn: self.turn,
            run: self.run.copy(),
        }
    }
}

/// Condition under which a job may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// While no other job runs.
    Alone,
    /// Beside others.
    Any,
}

/// Event of a job.
#[derive(Debug)]
pub enum Event {
    /// The job printed a line.
    Line(String),
    /// The job has ended, after so long.
    End(Duration, Result<()>),
}

/// Runs jobs to their ends, so many at a time, in the order in which they are given. `see` has
/// the name of the job to which something happens.
pub fn run(jobs: Vec<Job>, width: usize, mut see: impl FnMut(&str, Event)) {
    let mut waiting = VecDeque::from(jobs);
    let mut running: BTreeMap<String, Turn> = BTreeMap::new();
    let (sender, events) = channel();
    loop {
        while let Some(job) = next(&mut waiting, &running, width) {
            running.insert(job.name.clone(), job.turn);
            let sender = sender.clone();
            thread::spawn(move || follow(job, &sender));
        }
        if running.is_empty() {
            return;
        }
        // We hold a sender: there is a next event.
        let Ok((name, event)) = events.recv() else {
            return;
        };
        if let Event::End(..) = event {
            running.remove(&name);
        }
        see(&name, event);
    }
}

/// Takes the next job, if it may begin beside those that run.
fn next(
    waiting: &mut VecDeque<Job>,
    running: &BTreeMap<String, Turn>,
    width: usize,
) -> Option<Job> {
    let fits = match waiting.front()?.turn {
        Turn::Alone => running.is_empty(),
        Turn::Any => running.len() < width && running.values().all(|turn| *turn == Turn::Any),
    };
    if fits { waiting.pop_front() } else { None }
}

/// Runs a job and tells what happens to it.
fn follow(job: Job, events: &Sender<(String, Event)>) {
    let Job { name, run, .. } = job;
    let begun = Instant::now();
    // Received until every job has ended.
    let tell = |event| drop(events.send((name.clone(), event)));
    let outcome = (|| {
        let (mut child, output) = run.started()?;
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("its output")?;
            tell(Event::Line(String::from_utf8_lossy(&line).into_owned()));
        }
        let status = child.wait().context("its end")?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    })();
    tell(Event::End(begun.elapsed(), outcome));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::program;
    use std::path::Path;

    fn job(name: &str, turn: Turn, script: &str) -> Job {
        Job {
            name: name.to_owned(),
            turn,
            run: program(Path::new("sh"), Path::new("/")).args(["-c", script]),
        }
    }

    #[test]
    fn lines_of_each_are_whole_and_in_order_and_failures_are_ends() {
        let jobs = vec![
            job(
                "a",
                Turn::Any,
                "echo one; echo two >&2; printf three; exit 3",
            ),
            job("b", Turn::Any, "echo four"),
            Job {
                run: program(Path::new("/nowhere/at/all"), Path::new("/")),
                ..job("c", Turn::Any, "")
            },
        ];
        let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
        run(jobs, 2, |name, event| {
            said.entry(name.to_owned()).or_default().push(match event {
                Event::Line(line) => line,
                Event::End(_, outcome) => match outcome {
                    Ok(()) => "ok".to_owned(),
                    Err(error) => error.to_string(),
                },
            });
        });
        assert_eq!(said["a"], ["one", "two", "three", "exit status: 3"]);
        assert_eq!(said["b"], ["four", "ok"]);
        assert_eq!(said["c"], ["/nowhere/at/all"]);
    }

    #[test]
    fn those_beside_others_meet_and_those_alone_do_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (a, b) = (path("a"), path("b"));
        // Each waits for the other: one after the other they would not end.
        let meet = |own: &str, other: &str| {
            format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done; rm {other}")
        };
        let alone = format!("[ ! -e {a} ] && [ ! -e {b} ]");
        let jobs = vec![
            job("a", Turn::Any, &meet(&a, &b)),
            job("b", Turn::Any, &meet(&b, &a)),
            job("alone", Turn::Alone, &alone),
            job("last", Turn::Any, "true"),
        ];
        let mut ends = Vec::new();
        run(jobs, 2, |name, event| {
            if let Event::End(_, outcome) = event {
                outcome.expect(name);
                ends.push(name.to_owned());
            }
        });
        assert_eq!(ends[2..], ["alone", "last"]);
    }

    #[test]
    fn a_job_begins_only_beside_those_it_may_run_with() {
        let waiting = |turn| VecDeque::from([job("next", turn, "")]);
        let running = |turns: &[Turn]| {
            let names = (0..).map(|n: u32| n.to_string());
            names.zip(turns.iter().copied()).collect()
        };
        let begins = |turn, now: &[Turn]| next(&mut waiting(turn), &running(now), 2).is_some();
        use Turn::{Alone, Any};
        assert!(begins(Any, &[]) && begins(Any, &[Any]) && begins(Alone, &[]));
        assert!(!begins(Any, &[Any, Any]) && !begins(Any, &[Alone]) && !begins(Alone, &[Any]));
    }
}
