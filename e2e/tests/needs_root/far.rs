//! Forks to a host at the far end of a long link.

use crate::cluster::made;
use forkyard_e2e::{Cluster, LinkFaults, Links};
use forkyard_types::VmView;
use std::time::Duration;

/// Pages of data that do not pack and lie nowhere else.
const PAGES: u32 = 2000;

/// 200 Mbit/s, with the buffers that such a link has.
fn link(round_trip: Duration) -> LinkFaults {
    LinkFaults {
        rate: 25_000_000,
        queue: Duration::from_millis(100),
        delay: round_trip / 2,
        ..LinkFaults::default()
    }
}

/// Forks `p` to the other host, and has the clone look at what it has. Pages that the clone
/// waited for, one round trip each.
fn forked(cluster: &Cluster, sum: &str) -> (VmView, u64) {
    let (here, there) = (cluster.host(0), cluster.host(1));
    let before = Links::of(there).all("pages_waited");
    let clones = made(here.json(["fork", "p", "-n", "1", "--to", "h1"]));
    let clone = clones.into_iter().next().expect("one was asked for");
    assert_eq!(there.sh(clone.name.as_str(), "md5sum /m/data"), sum);
    (clone, Links::of(there).all("pages_waited") - before)
}

#[test]
fn a_fork_over_a_long_link_waits_for_hardly_any_page() {
    let mut cluster = Cluster::linked(2, link(Duration::from_millis(80)));
    let here = cluster.host(0);
    here.ok(["run", "tiny", "--name", "p"]);
    let sum = here.sh(
        "p",
        &format!(
            "mkdir -p /m && mount -t tmpfs m /m && \
             dd if=/dev/urandom of=/m/data bs=4096 count={PAGES} 2>/dev/null; md5sum /m/data"
        ),
    );
    // As the measured round trip asks for.
    let (_, far) = forked(&cluster, &sum);
    cluster.link().becomes(link(Duration::ZERO));
    // A busy machine may measure any round trip.
    cluster.kill_daemon(0);
    cluster.tell(0, "FORKYARD_SETTLE_FIRST", "never");
    cluster.start(0);
    let (_, near) = forked(&cluster, &sum);
    // Of what is read in order most is asked for ahead.
    assert!(near > 200, "{near} pages waited for on demand");
    assert!(far < near / 10, "{far} pages waited for, {near} on demand");
    cluster.end();
}
