//! Memory that a guest says is free.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{ForkReport, VmInspect};

/// Pages in every second file of the ballast.
const HALF: u64 = 96 * (512 << 10) / 4096;

fn copied(host: &Host) -> u64 {
    let inspected: VmInspect = host.json(["inspect", "p"]);
    let last: &ForkReport = inspected.forks.last().expect("it was forked");
    last.pages_captured.0 + last.pages_ahead.0
}

#[test]
fn what_a_guest_has_freed_is_in_no_image() {
    let host = Host::with_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/kept bs=64k count=16 2>/dev/null; i=0; while [ $i -lt 192 ]; do i=$((i + 1)); \
         dd if=/dev/urandom of=/m/ballast-$((i % 2))-$i bs=64k count=8 2>/dev/null; done",
    );
    let told = host.sums("p", "/m/kept");
    let private = || host.json::<VmInspect>(["inspect", "p"]).private_pages.0;
    host.fork("p", 1);
    let before = copied(&host);
    assert!(before > 96 << 8, "{before}");
    host.ok(["rm", "p-1"]);

    // Nowhere 2 MiB at once, which is what Linux tells of if it is left to itself.
    // Not all of it: what is in pieces of less than 64 KiB is not reported.
    let full = private();
    host.sh("p", "rm /m/ballast-0-*");
    eventually("the news of small pieces", || private() + HALF / 2 < full);
    host.sh("p", "rm /m/ballast-1-*");
    eventually("the news of the rest", || private() + HALF * 3 / 2 < full);
    // It was not written, but is no longer there: the image before is not gone over.
    let clone = host.fork("p", 1).remove(0);
    let of_clone: VmInspect = host.json(["inspect", clone.name.as_str()]);
    let image = of_clone.memory_image.expect("it is a clone");
    assert!(image.data.0 * 4 < before * 3, "{image:?} after {before}");
    assert_eq!(host.sums(clone.name.as_str(), "/m/kept"), told);

    // A daemon that has no notes of what was written copies all there is.
    host.kill_9("forkyardd");
    let clone = host.fork("p", 1).remove(0);
    let after = copied(&host);
    assert!(after * 4 < before * 3, "{after} pages after {before}");
    assert_eq!(host.sums(clone.name.as_str(), "/m/kept"), told);
    host.end();
}

#[test]
fn memory_freed_while_it_is_copied_costs_no_clone_what_was_kept() {
    let host = Host::with_p([]);
    // Frees what was copied ahead, and writes where it was, all the time; the
    // guest reports what is free every two seconds.
    let churn = "i=0; while [ ! -e /m/enough ]; do i=$((i + 1)); dd if=/dev/urandom of=/m/churn bs=64k count=192 2>/dev/null; \
         dd if=/dev/urandom of=/m/kept-$i bs=64k count=8 2>/dev/null; md5sum /m/kept-$i >>/m/log; \
         cp /m/log /m/new; mv /m/new /m/sums; rm /m/churn; sleep 0.2; done";
    host.sh("p", &format!("({churn}) </dev/null >/dev/null 2>&1 &"));
    let rounds = |vm: &str| {
        let told = host.sh(vm, "wc -l </m/sums 2>/dev/null || echo 0");
        told.parse::<usize>().expect("a number")
    };
    for live in [true, true, false] {
        let done = rounds("p");
        eventually("another round", || rounds("p") > done);
        let mut words = vec!["fork", "p"];
        words.extend(live.then_some("--live"));
        host.start(words, "").wait().exited(0);
    }
    for clone in host.vms().iter().filter(|vm| vm.parent.is_some()) {
        let name = clone.name.as_str();
        // Nor do new pages in it have anything in them.
        let script = "cd /m; touch enough; test -s sums; md5sum -c sums >/dev/null; \
             dd if=/dev/zero of=/m/zero bs=1M count=24 2>/dev/null; \
             [ $(tr -d '\\000' </m/zero | wc -c) = 0 ]; echo well";
        assert_eq!(host.sh(name, script), "well", "{name}");
        // A host that is slow to run its vCPU is no fault of its memory.
        host.sh(
            name,
            "test -z \"$(dmesg | grep -i -e bug: -e corrupt -e 'bad page' | grep -v lockup)\"",
        );
    }
    host.sh("p", "cd /m; md5sum -c sums >/dev/null");
    host.end();
}
