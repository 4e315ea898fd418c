//! The examples do what they say.

use forkyard_e2e::{Host, eventually};
use std::{fs, path::Path, process::Command};

/// Folder of the examples.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

#[test]
fn the_patterns_of_use_work_as_their_examples_say() {
    let host = Host::with_woken_p(["--max-clones", "12"]);
    let commands = ["p", "echo $((6*7))", "rm -rf /etc", "ls /etc | wc -l"];
    let told = host.example("sandbox.py", commands, "");
    let told: Vec<_> = told.lines().collect();
    assert_eq!(told[0], "'echo $((6*7))': exit 0: 42");
    assert_eq!(told[1], "'rm -rf /etc': exit 0: ");
    assert!(!told[2].ends_with(": 0"), "{told:?}");

    let told = host.example("parallel.sh", ["p", "2"], "");
    assert!(told.ends_with("550 primes below 4000"), "{told}");

    let jobs: String = (1..=9).map(|n| format!("echo {n}\n")).collect();
    let told = host.example("load.py", ["p", "--most", "2"], &jobs);
    assert_eq!(told, "1\n2\n3\n4\n5\n6\n7\n8\n9");

    let told = host.example("opportunistic.py", ["p", "--parts", "3"], "");
    for part in 1..=3 {
        assert!(told.contains(&format!("part {part} on p-")), "{told}");
    }
    explores(&host);
    runs_jobs(&host);
    fuzzes(&host);
    is_a_target_of_afl(&host);
    assert_eq!(host.vms().len(), 1, "every clone has gone");
    host.end();
}

/// From a number in the memory of a process, by two steps, to 24.
fn explores(host: &Host) {
    let op = "#!/bin/sh\necho \"$*\" >/ops; cat /out\n";
    host.put("p", "/bin/op", op);
    host.sh("p", "mkfifo /ops /out");
    let counter = "n=1; while read -r op </ops; do n=$((n $op)); echo $n >/out; done";
    host.ok(["exec", "-d", "p", "--", "sh", "-c", counter]);
    let score = "n=$(op + 0); echo $((-(n - 24) * (n - 24)))";
    for example in ["explore.py", "explore_mcp.py"] {
        let words = ["p", "--score", score, "op '*' 3", "op + 7"];
        let told = host.example(example, words, "");
        let best = told.lines().last().expect("a line");
        let parts: Vec<_> = best.split(": ").collect();
        let &["best", vm, "op + 7 | op '*' 3", "0"] = &parts[..] else {
            panic!("{told}");
        };
        assert_eq!(host.sh(vm, "op + 0"), "24");
        assert_eq!(host.sh("p", "op + 0"), "1");
        assert_eq!(host.vms().len(), 2, "the others are removed");
        host.ok(["rm", vm]);
    }
}

fn runs_jobs(host: &Host) {
    host.sh("p", "mkdir -p /src/cache; echo built >/src/cache/stamp");
    let jobs = r#"
        [unit]
        run = "cat cache/stamp; mkdir out; echo $A >out/report"
        artefacts = "out"
        env = { A = "b c" }
        [spoils]
        run = "rm -r cache; exit 3"
        [slow]
        run = "echo begun; sleep 1000"
        timeout = 1
        [after]
        run = "cat cache/stamp"
    "#;
    let out = tempfile::tempdir().expect("a folder");
    // A failed job is a failure.
    let mut ci = Command::new("sh");
    ci.args(["-c", "\"$@\" || echo code $?", "sh"])
        .arg(Path::new(EXAMPLES).join("ci.py"))
        .args(["p", "-", "--out"])
        .arg(out.path());
    let told = host.program(&mut ci, jobs);
    // But for how long each took. On a busy host a second is over before the slow one has begun.
    let told: Vec<_> = told
        .lines()
        .map(|line| line.split(" after ").next().expect("a part"))
        .filter(|line| *line != "begun")
        .collect();
    let wanted = [
        "--- unit",
        "built",
        "--- unit: exit 0",
        "--- spoils",
        "",
        "--- spoils: exit 3",
        "--- slow",
        "the command took longer than 1 s and was killed",
        "--- slow: exit 124",
        "--- after",
        "built",
        "--- after: exit 0",
        "code 1",
    ];
    assert_eq!(told, wanted);
    let report = fs::read_to_string(out.path().join("unit/report"));
    assert_eq!(report.expect("an artefact"), "b c\n");
}

fn fuzzes(host: &Host) {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("target");
    let gcc = Command::new("gcc")
        .args(["-O1", "-static", "-fsanitize-coverage=trace-pc", "-o"])
        .arg(&target)
        .args(["fuzz.c", "edges.c"].map(|source| Path::new(EXAMPLES).join(source)))
        .output()
        .expect("gcc");
    assert!(gcc.status.success(), "{gcc:?}");
    host.put("p", "/bin/target", fs::read(target).expect("compiled"));
    host.ok(["exec", "-d", "p", "--", "/bin/target"]);
    host.wait_in("p", "grep -q ':1B58 ' /proc/net/tcp");
    let seeds = "HELO a\nAUTH a\nNAME a\n";
    let words = ["p", "--batch", "3", "--seed", "859"];
    let told = host.example("fuzz.py", words, seeds);
    // No single message ends the target: it takes one each, at least, to the state where one does.
    let path: Vec<_> = told.lines().collect();
    assert!(path.len() >= 3, "{told}");
    assert!(path[0].starts_with("HELO "), "{told}");
    let last = path.last().expect("a line");
    assert!(last.starts_with("NAME ") && last.len() > 20, "{told}");
}

/// AFL++ sees a run's coverage and its end, and each run begins in the state that the target was left in.
fn is_a_target_of_afl(host: &Host) {
    if Command::new("afl-showmap").output().is_err() {
        println!("\nskipped: examples/afl.py, which takes Debian's afl++");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("cases")).expect("a folder");
    let crash = format!("HELO a\nAUTH a\nNAME {}\n", "a".repeat(99));
    let cases = ["HELO a\nAUTH a\n", "HELO a\nAUTH a\n", "AUTH a\n", &crash];
    for (name, case) in ["1", "2", "3", "4"].into_iter().zip(cases) {
        fs::write(path("cases").join(name), case).expect("written");
    }
    // A crash is a code of its own.
    let mut afl = Command::new("sh");
    afl.env("AFL_SKIP_BIN_CHECK", "1")
        .args(["-c", "afl-showmap \"$@\" || echo code $?", "sh", "-i"])
        .arg(path("cases"))
        .arg("-o")
        .arg(path("maps"))
        .args(["-t", "60000", "-m", "none", "--"])
        .arg(Path::new(EXAMPLES).join("afl.py"))
        .args(["p", "--batch", "4"]);
    let told = host.program(&mut afl, "");
    let map = |name: &str| fs::read_to_string(path("maps").join(name)).expect("a map");
    assert!(!map("1").is_empty(), "{told}");
    assert_eq!(map("1"), map("2"), "the same input in the same state");
    assert_ne!(map("1"), map("3"), "another path");
    assert!(told.contains("killed by signal 11"), "{told}");
    assert!(told.ends_with("code 2"), "{told}");
    // Its fork server removes the clones after AFL++ has ended.
    eventually("the end of its clones", || host.vms().len() == 1);
}
