//! Results of test programs, from what they print.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

/// Seconds after which the end of a test is worth a look.
const LONG: f64 = 5.0;

/// Sum of the results of several test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed, apart from those that count as skipped.
    pub passed: u32,
    /// Tests that failed.
    pub failed: u32,
    /// Tests that were left out, by themselves or by their program.
    pub skipped: u32,
}

/// Results so far.
#[derive(Debug, Default)]
pub struct Results {
    programs: BTreeMap<String, Program>,
}

/// Results of one program so far.
#[derive(Debug, Default)]
struct Program {
    /// As its own lines have it.
    counted: Tally,
    /// Those of the passed that count as skipped.
    found_out: u32,
    failed: Vec<String>,
    /// Those that failed beside others, and passed alone.
    unsteady: Vec<String>,
    /// Seconds of each test.
    took: HashMap<String, f64>,
    /// Seconds of those that report the time they took without waiting.
    worked: HashMap<String, f64>,
}

/// Content of a line.
#[derive(Debug, PartialEq)]
enum Said<'a> {
    /// `test a::b ... ok <1.234s>`: a test's end; its time is not told of every test.
    Test {
        name: &'a str,
        failed: bool,
        took: Option<f64>,
    },
    /// `took 1.2 s: a::b`: how long a test worked.
    Worked { name: &'a str, took: f64 },
    /// `skipped: a::b: why`: a test found out only when it ran that this host cannot do it. It
    /// then passes.
    Skipped,
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
    Result(Tally),
}

impl Results {
    /// Adds what a program printed. True if the line is worth a look while others still run.
    pub fn add(&mut self, program: &str, line: &str) -> bool {
        let of = self.programs.entry(program.to_owned()).or_default();
        match Said::of(line) {
            Some(Said::Test { name, failed, took }) => {
                of.took.extend(took.map(|took| (name.to_owned(), took)));
                if failed {
                    of.failed.push(name.to_owned());
                }
                failed || took >= Some(LONG)
            }
            Some(Said::Worked { name, took }) => {
                of.worked.insert(name.to_owned(), took);
                false
            }
            Some(Said::Skipped) => {
                of.found_out += 1;
                true
            }
            Some(Said::Result(tally)) => {
                of.counted.add(tally);
                false
            }
            None => line.starts_with("test ") && line.contains(" has been running for over "),
        }
    }

    /// Results of one program.
    pub fn of(&self, program: &str) -> Tally {
        self.programs
            .get(program)
            .map(Program::tally)
            .unwrap_or_default()
    }

    /// Results of all programs.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.programs.values().for_each(|it| total.add(it.tally()));
        total
    }

    /// Every test that failed, and its program.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        let programs = self.programs.iter();
        programs.flat_map(|(name, it)| it.failed.iter().map(|test| (name.as_str(), test.as_str())))
    }

    /// True if the program failed by its tests alone: it came to its end, and each that failed
    /// has a name.
    pub fn is_told(&self, program: &str) -> bool {
        self.programs.get(program).is_some_and(|it| {
            let named = u32::try_from(it.failed.len());
            it.counted.failed > 0 && named == Ok(it.counted.failed)
        })
    }

    /// Notes that a test which failed has passed when it ran again.
    pub fn passed_again(&mut self, program: &str, test: &str) {
        let Some(of) = self.programs.get_mut(program) else {
            return;
        };
        if let Some(at) = of.failed.iter().position(|it| it == test) {
            of.unsteady.push(of.failed.swap_remove(at));
            of.counted.failed = of.counted.failed.saturating_sub(1);
            of.counted.passed += 1;
        }
    }

    /// Every test that failed beside others and passed alone, and its program.
    pub fn unsteady(&self) -> impl Iterator<Item = (&str, &str)> {
        let programs = self.programs.iter();
        programs.flat_map(|(name, it)| {
            it.unsteady
                .iter()
                .map(|test| (name.as_str(), test.as_str()))
        })
    }

    /// The tests that took longest, the longest first: seconds, program, test.
    pub fn longest(&self, count: usize) -> Vec<(f64, &str, &str)> {
        let mut all = Vec::new();
        for (name, it) in &self.programs {
            let took = it
                .took
                .iter()
                .filter(|(test, _)| !it.worked.contains_key(*test));
            let times = took.chain(&it.worked);
            all.extend(times.map(|(test, took)| (*took, name.as_str(), test.as_str())));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.truncate(count);
        all
    }
}

