//! Tests of data that a clone has of its parent and must not keep.

use forkyard_e2e::{Host, eventually};
use std::{collections::BTreeSet, time::Instant};

/// Milliseconds between two ticks of `heir timers`.
const TICK: i64 = 50;

/// Starts something in the background of a VM; it goes on in its clones.
fn leave(host: &Host, vm: &str, script: &str) {
    host.sh(vm, &format!("{script} >/m/said 2>&1 </dev/null &"));
}

/// Waits until a file in a VM has these lines, in any order.
#[track_caller]
fn wait_for(host: &Host, vm: &str, file: &str, lines: &[&str]) {
    let found = lines
        .iter()
        .map(|line| format!("grep -qxF '{line}' {file}"));
    let found: Vec<_> = found.collect();
    if !host.comes_true_in(vm, &found.join(" && ")) {
        let seen = host.sh(vm, &format!("cat {file} || true"));
        panic!("still waiting for {lines:?} in {file} of {vm}:\n{seen}");
    }
}

#[test]
fn a_clones_inherited_connections_end_at_once_and_the_parents_live_on() {
    let host = Host::with_woken_p([]);
    host.put_program("p", "heir", None);
    let peer = host.fork("p", 1).remove(0);
    let (name, ip) = (peer.name.as_str(), peer.address.ip);
    leave(&host, name, "heir serve /m/serves");
    wait_for(&host, name, "/m/serves", &["serve begun"]);
    let network = "192.0.2.0/24";
    host.sh("p", &format!("ip route add {network} via {ip}"));
    leave(&host, "p", &format!("heir sockets {ip} /m/sockets"));
    let connected = ["tcp", "tcp6", "udp", "loopback"].map(|what| format!("{what} connected"));
    wait_for(
        &host,
        "p",
        "/m/sockets",
        &connected.each_ref().map(String::as_str),
    );

    let clone = host.fork("p", 1).remove(0);
    let clone = clone.name.as_str();
    let ends = [
        "tcp aborted",
        "tcp6 aborted",
        "udp aborted",
        "loopback well",
    ];
    wait_for(&host, clone, "/m/sockets", &ends);
    let routes = host.sh(clone, "ip route");
    assert!(routes.contains(network), "{routes}");

    let still = host.sh("p", "cat /m/sockets; pidof heir | wc -w");
    assert!(
        !still.contains("aborted") && still.ends_with('5'),
        "the parent's connections are its own: {still}"
    );
    host.end();
}

#[test]
fn a_program_has_a_random_state_of_its_own_in_a_clone_and_no_timers_for_time_that_was_not() {
    let host = Host::with_woken_p([]);
    a_registered_generator_has_another_state_in_every_clone_before_user_code_goes_on(&host);
    timers_do_not_fire_for_the_time_between_the_parents_clock_and_the_clones(&host);
    host.end();
}

#[track_caller]
fn timers_do_not_fire_for_the_time_between_the_parents_clock_and_the_clones(host: &Host) {
    host.put_program("p", "heir", None);
    host.sh("p", "date -s '2001-01-01 00:00:00'");
    leave(host, "p", "heir timers /m/timers");
    wait_for(host, "p", "/m/timers", &["timers begun"]);
    let begun = Instant::now();
    let clone = host.fork("p", 1).remove(0);
    let name = clone.name.as_str();
    host.wait_in(name, "grep -q done /m/timers");
    let since = i64::try_from(begun.elapsed().as_millis()).expect("soon");
    let told = host.sh(name, "cat /m/timers");
    let numbers: Vec<i64> = told
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [alarms, most, ran, jump, step] = numbers[..] else {
        panic!("{told}");
    };
    // Milliseconds, of clocks that may run a little apart. A guest may be slow, but its time
    // is no longer than ours; what stood in its clock would be years.
    assert!((1000..since + 1000).contains(&ran), "{ran} of {since} ms");
    assert!((0..since + 1000).contains(&jump), "{jump} of {since} ms");
    assert!(
        (1..=ran / TICK + 2).contains(&alarms),
        "{alarms} alarms in {ran} ms"
    );
    assert!(most <= (jump + ran) / TICK + 2, "{most} ticks at once");
    assert!(step > 365 * 24 * 3_600_000, "the wall clock was not set");
}

#[test]
fn secrets_are_gone_before_user_code_goes_on_unless_clones_inherit_them() {
    let host = Host::with_woken_p(["--secret", "/etc/keys", "--secret", "/m/token"]);
    host.sh(
        "p",
        "mkdir -p /etc/keys/deep; echo TOP-SECRET-1 >/etc/keys/deep/key; \
         echo TOP-SECRET-2 >/m/token; echo plain >/m/plain; sync; \
         sleep 4321 </etc/keys/deep/key >/dev/null 2>&1 & echo $! >/m/holder",
    );
    host.put(
        "p",
        "/bin/peek",
        "#!/bin/sh\nread me </proc/sys/kernel/hostname\necho peeks >/m/peeks\nnow=$me\n\
         while [ $now = $me ]; do read now </proc/sys/kernel/hostname; done\n\
         cat /etc/keys/deep/key /m/token /m/plain >/m/seen 2>/dev/null\necho >>/m/seen over\n",
    );
    let seen = |clone: &str| {
        wait_for(&host, clone, "/m/seen", &["over"]);
        host.sh(clone, "cat /m/seen")
    };
    let fork = |words: &[&str]| {
        host.sh("p", "killall peek 2>/dev/null || true; rm -f /m/peeks");
        leave(&host, "p", "peek");
        // In a clone it would take the clone's name for that of its parent.
        wait_for(&host, "p", "/m/peeks", &["peeks"]);
        let words = [&["fork", "p"], words].concat();
        host.start(&words, "").wait().exited(0);
        let clones = host.vms().into_iter().filter(|vm| vm.parent.is_some());
        let newest = clones.max_by_key(|vm| vm.member).expect("a clone");
        newest.name.to_string()
    };

    let clone = fork(&[]);
    assert_eq!(seen(&clone), "plain\nover");
    // Not even to a program that has had the file open all the time.
    let held = host.sh(&clone, "tr -d '\\000' </proc/$(cat /m/holder)/fd/0");
    assert_eq!(held, "");
    host.ok(["rm", &clone]);
    let clone = fork(&["--inherit-secrets", "--scrub", "/m/plain"]);
    assert_eq!(seen(&clone), "TOP-SECRET-1\nTOP-SECRET-2\nover");
    // It has them, and the same is secret there.
    let grandchild = host.fork(&clone, 1).remove(0);
    host.fails(["exec", grandchild.name.as_str(), "--", "cat", "/m/token"]);
    host.kill_9("forkyardd");
    let clone = fork(&[]);
    assert_eq!(seen(&clone), "plain\nover", "the next daemon knows");
    assert_eq!(host.sh("p", "cat /m/token"), "TOP-SECRET-2");
    let refused = host.fails(["fork", "p", "--scrub", "keys/.."]);
    assert!(refused.contains("no path of a secret"), "{refused}");
    host.end();
}

