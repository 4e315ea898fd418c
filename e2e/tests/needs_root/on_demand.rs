//! A VM that goes on at another host before all of its volume is there.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{ByteCount, MigrateResponse, VolumeHolding, VolumeView, VolumeWhy};

const READ: &str = "echo 3 >/proc/sys/vm/drop_caches; md5sum /root/data";

fn seen(host: &Host) -> VolumeView {
    host.json(["volume", "inspect", "d"])
}

fn lacking(host: &Host) -> ByteCount {
    ByteCount(seen(host).lacking.iter().map(|it| it.size.0).sum())
}

fn moved(host: &Host, to: &str) -> MigrateResponse {
    // However busy this host is: how long it stands still is not what is tested.
    host.json([
        "migrate",
        "p",
        "--to",
        to,
        "--if-stuck",
        "stop",
        "--disk",
        "on-demand",
    ])
}

#[test]
fn a_vm_goes_on_before_its_volume_has_come_whatever_dies_and_waits_for_a_host_that_is_away() {
    let mut cluster = Cluster::new(2);
    let here = cluster.host(0);
    here.ok(["run", "tiny", "--name", "p", "--volume", "d:1G"]);
    here.sh(
        "p",
        "dd if=/dev/urandom of=/root/data bs=64k count=512 2>/dev/null; sync; \
         echo 3 >/proc/sys/vm/drop_caches",
    );
    let sum = here.sh("p", READ);
    // A reader that needs nothing of the disk but what it reads.
    here.sh(
        "p",
        "mkdir -p /m && mount -t tmpfs m /m && cp /bin/busybox /m/ && echo 3 >/proc/sys/vm/drop_caches",
    );
    here.ok(["volume", "tune", "d", "--k", "50"]);
    cluster.limit(100);
    let report = moved(here, "h1").report;
    assert!(report.blocks_left > 2000, "{report:?}");
    let there = cluster.host(1);
    cluster.cut(0);
    assert!(lacking(there) > ByteCount(8 << 20), "{:?}", seen(there));
    assert_eq!(seen(here).needed_by.len(), 1);
    let why = here.fails(["volume", "rm", "d"]);
    assert!(why.contains("h1 still fetches blocks"), "{why}");

    // Of each block it is told why it went, or was left.
    let why = |host: &Host, block: u64| -> VolumeWhy {
        host.json(["volume", "why", "d", &block.to_string()])
    };
    let first = &why(here, 0).transfers[0];
    assert!(
        first.is_sent && first.host.as_deref() == Some("h1"),
        "{first:?}"
    );
    let law = first.law.as_ref().expect("its counts are kept");
    assert!(law.k == 50.0 && law.priority > Some(0.0), "{law:?}");
    let mut blocks = (0..1 << 18).step_by(2048);
    let left = blocks.find(|block| why(there, *block).holding == VolumeHolding::Elsewhere);
    let left = why(here, left.expect("most of it"));
    assert!(left.transfers.iter().any(|it| !it.is_sent), "{left:?}");

    // What it reads is away: it stands still, and says why.
    let read = "(/m/busybox md5sum /root/data >/m/sum 2>&1; echo $? >/m/code) >/dev/null 2>&1 </dev/null &";
    there.ok(["exec", "p", "--", "/m/busybox", "sh", "-c", read]);
    eventually("it to stand still", || {
        let silence = there.vm("p").silence;
        silence.is_some_and(|why| why.contains("the rest of its volume"))
    });
    // Whatever dies on either host.
    there.kill_9("forkyard-blockd");
    here.kill_9("forkyard-blockd");
    cluster.kill_daemon(0);
    cluster.start(0);
    cluster.kill_daemon(1);
    cluster.start(1);
    cluster.mend(0);
    cluster.limit(1000);
    let (here, there) = (cluster.host(0), cluster.host(1));
    there.wait_in("p", "test -s /m/code");
    let read = there.sh("p", "cat /m/sum");
    assert_eq!(read, sum, "with no error");
    // All of it comes, and the other host is free to remove what it has.
    eventually("all of it to come", || lacking(there) == ByteCount(0));
    eventually("nothing to be needed", || seen(here).needed_by.is_empty());
    assert_eq!(there.sh("p", READ), sum);
    let metrics = there.get("/metrics");
    let fetched = |name: &str| {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(&format!("forkyard_volume_{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert!(fetched("filled_bytes") > Some(0.0), "{metrics}");
    // The way back is what differs.
    there.sh("p", "echo more >/root/more; sync");
    let back = moved(there, "h0").report;
    assert!(back.blocks_ahead + back.blocks_left < 2000, "{back:?}");
    assert_eq!(here.sh("p", "cat /root/more"), "more");
    assert_eq!(here.sh("p", READ), sum);
    eventually("nothing to be needed", || seen(there).needed_by.is_empty());
    here.ok(["rm", "p"]);
    there.ok(["volume", "rm", "d"]);
    here.ok(["volume", "rm", "d"]);
    cluster.end();
}
