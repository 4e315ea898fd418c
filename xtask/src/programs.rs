//! Test programs of the workspace: built by cargo, run without it.

use crate::{
    dist::Profile,
    pool::{Job, Turn},
    run::program,
};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Programs that measure how processors are shared, so that another program would be measured
/// with them. They run one by one, before all others.
const ALONE: [&str; 2] = [
    "bin/forkyard-dispatcher/tests/real_threads.rs",
    "bin/forkyard-friendly/tests/real_groups/main.rs",
];
/// The program that takes longest by far: it begins first, and all others run beside it.
const LONGEST: &str = "e2e/tests/needs_root.rs";

/// Name of the examples in documentation, which cargo builds and runs.
pub const EXAMPLES: &str = "examples in documentation";

/// Asks for the time that each test took. Not a stable option: a program that does not know
/// it runs without.
const TIMES: [&str; 2] = ["-Zunstable-options", "--report-time"];
/// Has a stable test program take unstable options.
const UNSTABLE: &str = "RUSTC_BOOTSTRAP";

/// Tests to be run; all of them if it names none.
#[derive(Debug, Default)]
pub struct Selection {
    /// Parts of programs' paths.
    pub programs: Vec<String>,
    /// Parts of tests' names.
    pub tests: Vec<String>,
}

impl Selection {
    /// True if it leaves nothing out.
    pub fn is_all(&self) -> bool {
        self.programs.is_empty() && self.tests.is_empty()
    }

    fn has(&self, program: &TestProgram) -> bool {
        let mut parts = self.programs.iter();
        self.programs.is_empty() || parts.any(|part| program.source.contains(part))
    }
}

/// A test program, built.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// Path of its main file in the workspace, which is its name as well.
    source: String,
    /// Folder of its crate: tests run there.
    home: PathBuf,
    path: PathBuf,
}

/// Builds every program and every test program, at once: while one of the large crates is
/// compiled, there is something else for the other processors.
pub fn build(root: &Path) -> Result<Vec<TestProgram>> {
    let mut found = Vec::new();
    let mut wrong = None;
    Profile::Quick
        .cargo(root)
        // What says that it is tested, and no example: lints read those.
        .args(["build", "--profile", Profile::Quick.name()])
        .args(["--workspace", "--bins", "--tests"])
        .arg("--message-format=json-render-diagnostics")
        .each_line(|line| match read(root, line) {
            Ok(program) => found.extend(program),
            Err(error) => wrong = Some(error.context(line.to_owned())),
        })?;
    if let Some(error) = wrong {
        return Err(error);
    }
    for named in ALONE.iter().chain([&LONGEST]) {
        if !found.iter().any(|program| program.source == *named) {
            bail!("xtask/src/programs.rs names {named}, which is no test program");
        }
    }
    Ok(found)
}

/// Builds every program, and finds the one that tests whole hosts.
pub fn of_whole_hosts(root: &Path) -> Result<PathBuf> {
    let mut built = build(root)?.into_iter();
    let found = built.find(|program| program.source == LONGEST);
    found.map(|program| program.path).context(LONGEST)
}

/// Reads a line that cargo prints about what it has built: a test program, or nothing of
/// interest.
fn read(root: &Path, line: &str) -> Result<Option<TestProgram>> {
    let message: Value = serde_json::from_str(line)?;
    let (true, Some(path)) = (
        message["profile"]["test"] == true,
        message["executable"].as_str(),
    ) else {
        return Ok(None);
    };
    let text = |value: &Value| value.as_str().map(PathBuf::from);
    let source = text(&message["target"]["src_path"]).context("a target without source")?;
    let manifest = text(&message["manifest_path"]).context("a target without manifest")?;
    Ok(Some(TestProgram {
        source: source
            .strip_prefix(root)
            .unwrap_or(&source)
            .to_string_lossy()
            .into_owned(),
        home: manifest.parent().unwrap_or(root).to_owned(),
        path: path.into(),
    }))
}

