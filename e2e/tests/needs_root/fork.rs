//! Tests of what is in a clone, and what is not.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{CloneResult, ForkResponse, VmInspect};

/// Reads what is on disk, not what is remembered of it.
const FORGET: &str = "sync; echo 3 >/proc/sys/vm/drop_caches";

#[test]
fn memory_and_disk_are_of_one_instant() {
    let host = Host::with_woken_p([]);
    host.put_program("p", "witness", None);
    host.sh(
        "p",
        "dd if=/dev/zero of=/d/pairs bs=4096 count=4096 2>/dev/null; sync",
    );
    for _ in 0..2 {
        host.sh(
            "p",
            "witness pair /m/pairs /d/pairs >/dev/null 2>/m/said </dev/null &",
        );
        host.wait_in("p", "[ $(stat -c %s /m/pairs) -gt $((32 * 21)) ]");
        let clones = host.fork("p", 3);
        for clone in clones {
            let name = clone.name.as_str();
            // It ends as it notices that its name is another.
            host.wait_in(name, "! pidof witness");
            assert_eq!(host.sh(name, "cat /m/said"), "");
            let pairs = host.ok([
                "exec", name, "--", "witness", "compare", "/m/pairs", "/d/pairs",
            ]);
            let pairs: u64 = pairs.parse().expect("a number");
            assert!(pairs >= 20, "{name}: {pairs}");
            host.ok(["rm", name]);
            // The first was read while its parent went on writing.
            host.sh("p", "killall witness || true");
        }
        // Again, over a disk that has been frozen once.
        host.wait_in("p", "! pidof witness");
        host.sh("p", "rm /m/pairs");
        host.sh(
            "p",
            "dd if=/dev/zero of=/d/pairs bs=4096 count=$(($(stat -c %s /d/pairs) / 4096)) \
             conv=notrunc 2>/dev/null; sync",
        );
    }
    host.end();
}

#[test]
fn no_page_of_fork_a_is_in_fork_b() {
    let host = Host::with_woken_p([]);
    let fill = |what: &str| {
        host.sh(
            "p",
            &format!(
                "yes {what} | head -c 96k >/m/piece; all=; i=0; \
                 while [ $i -lt 170 ]; do i=$((i + 1)); all=\"$all /m/piece\"; done; \
                 cat $all >/m/fill; dd if=/m/fill of=/d/fill bs=64k count=128 2>/dev/null; {FORGET}"
            ),
        );
        host.sums("p", "/m/fill /d/fill")
    };
    let told_a = fill("Aa");
    let of_a = host.fork("p", 2);
    let told_b = fill("Bbb");
    let of_b = host.fork("p", 2);
    assert_ne!(told_a, told_b);
    // Read only now: pages of A are fetched after B was taken.
    for (clones, told) in [(&of_a, &told_a), (&of_b, &told_b)] {
        for clone in clones {
            let name = clone.name.as_str();
            host.sh(name, FORGET);
            assert_eq!(host.sums(name, "/m/fill /d/fill"), *told, "{name}");
        }
    }
    host.end();
}

#[test]
fn the_parent_is_unchanged_by_its_clones_and_they_by_it() {
    let host = Host::with_woken_p([]);
    a_clone_reads_what_it_touches_and_little_around_it(&host);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/common bs=64k count=16 2>/dev/null; cp /m/common /d/common; sync",
    );
    let common = host.sums("p", "/m/common /d/common");
    let clones = host.fork("p", 2);
    let names: Vec<_> = clones
        .iter()
        .map(|c| c.name.as_str())
        .chain(["p"])
        .collect();
    for name in &names {
        let half = format!("yes {name} | head -c 512k");
        host.sh(name, &format!("{half} >/m/own; {half} >/d/own; {half} | dd of=/m/common conv=notrunc 2>/dev/null; {half} | dd of=/d/common conv=notrunc 2>/dev/null; touch /d/of-{name}; {FORGET}"));
    }
    for name in &names {
        let want = format!("yes {name} | head -c 512k | md5sum");
        let script = format!(
            "want=$({want}); for f in /m/own /d/own; do [ \"$(md5sum <$f)\" = \"$want\" ] || echo $f; done; \
             for f in /m/common /d/common; do [ \"$(head -c 512k $f | md5sum)\" = \"$want\" ] || echo $f; done; \
             ls -d /d/of-*"
        );
        assert_eq!(host.sh(name, &script), format!("/d/of-{name}"));
        let rest = host.sh(
            name,
            "tail -c 512k /m/common | md5sum; tail -c 512k /d/common | md5sum",
        );
        let rest: Vec<_> = rest.lines().collect();
        assert_eq!(
            rest[0], rest[1],
            "{name}: the half that nobody wrote is what it was"
        );
    }
    assert_ne!(host.sums("p", "/m/common /d/common"), common);
    host.end();
}