#[track_caller]
fn a_registered_generator_has_another_state_in_every_clone_before_user_code_goes_on(host: &Host) {
    let dist = host.dist().to_owned();
    host.put_program("p", "caller", Some(&dist));
    leave(host, "p", "caller refill /m/state");
    wait_for(host, "p", "/m/state", &["registered"]);
    let clones = host.fork("p", 3);
    let states: BTreeSet<_> = clones
        .iter()
        .map(|clone| {
            let name = clone.name.as_str();
            host.wait_in(name, "state=$(tail -n 1 /m/state); [ ${#state} = 32 ]");
            host.sh(name, "tail -n 1 /m/state")
        })
        .collect();
    let as_it_was = "617320697420776173";
    assert_eq!(states.len(), 3, "{states:?}");
    assert!(!states.iter().any(|state| state.starts_with(as_it_was)));
}

#[test]
fn generators_of_python_and_openssl_differ_in_every_clone_of_a_program() {
    const PROGRAM: &str = "
import os, random, socket, ssl
me, pid = socket.gethostname(), os.getpid()
random.seed(1)
own = random.Random(1)
random.gauss(0, 1)      # keeps another
ssl.RAND_bytes(8)
open('/root/ready', 'w').close()
while socket.gethostname() == me:
    pass
drawn = [random.getrandbits(64), random.gauss(0, 1), ssl.RAND_bytes(16).hex(), own.random()]
with open('/root/new', 'w') as file:
    print(*drawn, pid == os.getpid(), file=file)
os.rename('/root/new', '/root/drawn')
";
    let host = Host::new();
    host.build_image("debian");
    host.ok(["run", "debian", "--name", "p", "--memory", "512"]);
    host.put("p", "/root/program.py", PROGRAM);
    host.sh(
        "p",
        "python3 /root/program.py >/root/said 2>&1 </dev/null &",
    );
    host.wait_in("p", "[ -e /root/ready ]");
    let drawn: Vec<Vec<String>> = host
        .fork("p", 3)
        .iter()
        .map(|clone| {
            let name = clone.name.as_str();
            host.wait_in(name, "[ -e /root/drawn ]");
            let drawn = host.sh(name, "cat /root/drawn");
            drawn.split_whitespace().map(str::to_owned).collect()
        })
        .collect();
    let different = |n: usize| drawn.iter().map(|d| &d[n]).collect::<BTreeSet<_>>().len();
    let [module, gauss, openssl, own] = [0, 1, 2, 3].map(different);
    assert_eq!([module, gauss, openssl], [3; 3], "{drawn:?}");
    // As after os.fork(): what a program seeds itself is its own to seed. And
    // so it is known that nothing else tells these programs apart.
    assert_eq!(own, 1, "{drawn:?}");
    assert!(
        drawn.iter().all(|d| d[4] == "True"),
        "its process id is its own"
    );
    host.end();
}

#[test]
fn an_agent_that_dies_as_its_clone_wakes_does_not_let_user_code_be_its_parent() {
    let host = Host::with_woken_p([]);
    host.put_agent_worker("p");
    host.put_program("p", "witness", None);
    leave(&host, "p", "witness name /m/names");
    // Ends the worker in the parent, too, which is held no longer for it.
    host.put_program("p", "heir", None);
    leave(&host, "p", "heir kill $(agent-worker) /m/killer");
    wait_for(&host, "p", "/m/killer", &["killer ready"]);
    let clones = host.fork("p", 2);
    let counts: BTreeSet<_> = clones
        .iter()
        .map(|clone| {
            let name = clone.name.as_str();
            // Its identity then: none but its parent's, if the machine is
            // quick enough.
            let mut noted = String::new();
            eventually("the agent's end", || {
                noted = host.sh(name, "cat /m/killer");
                noted.contains("killed")
            });
            eprintln!("{name}: {noted}");
            host.wait_in(name, &format!("[ $(tail -n 1 /m/names) = {name} ]"));
            let runs = host.sh(name, "uniq -c /m/names");
            let runs: Vec<_> = runs.split_whitespace().collect();
            let [before, "p", _, own] = runs[..] else {
                panic!("{name} noted {runs:?}");
            };
            assert_eq!(own, name);
            before.to_owned()
        })
        .collect();
    assert_eq!(counts.len(), 1, "noted as the parent's: {counts:?}");
    assert_eq!(host.sh("p", "hostname"), "p", "the parent goes on");
    host.end();
}