/// Jobs that run these programs, and the examples in documentation, in the order in which they
/// are to begin.
pub fn jobs(
    root: &Path,
    mut programs: Vec<TestProgram>,
    selection: &Selection,
    variables: &[(&'static str, &Path)],
) -> Vec<Job> {
    programs.retain(|it| selection.has(it));
    // Those of whole crates, in tests/, before those of their parts: they take longer.
    programs.sort_by_key(|it| {
        let whole = it.source.contains("/tests/");
        (!it.is_alone(), it.source != LONGEST, !whole)
    });
    let timed = programs.first().is_some_and(TestProgram::knows_times);
    let mut jobs: Vec<_> = programs
        .iter()
        .map(|it| it.job(timed, &selection.tests, variables))
        .collect();
    if selection.is_all() {
        // Early: it is cargo's, and the checks beside it, by another cargo, wait for it.
        let first = programs.iter().position(|it| !it.is_alone());
        jobs.insert(first.map_or(0, |first| first + 1), examples(root));
    }
    jobs
}

fn examples(root: &Path) -> Job {
    Job {
        name: EXAMPLES.to_owned(),
        turn: Turn::Any,
        run: Profile::Quick.cargo(root).args([
            "test",
            "--profile",
            Profile::Quick.name(),
            "--workspace",
            "--no-fail-fast",
            "--doc",
        ]),
    }
}

impl TestProgram {
    fn is_alone(&self) -> bool {
        ALONE.contains(&self.source.as_str())
    }

    /// Finds out by having it list its tests.
    fn knows_times(&self) -> bool {
        let run = program(&self.path, &self.home).args(TIMES).arg("--list");
        let (_, outcome) = run.env(UNSTABLE, "1").heard_afterwards();
        outcome.is_ok()
    }

    fn job(&self, timed: bool, tests: &[String], variables: &[(&'static str, &Path)]) -> Job {
        let mut run = program(&self.path, &self.home)
            .env("CARGO_MANIFEST_DIR", &self.home)
            .args(tests);
        if timed {
            run = run.args(TIMES).env(UNSTABLE, "1");
        }
        for (name, value) in variables {
            run = run.env(name, value);
        }
        Job {
            name: self.source.clone(),
            turn: if self.is_alone() {
                Turn::Alone
            } else {
                Turn::Any
            },
            run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(source: &str) -> TestProgram {
        TestProgram {
            source: source.to_owned(),
            home: "/".into(),
            path: "/bin/false".into(),
        }
    }

    #[test]
    fn test_programs_are_known_from_what_cargo_prints_and_all_else_is_not() {
        let root = Path::new("/w");
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/lib/a/Cargo.toml",
            "target":{"kind":["test"],"src_path":"/w/lib/a/tests/t.rs"},
            "profile":{"test":true},"executable":"/w/target/release/deps/t-1"}"#;
        let found = read(root, line).expect("read").expect("a test program");
        assert_eq!(found.source, "lib/a/tests/t.rs");
        assert_eq!(found.home, Path::new("/w/lib/a"));
        assert_eq!(found.path, Path::new("/w/target/release/deps/t-1"));
        for other in [
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"profile":{"test":false},"executable":"/w/target/release/a"}"#,
            r#"{"profile":{"test":true},"executable":null}"#,
        ] {
            assert_eq!(read(root, other).expect("read"), None, "{other}");
        }
        read(root, "warning").expect_err("not cargo's");
    }

    #[test]
    fn those_alone_come_first_then_the_longest_and_examples_then_whole_crates() {
        let sources = ["lib/a/src/lib.rs", LONGEST, "lib/a/tests/t.rs", ALONE[1]];
        let root = Path::new("/");
        let jobs = jobs(root, sources.map(at).into(), &Selection::default(), &[]);
        let order: Vec<_> = jobs
            .iter()
            .map(|job| (job.name.as_str(), job.turn))
            .collect();
        let wanted = [
            (ALONE[1], Turn::Alone),
            (LONGEST, Turn::Any),
            (EXAMPLES, Turn::Any),
            ("lib/a/tests/t.rs", Turn::Any),
            ("lib/a/src/lib.rs", Turn::Any),
        ];
        assert_eq!(order, wanted);
    }

    #[test]
    fn a_selection_has_programs_by_parts_of_their_paths_and_no_examples() {
        let sources = ["lib/a/src/lib.rs", "lib/a/tests/t.rs", "lib/b/tests/t.rs"];
        let selection = Selection {
            programs: vec!["lib/a/t".to_owned(), "lib/b".to_owned()],
            tests: Vec::new(),
        };
        let root = Path::new("/");
        let jobs = jobs(root, sources.map(at).into(), &selection, &[]);
        let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["lib/a/tests/t.rs", "lib/b/tests/t.rs"]);
    }
}
