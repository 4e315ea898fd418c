//! Forks to other hosts that break while they are made, and while their pages come.

use crate::cluster::{FILES, FILL, PARTLY, made};
use forkyard_e2e::{Cluster, Host, Links, Running, eventually, is_sound, nothing_left_over};
use forkyard_types::{CloneResult, ForkResponse, VmInspect, VmState, VmView};
use std::{fs, io::Write, thread::sleep, time::Duration};

const QEMU: &str = "qemu-system-x86_64";
/// Less than a host may be silent.
const A_WHILE: Duration = Duration::from_secs(3);
/// Longer than one takes to take in what has arrived, or has its turn when others do.
const A_MOMENT: Duration = Duration::from_millis(300);
/// Pages that a clone needs to start, and fewer than it gets.
const SOME: u64 = 3000;
/// Mbit/s at which these come soon, but not all at once.
const LESS: u32 = 50;
/// At which reading takes long.
const SLOW: u32 = 4;
const FAST: u32 = 10_000;

/// Has the first host run `p`, with so many megabytes more than it takes to start; sums
/// of its files.
fn run_p(cluster: &Cluster, megabytes: u32) -> String {
    let host = cluster.host(0);
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", FILL);
    let more = format!("dd if=/dev/urandom of=/m/more bs=1M count={megabytes} 2>/dev/null");
    host.sh("p", &more);
    host.sums("p", &files())
}

fn files() -> String {
    format!("{FILES} /m/more")
}

/// A clone on another host, which reads what it has to wait for.
struct Reader {
    host: usize,
    name: String,
    reads: Running,
}

impl Reader {
    /// One on each of these hosts, when some of what they read has come.
    fn on(cluster: &Cluster, hosts: &[usize]) -> Vec<Self> {
        let names: Vec<_> = hosts.iter().map(|host| format!("h{host}")).collect();
        let (count, names) = (hosts.len().to_string(), names.join(","));
        let words = ["fork", "p", "-n", &count, "--to", &names];
        let clones = made(cluster.host(0).json(words));
        let read = hosts.iter().zip(clones).map(|(host, clone)| {
            let name = clone.name.to_string();
            let there = cluster.host(*host);
            let before = away(there, &name);
            cluster.slow(*host, SLOW);
            let reads = there.start(["exec", &name, "--", "cat", "/m/more"], "");
            eventually("pages to come", || away(there, &name) < before);
            let host = *host;
            Self { host, name, reads }
        });
        read.collect()
    }

    /// Checks that the VM is ended for want of pages, says of which, and is
    /// removed.
    #[track_caller]
    fn ends_lost(self, cluster: &Cluster, from: &str) {
        let (here, there) = (cluster.host(0), cluster.host(self.host));
        there.wait_stopped(&self.name);
        assert_ne!(self.reads.wait().code, Some(0), "it read what never came");
        let failure = there.vm(&self.name).failure.expect("a reason");
        for part in ["pages are lost with", "numbers", from] {
            assert!(failure.contains(part), "{part}: {failure}");
        }
        // What ended a clone of this host's is told here, too.
        cluster.mend(self.host);
        cluster.slow(self.host, FAST);
        eventually("the news of it", || {
            let vm = here.vm(&self.name);
            vm.state == VmState::Stopped && vm.silence.is_none()
        });
        here.ok(["rm", &self.name]);
    }
}

/// Pages that a clone lacks.
fn away(there: &Host, name: &str) -> u64 {
    let seen: VmInspect = there.json(["inspect", name]);
    seen.vm.awaits.iter().map(|it| it.away.0).sum()
}

