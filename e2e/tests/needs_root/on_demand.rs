//! A VM that goes on at another host before all of its volume is there.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{ByteCount, LinkView, MigrateResponse, VolumeHolding, VolumeView, VolumeWhy};

const READ: &str = "echo 3 >/proc/sys/vm/drop_caches; md5sum /root/data";

fn seen(host: &Host) -> VolumeView {
    host.json(["volume", "inspect", "d"])
}

fn lacking(host: &Host) -> ByteCount {
    ByteCount(seen(host).lacking.iter().map(|it| it.size.0).sum())
}

/// Bytes that were fetched though nothing waited for them.
fn filled(host: &Host) -> Option<f64> {
    let metrics = host.get("/metrics");
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with("forkyard_volume_filled_bytes{"))?;
    line.rsplit(' ').next()?.parse().ok()
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
    // What nothing waits for is not to go today.
    here.ok(["link", "budget", "h1", "--daily", "1"]);
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
    let links: Vec<LinkView> = here.json(["link", "ls"]);
    let [link] = &links[..] else {
        panic!("{links:?}");
    };
    assert!(
        link.sent_today > ByteCount(1 << 20) && link.waits_s.is_some(),
        "{link:?}"
    );
    assert_eq!(filled(there), Some(0.0), "the budget outlives the daemon");
    assert!(lacking(there) > ByteCount(0));
    here.ok(["link", "budget", "h1", "--rate", "400mbit"]);
    // All of it comes, and the other host is free to remove what it has.
    eventually("all of it to come", || lacking(there) == ByteCount(0));
    eventually("nothing to be needed", || seen(here).needed_by.is_empty());
    // With no error, and as it was.
    there.wait_in("p", &format!("[ \"$(cat /m/sum)\" = '{sum}' ]"));
    assert_eq!(there.sh("p", READ), sum);
    assert!(filled(there) > Some(0.0));
    here.ok(["link", "budget", "h1", "--none"]);
    // The way back is what differs.
    there.sh("p", "echo more >/root/more; sync");
    let back = moved(there, "h0").report;
    assert!(back.blocks_ahead + back.blocks_left < 2000, "{back:?}");
    assert_eq!(here.sh("p", "cat /root/more"), "more");
    assert_eq!(here.sh("p", READ), sum);
    eventually("nothing to be needed", || seen(there).needed_by.is_empty());
    there.ok(["volume", "rm", "d"]);

    // From now on a flush is answered once it is on the disk of the other host, too.
    here.ok(["volume", "mirror", "d", "h1"]);
    let mirror = |host: &Host| seen(host).mirrors.first().cloned();
    eventually("the copy to be there", || {
        mirror(here).is_some_and(|it| it.is_there && it.behind == 0)
    });
    here.sh("p", "echo held >/root/held; sync");
    assert!(seen(there).at.is_some());
    let why = there.fails(["run", "tiny", "--name", "q", "--volume", "d"]);
    assert!(why.contains("a copy"), "{why}");
    let why = here.fails(["migrate", "p", "--to", "h1"]);
    assert!(why.contains("held at h1"), "{why}");
    cluster.cut(0);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.sh(
        "p",
        "(echo late >/root/late; /m/busybox sync) >/dev/null 2>&1 </dev/null &",
    );
    eventually("it to stand still", || {
        let silence = here.vm("p").silence;
        silence.is_some_and(|why| why.contains("is to hold what it writes"))
    });
    // That host is lost, as far as this one can tell: it goes on with what was answered.
    there.ok(["volume", "promote", "d"]);
    there.ok(["run", "tiny", "--name", "q", "--volume", "d"]);
    assert_eq!(there.sh("q", "cat /root/held"), "held");
    assert_eq!(there.sh("q", "ls /root/late 2>/dev/null | wc -l"), "0");
    there.sh("q", "echo q >/root/q; sync");
    // The former writer is fenced once it hears of it, and its volume is a copy.
    cluster.mend(0);
    let (here, there) = (cluster.host(0), cluster.host(1));
    eventually("it to be fenced", || seen(here).at.as_deref() == Some("h1"));
    here.ok(["rm", "p"]);
    assert_eq!(
        there.sh("q", "cat /root/q; md5sum /root/data"),
        format!("q\n{sum}")
    );
    there.ok(["rm", "q"]);
    there.ok(["volume", "rm", "d"]);
    here.ok(["volume", "rm", "d"]);
    cluster.end();
}
