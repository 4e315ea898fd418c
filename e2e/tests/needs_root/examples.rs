//! The examples do what they say.

use forkyard_e2e::Host;

#[test]
fn the_four_patterns_of_use_work_as_their_examples_say() {
    let host = Host::with_woken_p(["--max-clones", "4"]);
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
    assert_eq!(host.vms().len(), 1, "every clone has gone");
    host.end();
}
