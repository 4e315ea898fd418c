//! A running VM moves to another host.

use crate::gateway::{ask, ports};
use forkyard_e2e::{Cluster, Host, eventually, frontend::Frontend};
use forkyard_types::{ListedVm, MigrateResponse, VmInspect, VmState, VmView, VolumeView};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Writes numbers into memory and to the disk, one after the other, for as long as it lives, and
/// says them to its sibling on a connection that was made before.
const COUNT: &str = "mkdir -p /m && mount -t tmpfs m /m && \
    dd if=/dev/urandom of=/m/data bs=60k count=100 2>/dev/null && dd if=/dev/urandom of=/root/data bs=60k count=50 2>/dev/null && \
    (n=0; while :; do n=$((n+1)); echo $n >/m/n; echo $n >>/root/n; echo $n; sleep 0.05; done \
     | nc SIBLING 9) >/dev/null 2>&1 </dev/null & ";
/// Says numbers until it is told to end.
const SAY: &str = "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); echo $n; sleep 0.2; done; exit 3";
const SUMS: &str = "md5sum /m/data /root/data; cat /proc/sys/kernel/random/boot_id; pidof nc";

fn number(host: &Host, vm: &str) -> u64 {
    let text = host.sh(vm, "cat /m/n || cat /m/n");
    text.trim().parse().expect("a number")
}

/// Numbers on disk that do not follow the one before.
fn gaps(host: &Host, vm: &str) -> String {
    host.sh(
        vm,
        "awk 'NR > 1 && $1 != last + 1 {print last, $1} {last = $1}' /root/n",
    )
}

fn moved(host: &Host, to: &str) -> MigrateResponse {
    // However busy this host is: how long it stands still is not what is tested.
    host.json(["migrate", "p", "--to", to, "--if-stuck", "stop"])
}

#[track_caller]
fn goes_on(sibling: (&Host, &str)) {
    let (host, vm) = sibling;
    let heard = || host.sh(vm, "tail -n 1 /tmp/heard");
    let before = heard();
    eventually("the sibling to hear more", || heard() != before);
    let gaps = "awk 'NR > 1 && $1 != last + 1 {print last, $1} {last = $1}' /tmp/heard";
    assert_eq!(host.sh(vm, gaps), "", "on the connection");
}

#[test]
fn a_vm_goes_on_elsewhere_as_who_it_is_and_comes_back() {
    let cluster = Cluster::new(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p", "--label", "of=me"]);
    let sibling = here.fork("p", 1).remove(0);
    let name = sibling.name.to_string();
    here.sh(
        &name,
        "(sleep 6000 | nc -l -p 9 >/tmp/heard) >/dev/null 2>&1 </dev/null &",
    );
    here.wait_in(
        &name,
        "grep -qs ':0009 .* 0A ' /proc/net/tcp /proc/net/tcp6",
    );
    let address = sibling.address.ip.to_string();
    here.sh("p", &COUNT.replace("SIBLING", &address));
    here.wait_in("p", "[ -s /m/n ]");
    let client = here.start(["exec", "p", "--", "sh", "-c", SAY], "");
    eventually("it says something", || !client.said().is_empty());
    let before: VmInspect = here.json(["inspect", "p"]);
    let sums = here.sh("p", SUMS);
    let counted = number(here, "p");

    let answer = moved(here, "h1");
    assert_eq!(answer.vm.host.as_deref(), Some("h1"));
    assert!(answer.report.pages_last < answer.report.pages_ahead);
    let after: VmInspect = there.json(["inspect", "p"]);
    let who = |it: &VmView| (it.id, it.name.clone(), it.epoch, it.member, it.address.ip);
    assert_eq!(who(&after.vm), who(&before.vm));
    assert_eq!(after.vm.state, VmState::Running);
    assert_eq!(after.vm.labels, before.vm.labels);
    assert!(!after.vm.labels.0.is_empty());
    let listed = here.vms();
    let listed: Vec<_> = listed.iter().filter(|vm| vm.name.as_str() == "p").collect();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].host.as_deref(), Some("h1"));
    assert!(here.fails(["logs", "p"]).contains("h1"));
    assert_eq!(there.sh("p", SUMS), sums);
    assert!(number(there, "p") >= counted);
    goes_on((here, &name));
    // It needs nothing of the host that it left.
    eventually("all of it to be there", || there.vm("p").awaits.is_empty());

    let clone = there.fork("p", 1).remove(0);
    assert_eq!(
        there.sh(clone.name.as_str(), "md5sum /m/data /root/data"),
        there.sh("p", "md5sum /m/data /root/data")
    );
    there.ok(["rm", clone.name.as_str()]);

    let answer = moved(there, "h0");
    assert_eq!(answer.vm.host.as_deref(), Some("h0"));
    assert_eq!(here.vm("p").host, None);
    assert_eq!(here.sh("p", SUMS), sums);
    goes_on((here, &name));
    assert_eq!(gaps(here, "p"), "", "on the disk");
    // Its client has been there all the while.
    here.sh("p", "touch /tmp/stop");
    let said = client.wait().exited(3).text();
    let said: Vec<u64> = said
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert!(said.iter().copied().eq(1..=said.len() as u64), "{said:?}");
    assert!(there.vms().iter().all(|vm| vm.host.is_some()));
    here.ok(["rm", "p", &name]);
    eventually("it to be forgotten there", || there.vms().is_empty());
    cluster.end();
}

