//! Forks to hosts over networks that lose, double and reorder, or that are slow.

use crate::cluster::made;
use forkyard_e2e::{Cluster, LinkFaults, Links, eventually};
use forkyard_types::{VmState, VmView};
use std::time::Duration;

/// Pages of data that do not pack and lie nowhere else.
const PAGES: u32 = 3000;
/// Mbit/s at which half of that takes long, however busy the machine is.
const SLOW: u32 = 2;
const FAST: u32 = 10_000;

fn fill(pages: u32) -> String {
    format!(
        "mkdir -p /m && mount -t tmpfs m /m && dd if=/dev/urandom of=/m/data bs=4096 count={pages} \
         2>/dev/null; md5sum /m/data"
    )
}

fn whole(cluster: &Cluster, clones: &[VmView], sum: &str) {
    for (host, clone) in (1..).zip(clones) {
        let name = clone.name.as_str();
        assert_eq!(cluster.host(host).sh(name, "md5sum /m/data"), sum, "{name}");
    }
}

#[test]
fn clones_are_whole_over_a_network_that_loses_doubles_and_reorders() {
    let cluster = Cluster::linked(
        3,
        LinkFaults {
            delay: Duration::from_micros(500),
            loss: 3.0,
            twice: 3.0,
            late: 10.0,
            ..LinkFaults::default()
        },
    );
    let here = cluster.host(0);
    here.ok(["run", "tiny", "--name", "p"]);
    let sum = here.sh("p", &fill(PAGES));
    let words = ["fork", "p", "-n", "2", "--to", "h1,h2"];
    let clones = made(here.json(words));
    whole(&cluster, &clones, &sum);
    let settled = [&words[..], &["--settle", "--settled"]].concat();
    whole(&cluster, &made(here.json(settled)), &sum);
    let sent = Links::of(here);
    assert!(sent.group("pages_sent") > 0, "{sent:?}");
    assert!(sent.all("pages_resent") > 0, "nothing was lost: {sent:?}");
    let (groups, far) = cluster.link().groups();
    assert!(groups > 0 && far == 0, "{groups} to groups, {far} beyond");
    cluster.end();
}

#[test]
fn a_slow_host_does_not_hold_up_another_that_is_in_its_group() {
    let cluster = Cluster::new(3);
    let here = cluster.host(0);
    here.ok(["run", "tiny", "--name", "p"]);
    here.sh("p", &fill(PAGES));
    cluster.slow(2, SLOW);
    let words = [
        "fork", "p", "-n", "2", "--to", "h1,h2", "--settle", "-ojson",
    ];
    let fork = here.start(words, "");
    // Pages away, of a clone that runs.
    let away = |host: usize| {
        let running = cluster.host(host).vms().into_iter();
        let mut running = running.filter(|vm| vm.state == VmState::Running);
        let awaits = running.next()?.awaits;
        Some(awaits.iter().map(|it| it.away.0).sum::<u64>())
    };
    eventually("the clone on a host that is not slow", || {
        away(1) == Some(0)
    });
    let left = away(2).unwrap_or(u64::MAX);
    assert!(left > u64::from(PAGES / 2), "the slow one lacks {left}");
    cluster.slow(2, FAST);
    fork.wait().exited(0);
    cluster.end();
}
