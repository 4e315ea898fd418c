//! Memory of which each clone reads pages of its own, sent to no other.

use forkyard_e2e::{Cluster, Host, Links, eventually};
use forkyard_types::{CloneResult, ForkResponse};
use std::{thread::sleep, time::Duration};

/// Pages of each kind that the parent has; a clone reads half of them.
const PAGES: u64 = 4000;
const HALF: u64 = PAGES / 2;
/// A guest that wants nothing for so long is not about to begin.
pub(crate) const CALM: Duration = Duration::from_secs(2);

/// Has a clone read its half of the pages that are `alone` or for `all`.
#[track_caller]
fn read(host: &Host, clone: &str, which: &str) {
    host.sh(clone, &format!("touch /m/{which}"));
    host.wait_in(clone, &format!("[ -e /m/{which}.done ]"));
    host.sh(clone, &format!("cmp /m/{which}.done /m/{which}.want"));
}

/// Pages that the first host sent to the group, to the second host alone, and to the third
/// alone; and that have come to the third.
fn counted(cluster: &Cluster) -> [u64; 4] {
    let sent = Links::of(cluster.host(0));
    let alone = |host| sent.with(cluster.address(host), "pages_sent");
    let came = Links::of(cluster.host(2));
    [
        sent.group("pages_sent"),
        alone(1),
        alone(2),
        came.all("pages_waited") + came.all("pages_ahead"),
    ]
}

/// Has a clone on the second host read pages, and counts.
fn count_reading(cluster: &Cluster, clone: &str, which: &str) -> [u64; 4] {
    let before = counted(cluster);
    read(cluster.host(1), clone, which);
    let after = counted(cluster);
    [0, 1, 2, 3].map(|n| after[n] - before[n])
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
    parent.wait_in("p", "[ -e /m/ready ] || [ -s /m/said ]");
    assert_eq!(parent.sh("p", "cat /m/said"), "");

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
    // What they need to run, and for commands like those below, is wanted by both, and not to
    // be counted. What a guest does by itself is counted all the same, the more the longer it
    // takes; so what went one way is compared with what went the other.
    for (host, clone) in (1..).zip(&clones) {
        let script = "touch /m/x; until [ -e /m/x ]; do sleep 0.1; done; cmp /m/x /m/x";
        cluster.host(host).sh(clone.as_str(), script);
    }
    eventually("both have what they need to run", || {
        let before = counted(&cluster);
        sleep(CALM);
        // On a busy machine there is always a little.
        let more = counted(&cluster).into_iter().zip(before);
        more.map(|(after, before)| after - before).sum::<u64>() < HALF / 20
    });

    let [to_all, alone, to_other, came] = count_reading(&cluster, clones[0].as_str(), "alone");
    // Some lie beside what it took to run, and have come with that.
    assert!(alone > HALF * 3 / 4, "{alone} of {HALF} pages");
    for elsewhere in [to_all, to_other, came] {
        assert!(elsewhere < alone / 2, "{elsewhere} beside {alone}");
    }

    let before = counted(&cluster);
    let [to_all, alone, ..] = count_reading(&cluster, clones[0].as_str(), "all");
    assert!(to_all > HALF * 3 / 4, "{to_all} of {HALF} pages");
    assert!(alone < to_all / 2, "{alone} beside {to_all}");
    // No guest there waits for them: it may be a while until they are taken in.
    eventually("most of the pages to have come to another", || {
        counted(&cluster)[3] - before[3] > HALF * 3 / 4
    });
    cluster.end();
}
