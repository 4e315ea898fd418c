//! Guests that are told to be friendly: they adapt, their clones do, and
//! afterwards everything there is as it was.

use forkyard_e2e::{Host, eventually, in_the_end};
use forkyard_types::PoliceState;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Programs that would run always.
const BUSY: u64 = 4;
/// Whenever one of them waits for a CPU, that is called congestion: they do,
/// however fast or busy the host is.
const CONGESTED: [&str; 11] = [
    "monitor.signals=[\"cpu-pressure\"]",
    "monitor.pressure-threshold=0.000001",
    "monitor.period-s=0.5",
    "monitor.window-s=5",
    // One at a time, and slower, however little that helps.
    "threads.below=\"always\"",
    // At the slowest, the last of them runs half of the time.
    "rate={floor-hz=2, ceiling-hz=2}",
    "threads.patience=1",
    "threads.turn=2",
    "threads.look-ms=100",
    // What this test has run there needs processes, too.
    "threads.new=\"wait\"",
    "threads.exempt=[\"sh\", \"cut\", \"pidof\", \"wc\", \"find\"]",
];
/// Nothing is ever called congestion.
const CALM: [&str; 2] = ["monitor.signals=[\"vct\"]", "monitor.threshold=1000000"];
const GROUPS: &str = "/opt/forkyard/cgroup/user";
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-friendly";

fn show(host: &Host, vm: &str) -> Value {
    host.json(["friendly", "show", vm])
}

fn set(host: &Host, vm: &str, constants: &[&str]) -> Value {
    host.json([&["friendly", "set", vm], constants].concat())
}

fn standing_still(host: &Host, vm: &str) -> u64 {
    show(host, vm)["standing_still"].as_u64().expect("friendly")
}

/// Returns the CPU time of each of the busy ones.
fn had(host: &Host, vm: &str) -> Vec<u64> {
    let script = "for p in $(pidof yes); do cut -d' ' -f14,15 /proc/$p/stat; done";
    let told = host.sh(vm, script);
    let sum = |line: &str| {
        line.split(' ')
            .map(|n| n.parse::<u64>().expect("ticks"))
            .sum()
    };
    told.lines().map(sum).collect()
}

fn all_get_on(host: &Host, vm: &str) {
    let before = had(host, vm);
    assert_eq!(before.len() as u64, BUSY);
    in_the_end("all of them to get on", || {
        let now = had(host, vm);
        now.iter().zip(&before).all(|(now, before)| now > before)
    });
}

fn held(host: &Host, vm: &str) -> u64 {
    let script = format!("wc -l <{GROUPS}/exec/forkyard-friendly/cgroup.threads");
    host.sh(vm, &script).trim().parse().expect("a number")
}

/// Reads a file of the group of commands.
fn said(host: &Host, vm: &str, file: &str) -> String {
    let said = host.sh(vm, &format!("cat {GROUPS}/exec/{file}"));
    said.trim().to_owned()
}

