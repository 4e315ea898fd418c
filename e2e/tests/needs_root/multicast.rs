//! What several hosts want of a fork, sent to all of them at once.

use forkyard_e2e::{Cluster, Links};
use forkyard_types::{CloneResult, ForkResponse, VmInspect};

/// Pages of a job's data, which do not pack and lie nowhere else.
const PAGES: u32 = 6000;

/// Clones on both other hosts, whole, and like their parent.
fn settled(cluster: &Cluster, sum: &str) {
    let words = ["fork", "p", "-n", "2", "--to", "h1,h2"];
    let words = [&words[..], &["--settle", "--settled"]].concat();
    let answer: ForkResponse = cluster.host(0).json(words);
    for (host, clone) in (1..).zip(answer.clones) {
        let CloneResult::Vm(clone) = clone else {
            panic!("host {host} made none: {clone:?}");
        };
        let (host, name) = (cluster.host(host), clone.name.as_str());
        let seen: VmInspect = host.json(["inspect", name]);
        assert_eq!(seen.vm.awaits, [], "it was waited for");
        assert_eq!(host.sh(name, "md5sum /m/data"), sum);
        host.ok(["rm", name]);
    }
}

#[test]
fn what_two_hosts_want_is_sent_once_unless_that_is_forbidden() {
    let mut cluster = Cluster::new(3);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let data = format!(
        "mkdir -p /m && mount -t tmpfs m /m && dd if=/dev/urandom of=/m/data bs=4096 count={PAGES} \
         2>/dev/null; md5sum /m/data"
    );
    let sum = cluster.host(0).sh("p", &data);

    settled(&cluster, &sum);
    let sent = Links::of(cluster.host(0));
    let came = [1, 2].map(|host| Links::of(cluster.host(host)));
    let came: u64 = came
        .iter()
        .map(|links| links.all("pages_waited") + links.all("pages_ahead"))
        .sum();
    assert!(came >= u64::from(2 * PAGES), "{came} pages came");
    assert!(sent.group("pages_sent") > u64::from(PAGES / 2), "{sent:?}");
    let went = sent.all("pages_sent");
    assert!(went * 10 < came * 9, "{came} came: {sent:?}");
    assert!(sent.all("pages_asked") > 0, "{sent:?}");

    cluster.kill_daemon(0);
    cluster.tell(0, "FORKYARD_MULTICAST", "false");
    cluster.start(0);
    let before = Links::of(cluster.host(0));
    settled(&cluster, &sum);
    let after = Links::of(cluster.host(0));
    assert_eq!(after.group("pages_sent"), before.group("pages_sent"));
    let went = after.all("pages_sent") - before.all("pages_sent");
    assert!(went >= u64::from(2 * PAGES), "{after:?}");
    cluster.end();
}