#[test]
fn a_pager_that_dies_or_a_link_that_is_cut_while_pages_come_ends_what_lacks_them_and_nothing_else()
{
    let cluster = Cluster::new(3);
    let sums = run_p(&cluster, 6);
    let [here, one] = [0, 1].map(|number| cluster.host(number));
    let is_whole = |clone: &VmView| {
        assert_eq!(one.sums(clone.name.as_str(), &files()), sums);
    };

    // Cut off for a short while, in the middle: nothing is lost.
    let settled = ["fork", "p", "--to", "h1", "--settle", "--settled", "-ojson"];
    let came = || {
        let links = Links::of(one);
        links.all("pages_waited") + links.all("pages_ahead")
    };
    cluster.slow(1, LESS);
    let fork = here.start(settled, "");
    eventually("some of it", || came() > SOME);
    cluster.cut(1);
    // What has arrived by then is not all taken in.
    let mut before = came();
    eventually("the last of what had arrived", || {
        sleep(A_MOMENT);
        let now = came();
        std::mem::replace(&mut before, now) == now
    });
    sleep(A_WHILE);
    assert_eq!(came(), before, "or nothing was cut");
    assert!(!fork.is_over());
    cluster.slow(1, FAST);
    cluster.mend(1);
    let answer = serde_json::from_slice(&fork.wait().exited(0).stdout);
    let kept = made(answer.expect("JSON")).remove(0);
    is_whole(&kept);

    let reader = Reader::on(&cluster, &[1]).remove(0);
    one.kill_9("forkyard-pager");
    reader.ends_lost(&cluster, "this host's pager");
    is_whole(&kept);

    // One is cut off for long, and hears nothing of the end of the pager that the
    // other has its pages from.
    let readers = Reader::on(&cluster, &[1, 2]);
    cluster.cut(2);
    here.kill_9("forkyard-pager");
    let lender = cluster.address(0).to_string();
    for reader in readers {
        reader.ends_lost(&cluster, &lender);
    }
    is_whole(&kept);
    assert_eq!(here.sums("p", &files()), sums);
    let answer = here.start(settled, "").wait().exited(0);
    let answer = serde_json::from_slice(&answer.stdout);
    is_whole(&made(answer.expect("JSON")).remove(0));
    cluster.end();
}

#[test]
fn a_qemu_killed_or_a_disk_full_on_either_host_fails_its_share_of_a_fork_and_no_more() {
    const FORK: [&str; 7] = ["fork", "p", "-n", "2", "--to", "h1", "-ojson"];
    let mut cluster = Cluster::new(2);
    for host in [0, 1] {
        cluster.confine(host, 48);
    }
    let sums = run_p(&cluster, 1);
    let (here, there) = (cluster.host(0), cluster.host(1));

    // Killed while it lacks what it needs to start.
    cluster.slow(1, SLOW);
    let fork = here.start(FORK, "");
    eventually("both of them to be started", || {
        there.processes(QEMU).len() == 2
    });
    there.processes(QEMU)[0].kill();
    cluster.slow(1, FAST);
    let outcome = fork.wait().exited(PARTLY);
    let answer: ForkResponse = serde_json::from_slice(&outcome.stdout).expect("JSON");
    let whole = answer.clones.iter().filter_map(|clone| match clone {
        CloneResult::Vm(vm) => Some(vm),
        CloneResult::Error(_) => None,
    });
    let whole: Vec<_> = whole.collect();
    assert_eq!((whole.len(), answer.clones.len()), (1, 2));
    let name = whole[0].name.as_str();
    assert_eq!(there.sums(name, &files()), sums);
    is_sound(there);
    here.ok(["rm", name]);
    eventually("nothing of it there", || there.vms().is_empty());

    for (full, fails) in [(here, "this host"), (there, "h1")] {
        let filler = full.folder().join("state/filler");
        let fill = filler.clone();
        full.within(move || {
            let mut file = fs::File::create(fill).expect("a file");
            // To the last byte.
            while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
        });
        for _ in 0..2 {
            let told = here.fails(FORK);
            assert!(
                told.contains("full") || told.contains("space"),
                "{fails}: {told}"
            );
        }
        assert_eq!((here.vms().len(), there.vms().len()), (1, 0), "{fails}");
        for host in [here, there] {
            nothing_left_over(host);
        }
        full.within(move || fs::remove_file(filler))
            .expect("room again");
        // Had it written meanwhile, it would have stood still until now.
        assert_eq!(here.sums("p", &files()), sums);
        let clones = made(here.json(["fork", "p", "-n", "2", "--to", "h1"]));
        for clone in clones {
            let name = clone.name.as_str();
            assert_eq!(there.sums(name, &files()), sums, "{fails}");
            here.ok(["rm", name]);
        }
    }
    cluster.end();
}