#[test]
fn overloaded_guests_yield_and_so_do_their_clones_until_they_are_told_not_to() {
    let host = Host::with_p(["--vcpus", "1"]);
    assert_eq!(show(&host, "p")["friendly"], false);
    let off: Value = host.json(["friendly", "set", "p", "--off"]);
    assert_eq!(off["friendly"], false, "it was not: no failure");
    let busy = format!("for i in $(seq {BUSY}); do yes </dev/null >/dev/null 2>&1 & done");
    host.sh("p", &busy);
    // A neighbour that is not told to yield: now and then, which is congestion enough, and
    // leaves the CPU to what this test runs there.
    let neighbour = format!(
        "echo $$ >{GROUPS}/image/cgroup.procs; \
         while :; do dd if=/dev/zero of=/dev/null bs=1M count=100; sleep 1; done </dev/null >/dev/null 2>&1 &"
    );
    host.sh("p", &neighbour);
    let refused = host.fails(["friendly", "set", "p", "monitor.threshold=0"]);
    assert!(refused.contains("monitor.threshold"), "{refused}");
    assert_eq!(show(&host, "p")["friendly"], false);

    let state = set(&host, "p", &CONGESTED);
    assert_eq!(state["friendly"], true, "{state}");
    assert_eq!(state["means"], "cgroup v2 freezer");
    in_the_end("one of them to run at a time", || {
        standing_still(&host, "p") >= BUSY - 1 && held(&host, "p") >= BUSY - 1
    });
    // A thread that is still to come to a stop has next to no CPU time.
    assert_eq!(said(&host, "p", "forkyard-friendly/cpu.weight"), "1");
    all_get_on(&host, "p");
    // Once more changes nothing, and ends nothing.
    let again = set(&host, "p", &CONGESTED);
    assert_eq!(again["agent"], state["agent"]);
    let text = host.ok(["friendly", "show", "p"]);
    assert!(text.contains("p is friendly"), "{text}");
    let script =
        "import forkyard_host as f; print(f.Forkyard().vm('p').make_friendly()['friendly'])";
    assert_eq!(host.python(script).trim(), "True");

    host.fork("p", 1);
    let clone = show(&host, "p-1");
    assert_eq!(clone["friendly"], true, "{clone}");
    in_the_end("its clone to yield as it does", || {
        standing_still(&host, "p-1") >= BUSY - 1
    });
    all_get_on(&host, "p-1");
    // Each by constants of its own: without congestion all come to run.
    set(&host, "p-1", &[&CALM[..], &["--law", "aimd"]].concat());
    in_the_end("all of the clone's to run", || {
        let state = show(&host, "p-1");
        state["congested"] == false && state["standing_still"] == 0
    });
    in_the_end("its parent to go on yielding", || {
        standing_still(&host, "p") >= BUSY - 1
    });
    // It is the parent's turn: the CPUs are for that.
    host.ok(["pause", "p-1"]);

    let off: Value = host.json(["friendly", "set", "p", "--off"]);
    assert_eq!(off["friendly"], false);
    let left = host.sh("p", &format!("find {GROUPS} -name '*friendly*'"));
    assert_eq!(left, "", "everything is as it was");
    assert_eq!(said(&host, "p", "cgroup.subtree_control"), "");
    all_get_on(&host, "p");
    // What another program has set stays.
    let other = format!("{GROUPS}/exec/other");
    // From the group itself: the kernel lets none of threads be beside one of processes.
    let script = format!(
        "echo $$ >{GROUPS}/exec/cgroup.procs; mkdir {other}; echo threaded >{other}/cgroup.type; echo +cpu >{GROUPS}/exec/cgroup.subtree_control"
    );
    host.sh("p", &script);
    set(&host, "p", &CONGESTED);
    assert_eq!(said(&host, "p", "forkyard-friendly/cpu.weight"), "1");
    let off: Value = host.json(["friendly", "set", "p", "--off"]);
    assert_eq!(off["friendly"], false);
    assert_eq!(said(&host, "p", "cgroup.subtree_control"), "cpu");
    // What goes wrong there is not taken for nothing being there.
    let script = "echo '#!/bin/sh'; echo 'echo out of order >&2; exit 1'";
    host.sh(
        "p",
        &format!("rm {PROGRAM}; ({script}) >{PROGRAM}; chmod +x {PROGRAM}"),
    );
    let failed = host.fails(["friendly", "show", "p"]);
    assert!(failed.contains("p cannot: out of order"), "{failed}");
    let flood = "echo '#!/bin/sh'; echo 'exec yes'";
    host.sh("p", &format!("({flood}) >{PROGRAM}"));
    let failed = host.fails(["friendly", "show", "p"]);
    assert!(failed.contains("more than"), "{failed}");
    host.ok(["rm", "p"]);
    host.ok(["resume", "p-1"]);
    assert_eq!(show(&host, "p-1")["friendly"], true);

    // One that is killed has its guard let all go.
    set(
        &host,
        "p-1",
        &[&CONGESTED[..], &["--law", "quick"]].concat(),
    );
    in_the_end("the clone to yield again", || {
        standing_still(&host, "p-1") >= BUSY - 1
    });
    let killed = show(&host, "p-1");
    assert_eq!(killed["config"]["threads"]["law"]["kind"], "quick");
    host.sh("p-1", &format!("kill -9 {}", killed["agent"]));
    // What is listed may be gone when it is looked into.
    let left = format!("[ -z \"$(find {GROUPS}/exec -name '*friendly*')\" ]");
    host.wait_in("p-1", &left);
    assert_eq!(said(&host, "p-1", "cgroup.subtree_control"), "");
    assert_eq!(show(&host, "p-1")["friendly"], false);
    all_get_on(&host, "p-1");
    let off: Value = host.json(["friendly", "set", "p-1", "--off"]);
    assert_eq!(off["friendly"], false);
    let left = host.sh("p-1", &format!("find {GROUPS} -name '*friendly*'"));
    assert_eq!(left, "", "nor is its own group left");
    let anew = set(&host, "p-1", &[]);
    assert_eq!(anew["friendly"], true);
    assert_eq!(
        anew["config"]["threads"]["law"]["kind"], "quick",
        "it was told so"
    );
    // The group it adapts changes if that is said, and not else.
    let image = set(&host, "p-1", &["--group", "image"]);
    assert_eq!(image["group"], format!("{GROUPS}/image"));
    let changed = set(&host, "p-1", &["monitor.threshold=3"]);
    assert_eq!(
        (&changed["group"], &changed["agent"]),
        (&image["group"], &image["agent"])
    );
    host.end();
}

