use super::*;
use forkyard_sched::{Nanos, Policy};

const SMALL: &str = r#"
title = "two VMs"
policies = ["cfs", "procco"]
seeds = 2
length = "2s"
plots = ["speed-up", "latency"]

[[case]]
name = "apart"
cpus = 2
vm = [
  { name = "spmd", count = 2, vcpus = 2, load = { kind = "barrier", work = "1ms" } },
  { name = "server", vcpus = 1, load = { kind = "requests", every = "50ms", work = "1ms" } },
]

[[paper]]
case = "apart"
policy = "procco"
measure = "speed-up"
value = "much"
"#;

fn small() -> SimResults {
    run(&Scenario::parse(SMALL).expect("a scenario"), |_| ()).expect("runs")
}

#[test]
fn every_case_is_run_under_every_policy_and_the_first_is_the_measure() {
    let results = small();
    let rows: Vec<_> = results.rows.iter().map(|row| row.policy).collect();
    assert_eq!(rows, [Policy::Cfs, Policy::Procco]);
    assert_eq!(results.rows[0].value(Measure::SpeedUp), Some(1.0));
    let gang = results.rows[1].value(Measure::SpeedUp).expect("measured");
    assert!(gang > 1.0, "{gang}");
    assert_eq!(results.rows[0].vms.len(), 3);
    assert_eq!(results.simulated, Nanos::secs(3 * 2 * 2));
}

#[test]
fn the_same_scenario_gives_the_same_table() {
    assert_eq!(small(), small());
    let text = table(&small());
    assert!(text.contains("(much)"), "{text}");
    assert!(text.contains("p99 ms"), "{text}");
}

#[test]
fn plots_are_drawn_where_they_are_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = plots(&small(), "small", folder.path()).expect("drawn");
    assert_eq!(drawn.len(), 2);
    for path in drawn {
        let svg = std::fs::read_to_string(path).expect("read");
        assert!(svg.contains("procco") && svg.ends_with("</svg>\n"), "{svg}");
    }
    let none = folder.path().join("none");
    plots(&small(), "small", &none).expect_err("no such folder");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (from, to) in [
        ("policies = [\"cfs\", \"procco\"]", "policies = []"),
        ("\"procco\"]", "\"magic\"]"),
        ("seeds = 2", "seeds = 0"),
        ("seeds = 2", "sedes = 2"),
        ("\"1ms\" }", "\"1\" }"),
        ("case = \"apart\"", "case = \"elsewhere\""),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL);
        Scenario::parse(&text).expect_err(to);
    }
    for (from, to) in [
        ("cpus = 2", "cpus = 0"),
        ("work = \"1ms\"", "work = \"0ms\""),
    ] {
        let scenario = Scenario::parse(&SMALL.replacen(from, to, 1)).expect("well formed");
        let refused = run(&scenario, |_| ());
        assert!(matches!(refused, Err(ScenarioError::Case { .. })), "{to}");
    }
}

#[test]
fn every_scenario_of_the_repository_can_be_read_and_begins() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/sched");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).expect("scenarios") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("read");
        let mut scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{path:?}: {e:?}"));
        (scenario.seeds, scenario.length) = (1, Nanos::millis(100));
        scenario.warm_up = Nanos::millis(10);
        run(&scenario, |_| ()).unwrap_or_else(|e| panic!("{path:?}: {e:?}"));
        read += 1;
    }
    assert!(read > 10, "{read}");
}