impl Program {
    fn tally(&self) -> Tally {
        Tally {
            passed: self.counted.passed.saturating_sub(self.found_out),
            skipped: self.counted.skipped + self.found_out,
            ..self.counted
        }
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl<'a> Said<'a> {
    fn of(line: &'a str) -> Option<Self> {
        if let Some(rest) = line.strip_prefix("test result: ") {
            return Some(Self::Result(counts(rest)?));
        }
        if let Some(rest) = line.strip_prefix("test ") {
            let (name, end) = rest.split_once(" ... ")?;
            // What a test prints itself may stand before it.
            let (end, took) = match end.rsplit_once(" <") {
                Some((end, took)) => (end, took.strip_suffix("s>")?.parse().ok()),
                None => (end, None),
            };
            let failed = end.ends_with("FAILED");
            return (failed || end.ends_with("ok")).then_some(Self::Test {
                name: name.strip_suffix(" - should panic").unwrap_or(name),
                failed,
                took,
            });
        }
        if let Some(rest) = line.strip_prefix("took ") {
            let (took, name) = rest.split_once(" s: ")?;
            let took = took.parse().ok()?;
            return Some(Self::Worked { name, took });
        }
        line.starts_with("skipped: ").then_some(Self::Skipped)
    }
}

/// Reads `ok. 3 passed; 0 failed; 1 ignored; …`.
fn counts(text: &str) -> Option<Tally> {
    let (_, counts) = text.split_once(". ")?;
    let mut tally = Tally::default();
    for count in counts.split("; ") {
        let (number, what) = count.split_once(' ')?;
        let field = match what {
            "passed" => &mut tally.passed,
            "failed" => &mut tally.failed,
            "ignored" => &mut tally.skipped,
            _ => continue,
        };
        *field = number.parse().ok()?;
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(lines: &[&str]) -> Results {
        let mut results = Results::default();
        for line in lines {
            results.add("a.rs", line);
        }
        results
    }

    #[test]
    fn the_tests_that_took_longest_come_first_and_other_lines_do_not_count() {
        let mut results = results(&[
            "test a::b ... ok <3.500s>",
            "test c - should panic ... ok <12.000s>",
            "test waited ... ok <99.000s>",
            "took 1.0 s: waited",
            "took long",
            "test d ... ignored, for some reason",
            "test e ... noise ok <4.000s>",
        ]);
        results.add("b.rs", "took 7.0 s: f");
        let wanted = [(12.0, "a.rs", "c"), (7.0, "b.rs", "f"), (4.0, "a.rs", "e")];
        assert_eq!(results.longest(3), wanted);
        assert_eq!(results.longest(9).len(), 5);
    }

    #[test]
    fn results_add_up_and_other_lines_do_not_count() {
        let mut results = results(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test a::b ... ok",
            "skipped: c::d: this host has no hierarchy",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
            "5 passed; 5 failed",
        ]);
        let of = |passed, failed, skipped| Tally {
            passed,
            failed,
            skipped,
        };
        assert_eq!(results.of("a.rs"), of(42, 2, 2));
        results.add("b.rs", "skipped: e: no");
        results.add(
            "b.rs",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured",
        );
        assert_eq!(results.of("b.rs"), of(0, 0, 1));
        assert_eq!(results.total(), of(42, 2, 3));
    }

    #[test]
    fn one_that_passes_again_has_passed_and_is_named_all_the_same() {
        let mut results = results(&[
            "test a ... FAILED <0.001s>",
            "test b ... FAILED <0.001s>",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured",
        ]);
        assert!(results.is_told("a.rs"));
        results.passed_again("a.rs", "a");
        results.passed_again("a.rs", "never ran");
        assert!(results.failed().eq([("a.rs", "b")]));
        assert!(results.unsteady().eq([("a.rs", "a")]));
        assert_eq!(results.total().to_string(), "4 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_program_that_broke_off_did_not_fail_by_its_tests_alone() {
        assert!(!results(&["test a ... FAILED <0.001s>"]).is_told("a.rs"));
        let result = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured";
        assert!(!results(&["test a ... FAILED <0.001s>", result]).is_told("a.rs"));
    }

    #[test]
    fn failures_are_named_and_are_told_of_at_once_as_are_those_that_take_long() {
        let mut results = Results::default();
        assert!(!results.add("a.rs", "test a ... ok <0.001s>"));
        assert!(results.add("a.rs", "test a2 ... ok <61.001s>"));
        assert!(results.add("a.rs", "test b::c ... FAILED <0.001s>"));
        assert!(results.add("b.rs", "test d ... FAILED"));
        assert!(results.add("b.rs", "test e has been running for over 60 seconds"));
        assert!(!results.add("b.rs", "FAILED"));
        let failed: Vec<_> = results.failed().collect();
        assert_eq!(failed, [("a.rs", "b::c"), ("b.rs", "d")]);
    }
}
