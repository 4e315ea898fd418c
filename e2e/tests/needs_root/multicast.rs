//! Tests of pages that several hosts want of a fork, sent to all of them at
//! once.

use crate::cluster::made;
use forkyard_e2e::{Cluster, Links, eventually};
use forkyard_types::{VmInspect, VmView};

/// Pages of a job's data, which do not pack and lie nowhere else.
const PAGES: u32 = 6000;
/// Mbit/s at which one gets what a clone needs to start soon, and the rest not.
const SLOW: u32 = 40;
/// At which one that has started gets next to nothing.
const CRAWL: u32 = 2;
const FAST: u32 = 10_000;

/// A clone on each of the next two hosts.
fn forked(cluster: &Cluster, more: &[&str]) -> Vec<VmView> {
    let words = ["fork", "p", "-n", "2", "--to", "h1,h2"];
    made(cluster.host(0).json([&words[..], more].concat()))
}

/// Pages that a host's clone lacks.
fn away(cluster: &Cluster, host: usize, clones: &[VmView]) -> u64 {
    let clone = clones[host - 1].name.as_str();
    let seen: VmInspect = cluster.host(host).json(["inspect", clone]);
    seen.vm.awaits.iter().map(|it| it.away.0).sum()
}

/// They are like their parent, and go.
fn whole(cluster: &Cluster, clones: &[VmView], sum: &str) {
    for (host, clone) in (1..).zip(clones) {
        let (host, name) = (cluster.host(host), clone.name.as_str());
        assert_eq!(host.sh(name, "md5sum /m/data"), sum);
        host.ok(["rm", name]);
    }
}

/// Clones on both, whole, and like their parent.
fn settled(cluster: &Cluster, sum: &str) {
    let clones = forked(cluster, &["--settle", "--settled"]);
    for host in [1, 2] {
        assert_eq!(away(cluster, host, &clones), 0, "it was waited for");
    }
    whole(cluster, &clones, sum);
}

#[test]
fn what_two_hosts_want_is_sent_once_unless_that_is_forbidden() {
    // The last is no member of anything.
    let mut cluster = Cluster::new(4);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let data = format!(
        "mkdir -p /m && mount -t tmpfs m /m && dd if=/dev/urandom of=/m/data bs=4096 count={PAGES} \
         2>/dev/null; md5sum /m/data"
    );
    let sum = cluster.host(0).sh("p", &data);

    cluster.count_groups();
    settled(&cluster, &sum);
    let heard = [1, 2, 3].map(|host| cluster.of_groups(host));
    assert!(heard[0].min(heard[1]) > u64::from(PAGES / 2), "{heard:?}");
    assert_eq!(
        heard[2], 0,
        "frames to groups reached a host that is in none"
    );
    let sent = Links::of(cluster.host(0));
    let came = [1, 2].map(|host| Links::of(cluster.host(host)));
    let came: u64 = came
        .iter()
        .map(|links| links.all("pages_waited") + links.all("pages_ahead"))
        .sum();
    assert!(came >= u64::from(2 * PAGES), "{came} pages came");
    assert!(sent.group("pages_sent") > u64::from(PAGES / 2), "{sent:?}");
    // What was lost on a busy machine, and sent again by the same way, is not counted.
    let went = sent.all("pages_sent") - sent.all("pages_resent");
    assert!(went * 10 < came * 9, "{came} came: {sent:?}");
    // The hosts ask for the same, at the same time.
    assert!(sent.all("pages_asked") > 0, "{sent:?}");
    assert!(sent.all("pages_suppressed") > 0, "{sent:?}");

    // What clones needed at first the next ones have before they ask.
    let used = || [1, 2].map(|host| Links::of(cluster.host(host)).all("pages_used"));
    let before = used();
    let clones = forked(&cluster, &[]);
    let pushed = Links::of(cluster.host(0)).all("pages_pushed") - sent.all("pages_pushed");
    assert!(pushed > 0, "nothing was pushed");
    for (host, (before, after)) in (1..).zip(before.iter().zip(used())) {
        assert!(
            after > *before,
            "nothing that was pushed was used by host {host}"
        );
    }
    for clone in clones {
        cluster.host(0).ok(["rm", clone.name.as_str()]);
    }

    cluster.kill_daemon(0);
    cluster.tell(0, "FORKYARD_MULTICAST", "false");
    cluster.start(0);
    let before = Links::of(cluster.host(0));
    // Each is served at its own pace then.
    cluster.slow(2, SLOW);
    let clones = forked(&cluster, &["--settle"]);
    // However long the other takes: both share this machine's processors.
    cluster.slow(2, CRAWL);
    eventually("the clone on the host that is not slow", || {
        away(&cluster, 1, &clones) == 0
    });
    let left = away(&cluster, 2, &clones);
    // Some came while the clones were made; more than can be on its way is missing.
    assert!(left > u64::from(PAGES / 4), "the slow one lacks {left}");
    cluster.slow(2, FAST);
    eventually("the other", || away(&cluster, 2, &clones) == 0);
    whole(&cluster, &clones, &sum);
    let after = Links::of(cluster.host(0));
    assert_eq!(after.group("pages_sent"), before.group("pages_sent"));
    let went = after.all("pages_sent") - before.all("pages_sent");
    assert!(went >= u64::from(2 * PAGES), "{after:?}");
    cluster.end();
}