#[test]
fn a_node_hands_a_vm_to_another_and_every_node_finds_it_there() {
    let mut cluster = Cluster::of_nodes(2);
    cluster.join(1);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p"]);
    here.sh("p", "echo kept >/root/word");
    // Its users, all the while: at a gateway of one node, wherever it is.
    here.sh("p", "httpd -p 127.0.0.1:8080 -h /root");
    here.with_loopback();
    let words = ["serve", "--open", "--listen", "127.0.0.1:0"];
    let gateway = here.start_program("forkyard-gateway", words, "");
    eventually("it listens", || ports(&gateway).len() == 1);
    let at = ports(&gateway)[0];
    // A front-end sees where it is by the names of nodes.
    let hosts = Frontend::hosts(&cluster);
    let front = Frontend::start(
        here,
        &format!(
            "name = \"zero\"\nmetrics = \"127.0.0.1:0\"\n{hosts}\
             [frontend.zero]\nnear = [\"h0\"]\n[frontend.one]\nnear = [\"h1\"]\n\
             [service.p]\nport = 8080\nlisten = [\"127.0.0.1:0\"]\n"
        ),
        2,
    );
    let over = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let users: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| use_it(here, at, &over)))
            .collect();
        let commands = scope.spawn(|| command_it(there, &over));
        goes_round(here, there, &front);
        over.store(true, Relaxed);
        assert!(commands.join().expect("carried out") >= 2);
        users
            .into_iter()
            .map(|user| user.join().expect("served"))
            .sum::<u32>()
    });
    assert!(served >= 6, "{served}");
    gateway.interrupt();
    gateway.wait().exited(0);
    front.interrupt();
    front.wait().exited(0);
    // Whichever node is asked, a VM joins another where that is.
    there.ok(["run", "tiny", "--name", "q", "--join", "p"]);
    let listed: Vec<ListedVm> = there.json(["ps"]);
    let nodes: Vec<_> = listed.iter().map(|it| it.node.as_ref()).collect();
    assert_eq!(nodes, [nodes[0]; 2], "{listed:?}");
    let address = listed[0].vm.address.ip;
    there.sh("q", &format!("ping -c 1 -W 10 {address}"));
    there.ok(["rm", "p", "q"]);
    cluster.end();
}

/// Asks its server again and again; each request is answered.
fn use_it(host: &Host, at: u16, over: &AtomicBool) -> u32 {
    let mut served = 0;
    while !over.load(Relaxed) {
        let head = "GET /word HTTP/1.0\r\nhost: 8080-p.localhost\r\n";
        let answer = ask(host, at, head, "");
        let said = (answer.status(), answer.1.as_str());
        assert_eq!(said, ("200", "kept\n"), "after {served}");
        served += 1;
    }
    served
}

