//! Everything a change must pass.

use crate::{
    beside::Beside,
    dist::{self, Profile},
    guest,
    pool::{self, Event, Job, Turn},
    programs::{self, EXAMPLES, Selection, TestProgram},
    results::Results,
    run::cargo,
    space,
    stages::Stages,
};
use anyhow::{Result, anyhow, bail};
use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Tests of one program that run at a time, if the environment says. Else one more than there
/// are processors: those that take longest wait for much else.
const THREADS: &str = "RUST_TEST_THREADS";

/// Tests that are listed, for they took longest.
const LISTED: usize = 15;

/// Most tests that run once more if they fail. More than these do not fail by chance.
const AGAIN: usize = 3;

/// Builds, prepares, tests and, if all is tested, checks; reports every failure at the end.
/// Tests wait for something else than a processor a good part of the time: that is when it
/// checks.
pub fn run(root: &Path, selection: &Selection) -> Result<()> {
    space::TEST.check(root)?;
    let mut stages = Stages::default();
    let built = stages.run("build", || build(root));
    let prepared = built.and_then(|(dist, built)| {
        let prepare = || guest::prepare(root, &dist, guest::TEST_IMAGE);
        Some((stages.run("prepare", prepare)?, built))
    });
    // By another cargo: our own program is built anew with the tests, and not where it was.
    let check = || Beside::begin(cargo(root).args(["xtask", "check"]));
    let mut checks = None;
    let mut results = Results::default();
    if let Some((prepared, built)) = prepared {
        let threads = (thread::available_parallelism()?.get() + 1).to_string();
        let mut variables = prepared.variables().to_vec();
        if env::var_os(THREADS).is_none() {
            variables.push((THREADS, Path::new(&threads)));
        }
        let jobs = programs::jobs(root, built, selection, &variables);
        if jobs.is_empty() {
            bail!("no test program is named like that");
        }
        stages.run("tests", || {
            all_of(jobs, &mut results, |name| {
                // Not before: two cargos that build wait for each other.
                if name == EXAMPLES {
                    checks.get_or_insert_with(check);
                }
            })
        });
    }
    if selection.is_all() {
        stages.run("checks", || checks.unwrap_or_else(check).end());
    }
    println!("== longest tests");
    for (took, program, test) in results.longest(LISTED) {
        println!("{took:>7.1} s  {program}  {test}");
    }
    for (program, test) in results.unsteady() {
        println!("UNSTEADY  {program}  {test}: failed beside others, passed alone: a defect");
    }
    for (program, test) in results.failed() {
        println!("FAILED  {program}  {test}");
    }
    let outcome = stages.finish();
    println!("total: {}", results.total());
    outcome
}

/// Builds all there is, and lays out what is installed.
fn build(root: &Path) -> Result<(PathBuf, Vec<TestProgram>)> {
    thread::scope(|scope| {
        // It is optimised as a whole, which takes one processor.
        let guests = scope.spawn(|| dist::for_guests(root));
        let built = programs::build(root)?;
        guests
            .join()
            .map_err(|_| anyhow!("its thread panicked"))??;
        Ok((dist::lay_out(root, Profile::Quick)?, built))
    })
}

/// Runs test programs, several at a time, and tells `ended` the name of each that has ended.
/// What a program prints is shown if it fails, whole, when it has ended; of the others a line
/// each.
fn all_of(jobs: Vec<Job>, results: &mut Results, mut ended: impl FnMut(&str)) -> Result<()> {
    let mut printed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut broken = Vec::new();
    let (begun, count, mut spent) = (Instant::now(), jobs.len(), Duration::ZERO);
    // The longest program waits for guests half of its time: two at least fill that. Each has
    // threads for every processor, so that more do not help for long.
    let width = (thread::available_parallelism()?.get() / 2).clamp(2, 8);
    let copies: BTreeMap<_, _> = jobs.iter().map(|it| (it.name.clone(), it.copy())).collect();
    pool::run(jobs, width, |name, event| match event {
        Event::Line(line) => {
            if results.add(name, &line) {
                println!("           {name}: {line}");
            }
            printed.entry(name.to_owned()).or_default().push(line);
        }
        Event::End(took, outcome) => {
            spent += took;
            let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
            let seconds = took.as_secs_f64();
            println!(
                "{seconds:>7.1} s  {verdict:7}  {name}: {}",
                results.of(name)
            );
            let lines = printed.remove(name).unwrap_or_default().join("\n");
            if let Err(error) = outcome {
                println!("== {name}: {error:#}\n{lines}\n== end of {name}");
                broken.push(name.to_owned());
            }
            ended(name);
        }
    });
    println!(
        "{count} programs; one after the other {:.0} s, together {:.0} s",
        spent.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    broken.retain(|name| !again(&copies[name], results));
    if !broken.is_empty() {
        bail!("failed: {}", broken.join(", "));
    }
    Ok(())
}

/// Runs the tests of a program that failed beside others once more, alone, if they are few.
/// True if they pass. That is no defect less, and they are listed; but what a change did not
/// break does not hold it up.
fn again(job: &Job, results: &mut Results) -> bool {
    let name = job.name.as_str();
    let failed = results.failed().filter(|(program, _)| *program == name);
    let tests: Vec<_> = failed.map(|(_, test)| test.to_owned()).collect();
    let few = (1..=AGAIN).contains(&results.failed().count());
    if name == EXAMPLES || !few || !results.is_told(name) {
        return false;
    }
    println!("== {name}: once more, alone: {}", tests.join(" "));
    let mut second = Results::default();
    let exactly = Job {
        turn: Turn::Alone,
        run: job.run.copy().arg("--exact").args(&tests),
        ..job.copy()
    };
    pool::run(vec![exactly], 1, |name, event| {
        if let Event::Line(line) = event {
            second.add(name, &line);
            println!("{line}");
        }
    });
    let failed: Vec<_> = second.failed().map(|(_, test)| test.to_owned()).collect();
    let ran = second.total();
    if ran.passed + ran.skipped + ran.failed != u32::try_from(tests.len()).unwrap_or(u32::MAX) {
        return false;
    }
    for test in tests.iter().filter(|test| !failed.contains(test)) {
        results.passed_again(name, test);
    }
    failed.is_empty()
}
