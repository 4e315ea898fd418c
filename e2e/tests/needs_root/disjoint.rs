//! Memory of which each clone reads pages of its own, sent to nobody else.

use forkyard_e2e::{Cluster, Host, Links, eventually};
use forkyard_types::{CloneResult, ForkResponse};
use std::{thread::sleep, time::Duration};

/// Pages of each kind that the parent has; a clone reads half of them.
const PAGES: u64 = 4000;
const HALF: u64 = PAGES / 2;
/// Who wants nothing for so long is not about to begin.
pub(crate) const CALM: Duration = Duration::from_secs(2);

/// Has a clone read its half of the pages that are `alone` or for `all`.
#[track_caller]
fn read(host: &Host, clone: &str, which: &str) {
    let done = format!("cat /m/{which}.done 2>/dev/null || true");
    host.sh(clone, &format!("touch /m/{which}"));
    let mut sum = String::new();
    eventually("the pages are read", || {
        sum = host.sh(clone, &done);
        !sum.is_empty()
    });
    assert_eq!(sum, host.sh(clone, &format!("cat /m/{which}.want")));
}

/// Pages that a host sent to the group, that it sent at all, and that have come
/// to another.
fn counted(cluster: &Cluster, other: usize) -> [u64; 3] {
    let sent = Links::of(cluster.host(0));
    let came = Links::of(cluster.host(other));
    [
        sent.group("pages_sent"),
        sent.all("pages_sent"),
        came.all("pages_waited") + came.all("pages_ahead"),
    ]
}

#[test]
fn what_a_guest_marked_as_disjoint_goes_to_the_host_that_asks_and_all_else_to_every_host() {
    let cluster = Cluster::new(3);
    let parent = cluster.host(0);
    parent.ok(["run", "tiny", "--name", "p"]);
    let dist = parent.dist().to_owned();
    parent.put_program("p", "sharer", Some(&dist));
    let start = format!(
        "mkdir -p /m && mount -t tmpfs m /m && \
         sharer /m {PAGES} >/m/said 2>&1 </dev/null &"
    );
    parent.sh("p", &start);
    eventually("the parent has its data", || {
        let seen = parent.sh("p", "cat /m/said /m/ready 2>/dev/null || true");
        assert!(!seen.contains("sharer:"), "{seen}");
        !seen.is_empty()
    });

    let answer: ForkResponse = parent.json(["fork", "p", "-n", "2", "--to", "h1,h2"]);
    let clones = answer.clones.into_iter().map(|clone| match clone {
        CloneResult::Vm(clone) => clone.name,
        CloneResult::Error(error) => panic!("not made: {error:?}"),
    });
    let clones: Vec<_> = clones.collect();
    // Both run, and with that both hear the group.
    for (host, clone) in (1..).zip(&clones) {
        cluster.host(host).sh(clone.as_str(), "cat /m/ready");
    }
    // What they need to run is wanted by both, and not to be counted.
    eventually("both have what they need to run", || {
        let before = counted(&cluster, 2);
        sleep(CALM);
        counted(&cluster, 2) == before
    });

    let before = counted(&cluster, 2);
    read(cluster.host(1), clones[0].as_str(), "alone");
    let after = counted(&cluster, 2);
    let [to_all, sent, came] = [0, 1, 2].map(|n| after[n] - before[n]);
    // Some lie beside what it took to run, and have come with that.
    assert!(sent > HALF * 3 / 4, "{sent} of {HALF} pages were sent");
    assert!(to_all < HALF / 4, "{to_all} of {HALF} pages went to all");
    assert!(came < HALF / 4, "{came} of {HALF} pages came to another");

    let before = counted(&cluster, 2);
    read(cluster.host(1), clones[0].as_str(), "all");
    let to_all = counted(&cluster, 2)[0] - before[0];
    assert!(
        to_all > HALF * 3 / 4,
        "{to_all} of {HALF} pages went to all"
    );
    // Nobody there waits for them: it may be a while until they are taken in.
    eventually("most of the pages to have come to another", || {
        counted(&cluster, 2)[2] - before[2] > HALF * 3 / 4
    });
    cluster.end();
}