/// Has it carry out commands again and again; none is refused.
fn command_it(host: &Host, over: &AtomicBool) -> u32 {
    let mut done = 0;
    while !over.load(Relaxed) {
        assert_eq!(host.sh("p", "cat /root/word"), "kept", "after {done}");
        done += 1;
    }
    done
}

/// Moves it there and back.
fn goes_round(here: &Host, there: &Host, front: &Frontend) {
    let is = |role: &str| {
        let line = format!("forkyard_frontend_role{{service=\"p\",role=\"{role}\"}} 1");
        eventually(role, || front.counts(here, &line));
    };
    is("active");
    let answer = moved(here, "h1");
    assert_eq!(answer.vm.host.as_deref(), Some("h1"));
    // Whichever node is asked.
    for host in [here, there] {
        eventually("the cluster to know where it is", || {
            let listed: Vec<ListedVm> = host.json(["ps"]);
            let at = listed
                .iter()
                .map(|it| it.node.as_ref().map(ToString::to_string));
            at.collect::<Vec<_>>() == [Some("h1".to_owned())]
        });
        assert_eq!(host.sh("p", "cat /root/word"), "kept");
    }
    is("forwarding");
    // It is asked at the node that it left, and moves back from the one that has it.
    moved(here, "h0");
    is("active");
    assert_eq!(there.sh("p", "cat /root/word"), "kept");
}

/// Writes files to the disk, each with its checksum, for as long as it lives.
const WRITE: &str = "(n=0; while :; do n=$((n+1)); head -c 20000 /dev/urandom >/root/f$n; sync; \
    md5sum /root/f$n >>/root/sums; echo $n >/root/last; sleep 0.1; done) \
    >/dev/null 2>&1 </dev/null & echo $! >/tmp/writer";
/// Reads them from the disk, not from the page cache. Prints those that are not whole, and how many
/// there are.
const CHECK: &str = "kill $(cat /tmp/writer); sleep 0.2; sync; echo 3 >/proc/sys/vm/drop_caches; \
    md5sum -c /root/sums 2>&1 | grep -v OK || true; wc -l </root/sums";

/// Text on the VM's disk.
const MARK: &str = "this-is-in-no-file-of-either-host";

/// Looks for a text in the files of a host's volumes, and returns how many keys there are. No other
/// user may read those.
fn keys_of_what_is_not_told(host: &Host) -> usize {
    let state = host.folder().join("state");
    let sought = Command::new("grep")
        .args(["--recursive", "--count", "--text", MARK])
        .arg(state.join("volumes"))
        .output();
    let sought = String::from_utf8(sought.expect("grep").stdout).expect("text");
    let mut counts = sought.lines().filter_map(|line| line.rsplit_once(':'));
    assert!(counts.all(|(_, count)| count == "0"), "{sought}");
    let keys = fs::read_dir(state.join("volume-keys"));
    let keys = keys.into_iter().flatten().map(|it| it.expect("a key"));
    keys.inspect(|key| {
        let mode = key.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", key.path().display());
    })
    .count()
}