#[test]
fn a_clone_of_a_clone_is_its_own_and_outlives_its_ancestors() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/one bs=64k count=128 2>/dev/null; cp /m/one /d/one; sync",
    );
    let child = host.fork("p", 1).remove(0);
    host.sh(
        "p-1",
        "dd if=/dev/urandom of=/m/two bs=64k count=128 2>/dev/null; cp /m/two /d/two; sync",
    );
    let told = host.sums("p-1", "/m/one /d/one /m/two /d/two");
    let grandchild = host.fork("p-1", 1).remove(0);
    let founder = host.vm("p");

    assert_eq!(grandchild.name.as_str(), "p-2");
    assert_eq!(grandchild.parent, Some(child.id));
    assert_eq!(grandchild.family, founder.family);
    let epochs = [founder.epoch, child.epoch, grandchild.epoch];
    assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]);
    assert_eq!(host.sh("p-2", "hostname"), "p-2");
    assert_eq!(host.sh("p", "ls /m /d | grep two || true"), "");

    host.ok(["rm", "p", "p-1"]);
    host.sh("p-2", FORGET);
    assert_eq!(host.sums("p-2", "/m/one /d/one /m/two /d/two"), told);
    // And it can itself be forked.
    host.fork("p-2", 1);
    host.sh("p-3", FORGET);
    assert_eq!(host.sums("p-3", "/m/one /d/one /m/two /d/two"), told);
    host.end();
}

#[test]
fn smp_guests_fork_with_every_cpu_at_work() {
    let host = Host::with_p(["--vcpus", "2"]);
    host.put_program("p", "witness", None);
    for cpu in [0, 1] {
        host.sh(
            "p",
            &format!(
                "taskset {} witness spin /m/spin{cpu} >/dev/null 2>&1 </dev/null &",
                cpu + 1
            ),
        );
    }
    let counts = |vm: &str| {
        // They may not have been made yet.
        let told = host.sh(vm, "cat /m/spin0 /m/spin1 2>/dev/null || true");
        let counts: Vec<u64> = told.lines().filter_map(|line| line.parse().ok()).collect();
        <[u64; 2]>::try_from(counts).ok()
    };
    eventually("both to count", || counts("p").is_some());
    let clones = host.fork("p", 2);
    for name in clones.iter().map(|c| c.name.as_str()).chain(["p"]) {
        assert_eq!(host.sh(name, "nproc"), "2");
        let then = counts(name).expect("two counts");
        eventually("both CPUs to go on", || {
            counts(name).is_some_and(|now| now[0] > then[0] && now[1] > then[1])
        });
    }
    host.end();
}

#[test]
fn n_of_m_failing_gives_the_rest() {
    let host = Host::with_woken_p(["--warm", "3"]);
    host.wait_warm("p", 3);
    let parent = host.vm("p").pid.expect("it runs");
    let shells: Vec<_> = host
        .processes("qemu-system-x86_64")
        .into_iter()
        .filter(|q| q.pid != parent)
        .collect();
    assert_eq!(shells.len(), 3, "{shells:?}");
    shells[1].kill();

    let outcome = host
        .start(["fork", "p", "-n", "3", "-o", "json"], "")
        .wait()
        .exited(3);
    let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("an answer");
    let mut made = Vec::new();
    let mut errors = Vec::new();
    for clone in answer.clones {
        match clone {
            CloneResult::Vm(vm) => made.push(vm),
            CloneResult::Error(error) => errors.push(error),
        }
    }
    assert_eq!((made.len(), errors.len()), (2, 1), "{errors:?}");
    for vm in &made {
        assert_eq!(host.sh(vm.name.as_str(), "hostname"), vm.name.as_str());
    }
    assert_eq!(
        host.vms().len(),
        3,
        "nothing is listed of the one that failed"
    );
    host.sh("p", "true");
    host.end();
}

#[track_caller]
fn a_clone_reads_what_it_touches_and_little_around_it(host: &Host) {
    // Of what a guest has that booted, a command takes little.
    let clone = host.fork("p", 1).remove(0);
    host.ok(["exec", clone.name.as_str(), "--", "true"]);
    let seen: VmInspect = host.json(["inspect", clone.name.as_str()]);
    let image = seen.memory_image.expect("it is a clone");
    assert!(image.touched.0 * 2 < image.data.0, "{image:?}");
}