/// Lists the VMs that the dispatcher caps; empty if there is none.
fn capped(host: &Host) -> Vec<String> {
    let shown = host.start(["sched", "show", "-o", "json"], "").wait();
    let Ok(shown) = serde_json::from_slice::<Value>(&shown.stdout) else {
        return Vec::new();
    };
    let vms = shown["vms"].as_array().expect("VMs");
    let capped = vms.iter().filter(|vm| vm["cap"].is_u64());
    capped
        .map(|vm| vm["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// CPU time that a QEMU has had.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(") ").expect("a stat");
    let fields = rest.split(' ').skip(11).take(2);
    let ticks: u64 = fields.map(|n| n.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(10 * ticks)
}

/// CPUs that a QEMU has, from now on.
fn uses(pid: u32) -> f64 {
    // Enough that turns come out even.
    const SPAN: Duration = Duration::from_secs(5);
    let (before, began) = (cpu_time(pid), Instant::now());
    thread::sleep(SPAN);
    let used = cpu_time(pid) - before;
    used.as_secs_f64() / began.elapsed().as_secs_f64()
}

/// Per cent of a CPU that the dispatcher leaves a VM.
fn cap(host: &Host, vm: &str) -> f64 {
    let shown: Value = host.json(["sched", "show"]);
    let vms = shown["vms"].as_array().expect("VMs");
    let found = vms.iter().find(|one| one["name"] == vm).expect("capped");
    found["cap"].as_f64().expect("a cap")
}

#[test]
fn who_does_not_yield_is_named_and_capped_until_the_police_ends() {
    const VCPUS: usize = 4;
    let host = Host::with_p(["--vcpus", "4"]);
    host.fork("p", 1);
    // However many CPUs there are, the two share one: a thread of the greedy one's for
    // each of its CPUs, and one of its clone's.
    let vms = host.vms();
    for pid in vms.iter().filter_map(|vm| vm.pid) {
        let pinned = Command::new("taskset")
            .args(["-a", "-c", "-p", &first_cpu(), &pid.to_string()])
            .output()
            .expect("taskset");
        assert!(pinned.status.success(), "{pinned:?}");
    }
    let greedy = host.vm("p").pid.expect("it runs");
    favour(greedy);
    let busy = |threads: usize| {
        format!("for i in $(seq {threads}); do yes </dev/null >/dev/null 2>&1 & done")
    };
    host.sh("p", &busy(VCPUS));
    host.sh("p-1", &busy(1));
    let words = ["friendly", "police", "--enforce", "--interval", "0.5"];
    let police = host.start(words.iter().chain(&["-o", "json"]), "");
    in_the_end("the greedy one to be capped", || capped(&host) == ["p"]);
    let cap = cap(&host, "p") / 100.0;
    let mut since = f64::MAX;
    in_the_end("it to use no more than that", || {
        since = uses(greedy);
        since < 1.15 * cap
    });
    assert_eq!(host.sh("p", "hostname"), "p", "it answers");
    // Without the daemon the command waits for the next, and no VM is let go. The next knows what
    // it has capped.
    host.kill_9("forkyardd");
    in_the_end("it to miss an answer", || {
        police.complaints().contains("no answer")
    });
    assert_eq!(host.vms().len(), 2, "a daemon is back");
    assert_eq!(capped(&host), ["p"]);
    let known: PoliceState = host.json(["friendly", "police", "--show"]);
    let known = known.capped.iter().map(|cap| cap.guest.as_str());
    assert_eq!(known.collect::<Vec<_>>(), ["p"]);
    let all = host.processes("forkyard").into_iter();
    let mut found = all.filter(|process| process.command.contains("police"));
    found.next().expect("it goes on").hang_up();
    let told = police.wait().exited(0).text();
    let named: Value = serde_json::from_str(told.lines().next().expect("a line")).expect("JSON");
    assert_eq!(named["guest"], "p");
    assert!(named["capped_percent"].as_u64() >= Some(5), "{named}");
    let used = named["used"].as_f64().expect("CPUs");
    // What others leave it, on a busy machine, may be little more.
    assert!(
        used > cap.max(since),
        "it used more before: {named}, {since} since"
    );
    assert!(capped(&host).is_empty());
    eventually("the dispatcher to go by itself", || {
        host.processes("forkyard-dispatcher").is_empty()
    });
    host.end();
}

/// Favours a process. Where the kernel shares CPUs between sessions, not threads, one with many has no more
/// than another: unless it is favoured.
fn favour(pid: u32) {
    let path = format!("/proc/{pid}/autogroup");
    if Path::new(&path).exists() {
        fs::write(&path, "-10").expect("root may");
    }
}

/// A CPU that this process may run on.
fn first_cpu() -> String {
    let text = fs::read_to_string("/proc/self/status").expect("status");
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("a list").trim();
    list.split([',', '-']).next().expect("one").to_owned()
}
