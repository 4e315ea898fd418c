//! Tests of when and how a clone gets its own identity.

use forkyard_e2e::{Host, eventually};
use forkyard_types::VmInspect;
use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Starts `witness` in the background of a VM; it goes on in its clones.
fn witness(host: &Host, vm: &str, words: &str) {
    host.sh(vm, &format!("witness {words} >/m/said 2>&1 </dev/null &"));
}

fn lines(host: &Host, vm: &str, file: &str) -> Vec<String> {
    let text = host.sh(vm, &format!("cat {file}"));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn two_clones_share_no_address_mac_host_name_machine_id_or_random_number() {
    let host = Host::with_woken_p([]);
    host.put_program("p", "witness", None);
    witness(&host, "p", "draw /m/draws");
    host.wait_in("p", "[ $(wc -l </m/draws) -gt 20 ]");
    host.fork("p", 3);

    let family = host.vms();
    assert_eq!(family.len(), 4);
    let names: Vec<_> = family.iter().map(|vm| vm.name.to_string()).collect();
    // Drawn by the kernel for programs that ask after the fork: nothing may repeat.
    let mut seen = BTreeSet::new();
    for vm in &family {
        let name = vm.name.as_str();
        let told = host.sh(
            name,
            "ip -o -4 addr show dev eth0 | awk '{print $4}'; cat /sys/class/net/eth0/address; \
             hostname; cat /etc/machine-id; head -c 16 /dev/urandom | xxd -p; \
             cat /proc/sys/kernel/random/uuid",
        );
        let told: Vec<_> = told.lines().collect();
        let address = format!("{}/{}", vm.address.ip, vm.address.prefix);
        let mac = vm.address.mac.to_string();
        assert_eq!(told[..3], [address.as_str(), mac.as_str(), name]);
        assert_eq!(told.len(), 6, "{told:?}");
        for word in told {
            assert!(seen.insert(word.to_owned()), "{name} shares {word}");
        }
    }

    // A program that was drawing all the time goes on drawing: other numbers.
    let had = lines(&host, "p", "/m/draws").len();
    for name in &names {
        host.sh(name, "pidof witness >/dev/null");
        host.wait_in(name, &format!("[ $(wc -l </m/draws) -gt {} ]", had + 20));
    }
    let draws: Vec<Vec<String>> = names
        .iter()
        .map(|name| lines(&host, name, "/m/draws"))
        .collect();
    let before = (0..)
        .take_while(|n| {
            draws
                .iter()
                .all(|d| d.get(*n).is_some() && d[*n] == draws[0][*n])
        })
        .count();
    assert!(
        before >= 20,
        "what was drawn before the fork is the same: {before}"
    );
    let mut after = BTreeSet::new();
    for (name, draws) in names.iter().zip(&draws) {
        assert!(draws.len() > before, "{name} drew nothing since");
        // The last line may have been read while it was being written.
        for number in &draws[before..draws.len() - 1] {
            assert!(after.insert(number), "{name} drew {number} again");
        }
    }
    host.end();
}

#[test]
fn clones_have_hooks_and_a_clock_of_their_own_and_a_root_that_is_read_only() {
    let host = Host::with_woken_p([]);
    a_hook_runs_outside_of_what_is_held_still_and_what_it_leaves_is_held_with_the_rest(&host);
    a_clones_clock_is_right_within_a_second_even_if_its_parents_is_not(&host);
    clones_of_a_vm_with_a_read_only_root_come_up_and_tell_what_stayed_as_it_was(&host);
    host.end();
}

#[track_caller]
fn a_clones_clock_is_right_within_a_second_even_if_its_parents_is_not(host: &Host) {
    host.put_program("p", "witness", None);
    host.sh("p", "date -s '2001-01-01 00:00:00'");
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
    };
    let clock = |vm: &str| {
        let before = now();
        let told = host.ok(["exec", vm, "--", "witness", "clock"]);
        let told = Duration::from_nanos(told.parse().expect("a number"));
        (before, told, now())
    };
    let off = Duration::from_secs(1);
    let clone = &host.fork("p", 1)[0];
    let (before, told, after) = clock(clone.name.as_str());
    assert!(
        before - off < told && told < after + off,
        "{told:?} is not between {before:?} and {after:?}"
    );
    let (before, told, _) = clock("p");
    assert!(
        told + off < before,
        "the parent's clock is its owner's: {told:?}"
    );
}

#[track_caller]
fn clones_of_a_vm_with_a_read_only_root_come_up_and_tell_what_stayed_as_it_was(host: &Host) {
    host.sh("p", "mount -o remount,ro /");
    let clone = &host.fork("p", 1)[0];
    let name = clone.name.as_str();
    assert_eq!(host.sh(name, "hostname"), name);
    let seen: VmInspect = host.json(["inspect", name]);
    let told = |file: &str| seen.notes.iter().any(|note| note.starts_with(file));
    for file in ["/etc/hostname", "/etc/machine-id", "/etc/hosts"] {
        assert!(told(file), "{file}: {:?}", seen.notes);
    }
}