#[test]
fn a_vm_takes_its_volume_along_and_brings_it_back() {
    let cluster = Cluster::new(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    let seen = |host: &Host| -> VolumeView { host.json(["volume", "inspect", "d"]) };
    here.ok(["run", "tiny", "--name", "p", "--volume", "d:1G:encrypted"]);
    here.sh(
        "p",
        &format!(
            "dd if=/dev/urandom of=/root/data bs=64k count=400 2>/dev/null; yes {MARK} | head -n 999 >/root/mark; sync"
        ),
    );
    let sum = here.sh("p", "md5sum /root/data");
    here.fork("p", 1);
    here.sh("p", WRITE);
    here.wait_in("p", "test -s /root/last");

    there.ok(["volume", "create", "d", "1M"]);
    let why = here.fails(["migrate", "p", "--to", "h1"]);
    assert!(why.contains("a volume called d"), "{why}");
    there.ok(["volume", "rm", "d"]);
    let away = moved(here, "h1").report;
    let told = here.ok([
        "events",
        "--kind",
        "migration",
        "--since",
        "0",
        "--no-follow",
    ]);
    for word in [
        "first copy",
        "left: it would",
        "handing over",
        "goes on at h1",
    ] {
        assert!(told.contains(word), "{word:?} in {told}");
    }
    assert_eq!(seen(there).vm.expect("a VM has it").as_str(), "p");
    assert_eq!(seen(there).at, None);
    let copy = seen(here);
    assert_eq!((copy.vm, copy.at.as_deref()), (None, Some("h1")));
    // It writes there, and what it wrote before is there.
    let before = there.sh("p", "wc -l </root/sums");
    there.wait_in("p", &format!("test $(wc -l </root/sums) -gt {before}"));
    let read = "echo 3 >/proc/sys/vm/drop_caches; md5sum /root/data";
    assert_eq!(there.sh("p", read), sum);
    let count = format!("grep -c {MARK} /root/mark");
    assert_eq!(there.sh("p", &count), "999");
    // Encrypted at either host, with a key of its own.
    for host in [here, there] {
        assert_eq!(keys_of_what_is_not_told(host), 1);
        assert!(seen(host).encrypted);
    }
    // Nothing may write the copy; the clone that lies over it goes on.
    for words in [
        &["run", "tiny", "--volume", "d"][..],
        &["volume", "resize", "d", "2G"],
        &["volume", "snapshot", "d", "s"],
        &["volume", "export", "d", "/tmp/never"],
    ] {
        let why = here.start(words.iter(), "").wait().exited(1).stderr;
        assert!(why.contains("is at h1"), "{words:?}: {why}");
    }
    assert_eq!(here.sh("p-1", read), sum);
    // It is forked there as it would be here, and its server may die.
    let clone = there.fork("p", 1).remove(0);
    assert_eq!(there.sh(clone.name.as_str(), read), sum);
    there.ok(["rm", clone.name.as_str()]);

    let back = moved(there, "h0").report;
    assert_eq!(
        (seen(here).at, seen(there).at.as_deref()),
        (None, Some("h0"))
    );
    assert!(
        0 < back.blocks_ahead && back.blocks_ahead * 2 < away.blocks_ahead,
        "what is here was sent again: {back:?} {away:?}"
    );
    here.wait_in("p", "test -s /root/sums");
    let checked = here.sh("p", CHECK);
    assert!(
        checked.parse::<u32>().is_ok_and(|files| files > 0),
        "{checked}"
    );
    assert_eq!(here.sh("p", read), sum);
    here.ok(["rm", "--all"]);
    there.ok(["volume", "rm", "d"]);
    assert_eq!(keys_of_what_is_not_told(there), 0);
    // It is at home here: any VM may boot from it.
    here.ok(["run", "tiny", "--name", "again", "--volume", "d"]);
    assert_eq!(here.sh("again", "md5sum /root/data"), sum);
    assert_eq!(seen(here).snapshots.len(), 1, "the one that was sent");
    here.ok(["rm", "again"]);
    here.ok(["volume", "rm", "d"]);
    cluster.end();
}

#[test]
fn a_vm_that_cannot_move_stays_and_says_why() {
    let cluster = Cluster::new(2);
    let here = cluster.host(0);
    here.ok([
        "run",
        "tiny",
        "--name",
        "p",
        "--publish",
        "127.0.0.1:8080:80",
    ]);
    let why = here.fails(["migrate", "p", "--to", "nowhere"]);
    assert!(why.contains("nowhere"), "{why}");
    let other = cluster.host(1);
    let published = "127.0.0.1:8080:81";
    other.ok(["run", "tiny", "--name", "q", "--publish", published]);
    here.ok(["run", "tiny", "--name", "q"]);
    let why = here.fails(["migrate", "p", "--to", "h1"]);
    assert!(why.contains("8080"), "{why}");
    assert_eq!(here.vm("p").state, VmState::Running);
    let why = here.fails(["migrate", "q", "--to", "h1"]);
    assert!(why.contains("\"q\"") || why.contains("q "), "{why}");
    assert_eq!(here.vm("q").state, VmState::Running);
    assert_eq!(here.sh("q", "hostname"), "q");
    here.ok(["rm", "q"]);
    other.ok(["rm", "q"]);
    here.ok(["rm", "p"]);
    cluster.end();
}
