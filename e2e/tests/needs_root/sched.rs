//! vCPUs of real VMs, scheduled from user space; and of imagined ones.

use forkyard_e2e::{Host, eventually};
use serde_json::Value;
use std::{fs, path::Path};

const DISPATCHER: &str = "forkyard-dispatcher";

fn vm<'a>(shown: &'a Value, name: &str) -> &'a Value {
    let vms = shown["vms"].as_array().expect("VMs");
    let found = vms.iter().find(|shown| shown["name"] == name);
    found.expect("the VM")
}

fn vcpus<'a>(shown: &'a Value, name: &str) -> &'a Vec<Value> {
    vm(shown, name)["vcpus"].as_array().expect("vCPUs")
}

/// Tells whether a vCPU is in a group that could stop it.
fn is_grouped(vcpu: &Value) -> bool {
    let path = format!("/proc/{}/cgroup", vcpu["tid"]);
    let groups = fs::read_to_string(path).expect("alive");
    groups.contains("forkyard-sched-")
}

#[test]
fn vms_are_scheduled_by_sbco_and_outlive_their_dispatcher() {
    let host = Host::with_p(["--vcpus", "2"]);
    host.fork("p", 1);
    let names = ["p", "p-1"];
    for vm in names {
        let busy = "for i in 1 2; do (while :; do :; done) </dev/null >/dev/null 2>&1 & done";
        host.sh(vm, busy);
        let words = ["sched", "set", vm, "--policy", "sbco", "--parallel"];
        let shown: Value = host.json(words);
        assert_eq!(shown["policy"], "sbco");
        assert_eq!(vcpus(&shown, vm).len(), 2);
    }
    eventually("every vCPU to have had turns, and waited for some", || {
        let shown: Value = host.json(["sched", "show"]);
        let all = || names.iter().flat_map(|vm| vcpus(&shown, vm));
        let had = |what: &str| all().all(|vcpu| vcpu[what].as_u64() > Some(0));
        had("given_ns") && had("waited_ns")
    });
    let shown: Value = host.json(["sched", "show"]);
    let cpus = shown["cpus"].as_array().expect("CPUs").len();
    for vm in names {
        let vcpus = vcpus(&shown, vm);
        assert!(vcpus.iter().all(is_grouped), "{shown}");
        let stacked = vcpus.iter().any(|vcpu| vcpu["stacked"] == true);
        assert!(cpus < 2 || !stacked, "siblings are kept apart: {shown}");
    }
    // Guests answer while their vCPUs take turns.
    assert_eq!(host.sh("p-1", "hostname"), "p-1");
    // A VM is a QEMU as any other.
    let pid = vm(&shown, "p")["pid"].to_string();
    let words = ["sched", "set", "--pid", &pid, "--weight", "512"];
    let weighed: Value = host.json(words);
    assert_eq!(vm(&weighed, "p")["weight"], 512);
    let script = "import forkyard_host as f; v = f.Forkyard().vm('p'); v.schedule(weight=300); print(v.scheduling())";
    assert!(host.python(script).contains("'weight': 300"));
    assert!(host.ok(["sched", "top"]).contains("p/1"));
    let metrics = host.ok(["sched", "metrics"]);
    assert!(metrics.contains("{vm=\"p-1\",vcpu=\"1\"}"), "{metrics}");
    let refused = host.fails(["sched", "set", "p", "--cap", "50"]);
    assert!(refused.contains("credit"), "{refused}");

    host.kill_9(DISPATCHER);
    eventually("nobody to be left of it", || {
        host.processes(DISPATCHER).is_empty()
    });
    for vm in names {
        assert!(!vcpus(&shown, vm).iter().any(is_grouped));
        assert_eq!(host.sh(vm, "hostname"), vm);
    }
    let told = host.fails(["sched", "show"]);
    assert!(told.contains("sched set"), "{told}");

    host.ok(["sched", "set", "p", "--policy", "procco", "--parallel"]);
    // Its dispatcher is there for some seconds yet.
    host.ok(["sched", "release", "p"]);
    let told = host.fails(["sched", "show"]);
    assert!(told.contains("no VM is scheduled"), "{told}");
    // A VM that is removed while it is scheduled leaves nothing.
    host.ok(["sched", "set", "p", "--policy", "procco", "--parallel"]);
    host.ok(["rm", "p-1", "p"]);
    eventually("the dispatcher to go by itself", || {
        host.processes(DISPATCHER).is_empty()
    });
    host.end();
}

#[test]
fn policies_are_simulated_without_a_daemon() {
    let host = Host::new();
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/sched");
    let scenario = scenarios.join("table-4.2.toml");
    let scenario = scenario.to_str().expect("text");
    let plots = tempfile::tempdir().expect("a folder");
    let folder = plots.path().to_str().expect("text");
    let words = ["sched", "simulate", scenario, "--seeds", "1"];
    let told: Value = host.json([&words[..], &["--plots", folder]].concat());
    assert!(told["rows"].as_array().expect("rows").len() > 3, "{told}");
    let drawn = fs::read_dir(plots.path()).expect("plots").count();
    assert_eq!(drawn, told["plots"].as_array().expect("plots").len());
    let table = host.ok(words);
    assert!(table.contains("| stacked %"), "{table}");
    let none = host.fails(["sched", "simulate", "/nowhere.toml"]);
    assert!(none.contains("/nowhere.toml"), "{none}");
    // Nor do commands for nodes start one, which would be no node.
    let none = host.start(["node", "invite"], "").wait().exited(4);
    assert!(none.stderr.contains("no daemon runs"), "{}", none.stderr);
    assert!(host.processes("forkyardd").is_empty());
    host.nothing_left();
}