#[test]
fn user_code_does_not_go_on_before_its_identity() {
    let host = Host::with_woken_p([]);
    host.put_program("p", "witness", None);
    witness(&host, "p", "name /m/one");
    witness(&host, "p", "name /m/two");
    host.wait_in("p", "[ $(wc -l </m/two) -gt 100 ]");
    let clones = host.fork("p", 3);

    for log in ["/m/one", "/m/two"] {
        let counts: Vec<_> = clones
            .iter()
            .map(|clone| {
                let name = clone.name.as_str();
                host.wait_in(name, &format!("[ $(tail -n 1 {log}) = {name} ]"));
                let runs = host.sh(name, &format!("uniq -c {log}"));
                let runs: Vec<_> = runs.split_whitespace().collect();
                // Its parent's name, then its own, and no third change.
                let [before, "p", _, own] = runs[..] else {
                    panic!("{name} noted {runs:?}");
                };
                assert_eq!(own, name);
                before.to_owned()
            })
            .collect();
        // Had user code run before it had its own identity, it would have noted
        // its parent's name for as long as that took, in each clone another time.
        assert!(
            counts.iter().all(|count| *count == counts[0]),
            "{log}: {counts:?}"
        );
    }
    host.end();
}

#[test]
fn hooks_know_the_clone_and_run_before_user_code_goes_on() {
    let host = Host::with_woken_p([]);
    host.put(
        "p",
        "/etc/forkyard-hook",
        "#!/bin/sh\nsleep 1\necho $FORKYARD_NAME $FORKYARD_ID $FORKYARD_MEMBER $FORKYARD_IP $FORKYARD_PARENT_IP $(hostname) >/m/hook\n",
    );
    host.sh(
        "p",
        "mkdir -p /etc/forkyard/clone.d && mv /etc/forkyard-hook /etc/forkyard/clone.d/10-tell",
    );
    host.put(
        "p",
        "/etc/forkyard/clone.d/20-fails",
        "#!/bin/sh\necho twenty >>/m/hook\nexit 1\n",
    );
    host.put(
        "p",
        "/bin/watch-name",
        "#!/bin/sh\nread me </proc/sys/kernel/hostname\nnow=$me\necho >/etc/watches\nwhile [ $now = $me ]; do read now </proc/sys/kernel/hostname; done\ncat /m/hook >/m/half\nmv /m/half /m/seen\n",
    );
    host.sh("p", "watch-name >/dev/null 2>&1 </dev/null &");
    host.wait_in("p", "[ -e /etc/watches ]");
    let parent = host.vm("p");
    for clone in host.fork("p", 2) {
        let name = clone.name.as_str();
        host.wait_in(name, "[ -e /m/seen ]");
        let member = clone.member.0;
        let want = format!(
            "{name} {member} {member} {} {} {name}\ntwenty",
            clone.address.ip, parent.address.ip
        );
        assert_eq!(host.sh(name, "cat /m/seen"), want);
    }
    assert_eq!(host.sh("p", "ls /m"), "", "no hook ran in the parent");
    host.end();
}

#[track_caller]
fn a_hook_runs_outside_of_what_is_held_still_and_what_it_leaves_is_held_with_the_rest(host: &Host) {
    host.sh("p", "mkdir -p /etc/forkyard/clone.d");
    host.put(
        "p",
        "/etc/forkyard/clone.d/10-where",
        "#!/bin/sh\ncat /proc/self/cgroup >/m/where\nsleep 1234 </dev/null >/dev/null 2>&1 &\necho $! >/m/left\n",
    );
    let clone = host.fork("p", 1).remove(0);
    let name = clone.name.as_str();
    assert_eq!(host.sh(name, "cat /m/where"), "0::/hooks");
    let left = host.sh(name, "cat /proc/$(cat /m/left)/cgroup");
    assert_eq!(left, "0::/user/exec");
}

#[test]
fn clones_reach_each_other_and_no_other_family() {
    let host = Host::with_woken_p([]);
    host.ok(["run", "tiny", "--name", "q"]);
    let clones = host.fork("p", 2);
    let reaches = |from: &str, to: &str| {
        let script = format!(
            "for n in 1 2 3; do ping -c 1 -W 1 {to} >/dev/null && echo yes && break; done || echo no"
        );
        host.sh(from, &script) == "yes"
    };
    let ip = |vm: &str| host.vm(vm).address.ip.to_string();
    let (p, q) = (ip("p"), ip("q"));
    let [one, two] = [0, 1].map(|n| clones[n].address.ip.to_string());
    // Guests that share their processors may take more than a second to answer.
    eventually("a clone to reach its sibling", || reaches("p-1", &two));
    eventually("a clone to reach its parent", || reaches("p-2", &p));
    eventually("the parent to reach its clone", || reaches("p", &one));
    host.sh("p-2", "echo hello | nc -l -p 7000 >/dev/null 2>&1 &");
    let listens = "grep -qs ':1B58 .* 0A ' /proc/net/tcp /proc/net/tcp6";
    host.wait_in("p-2", listens);
    assert_eq!(
        host.sh("p-1", &format!("nc -w 30 {two} 7000 </dev/null")),
        "hello"
    );

    assert!(!reaches("p-1", &q), "a clone reaches another family");
    assert!(!reaches("q", &one), "another family reaches a clone");
    // Nor by claiming to be one of them.
    host.sh(
        "p-1",
        &format!("ip addr add {q}9/8 dev eth0 2>/dev/null; ip addr add 10.255.255.254/8 dev eth0"),
    );
    assert!(
        !reaches("p-1", &q),
        "a forged address reaches another family"
    );
    host.end();
}
