//! Forks to other hosts.

use crate::disjoint::CALM;
use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{
    CloneResult, ForkPhase, ForkProgress, ForkResponse, HostProgress, PageCount, VmInspect, VmName,
    VmPart, VmState, VmView,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    thread::sleep,
};

/// Memory and disk, and what the rest of a guest never looks at: more of it than a
/// host reads ahead.
pub(crate) const FILL: &str = "mkdir -p /m /d && mount -t tmpfs m /m && \
    dd if=/dev/urandom of=/m/a bs=60k count=100 2>/dev/null && dd if=/dev/urandom of=/d/a bs=60k count=5 2>/dev/null";
pub(crate) const FILES: &str = "/m/a /d/a";
pub(crate) const PARTLY: i32 = 3;

/// Two hosts, and a VM `p` on the first.
fn two_with_p() -> Cluster {
    let cluster = Cluster::new(2);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    cluster.host(0).sh("p", FILL);
    cluster
}

pub(crate) fn made(answer: ForkResponse) -> Vec<VmView> {
    let clones = answer.clones.into_iter();
    let made = clones.map(|clone| match clone {
        CloneResult::Vm(vm) => *vm,
        CloneResult::Error(error) => panic!("a clone was not made: {error}"),
    });
    made.collect()
}

fn names(vms: &[VmView]) -> BTreeSet<VmName> {
    vms.iter().map(|vm| vm.name.clone()).collect()
}

/// Returns the phase of each host in the last fork of `p`.
pub(crate) fn last_fork(from: &Host) -> BTreeMap<String, HostProgress> {
    let told = from.get("/v1/vms/p/forks");
    let forks: Vec<ForkProgress> = serde_json::from_str(&told).expect("JSON");
    let hosts = forks.into_iter().next_back().map(|fork| fork.hosts);
    let named = hosts.into_iter().flatten();
    named
        .map(|host| (host.host.clone().unwrap_or("here".into()), host))
        .collect()
}

#[test]
fn clones_on_another_host_are_of_one_instant_and_go_their_own_ways() {
    let cluster = two_with_p();
    let (here, there) = (cluster.host(0), cluster.host(1));
    let before = here.sums("p", FILES);
    let answer: ForkResponse = here.json(["fork", "p", "-n", "4", "--to", "h1"]);
    let times = &answer.report;
    assert!(
        times.pause_us > 0
            && times.pause_us < times.running_us
            && times.running_us < times.ready_us,
        "{times:?}"
    );
    assert!(times.load_us > 0, "{times:?}");
    let clones = made(answer);
    // What their parent does from now on is nothing to them.
    here.sh("p", "echo later > /m/a; echo later > /d/a; sync");
    assert_eq!(clones.len(), 4);
    assert!(clones.iter().all(|vm| vm.host.as_deref() == Some("h1")));
    assert_eq!(names(&there.vms()), names(&clones));
    let addresses: BTreeSet<_> = clones.iter().map(|vm| vm.address.ip).collect();
    assert_eq!(addresses.len(), 4);
    for clone in &clones {
        let name = clone.name.as_str();
        assert_eq!(there.sums(name, FILES), before, "{name}");
        assert_eq!(there.sh(name, "hostname"), name);
        there.sh(
            name,
            &format!("echo {name} > /m/own; echo {name} > /d/own; sync"),
        );
    }
    for clone in &clones {
        let name = clone.name.as_str();
        assert_eq!(
            there.sh(name, "cat /m/own /d/own"),
            format!("{name}\n{name}")
        );
        assert_eq!(there.sums(name, FILES), before, "{name}");
    }
    here.sh("p", "! test -e /m/own && ! test -e /d/own");

    // Their parent's host knows of them, and which host to ask.
    let seen = here.vms();
    let elsewhere: Vec<_> = seen.into_iter().filter(|vm| vm.host.is_some()).collect();
    assert_eq!(names(&elsewhere), names(&clones));
    let name = clones[0].name.as_str();
    let told = here.exec_refused(name);
    assert!(told.contains("h1"), "{told}");
    here.ok(["rm", name]);
    assert_eq!(there.vms().len(), 3);

    // A clone there is a VM like any other: it forks, and its clones are right.
    let parent = clones[1].name.as_str();
    let own = there.fork(parent, 1).remove(0);
    assert_eq!(there.sums(own.name.as_str(), FILES), before);
    let own = there.sh(own.name.as_str(), "cat /d/own");
    assert_eq!(own, parent);
    cluster.end();
}

#[test]
fn settled_clones_outlive_their_parents_host_and_others_say_what_they_lost() {
    let mut cluster = two_with_p();
    let before = cluster.host(0).sums("p", FILES);
    let fork = |settle: &[&str]| {
        let words = ["fork", "p", "--to", "h1"].iter().chain(settle);
        let words: Vec<_> = words.copied().collect();
        made(cluster.host(0).json(words)).remove(0)
    };
    let [kept, lost] = [fork(&["--settle"]), fork(&[])].map(|vm| vm.name.to_string());
    let awaits = |name: &str| {
        let seen: VmInspect = cluster.host(1).json(["inspect", name]);
        seen.vm.awaits
    };
    eventually("a settled clone", || awaits(&kept).is_empty());
    let away = awaits(&lost);
    let parts: Vec<_> = away.iter().map(|it| it.part).collect();
    assert_eq!(parts, [VmPart::Memory, VmPart::Disk]);
    assert!(away.iter().all(|it| it.away > PageCount(0)), "{away:?}");

    let host = cluster.address(0).to_string();
    cluster.die(0);
    let there = cluster.host(1);
    assert_eq!(there.sums(&kept, FILES), before);
    // It may want a page before it is known that none comes: it gets an error.
    let reads = there.start(["exec", &lost, "--", "md5sum", "/m/a"], "");
    there.wait_stopped(&lost);
    assert_ne!(reads.wait().code, Some(0));
    let failure = there.vm(&lost).failure.expect("a reason");
    assert!(
        failure.contains("pages are lost with the host at"),
        "{failure}"
    );
    assert!(
        failure.contains(&host) && failure.contains("numbers"),
        "{failure}"
    );
    let seen: VmInspect = there.json(["inspect", &lost]);
    assert_eq!(seen.vm.failure, Some(failure));
    assert_eq!(there.sums(&kept, FILES), before);
    assert_eq!(there.vm(&kept).state, VmState::Running);
    there.ok(["rm", "--all"]);
    assert!(there.vms().is_empty());
}

#[test]
fn a_host_that_cannot_be_reached_costs_its_own_share() {
    let cluster = two_with_p();
    let here = cluster.host(0);
    let before = here.sums("p", FILES);
    cluster.cut(1);
    let out = tempfile::NamedTempFile::new().expect("a file");
    let fork = here.on_terminal("fork p -n 2 --to here,h1 -o json", out.path());
    // While it is tried: what each is to make, and how far it is.
    eventually("a host that has not got the machine", || {
        let there = last_fork(here).remove("h1");
        there.is_some_and(|host| (host.phase, host.granted) == (ForkPhase::Granted, 1))
    });
    let shown = fork.wait().exited(PARTLY).text();
    assert!(
        shown.contains("h1: 1 granted, no machine there yet"),
        "{shown}"
    );
    let mut over = last_fork(here);
    assert_eq!(over["here"].phase, ForkPhase::Ready);
    let failed = over.remove("h1").expect("still told of");
    assert_eq!((failed.phase, failed.failed), (ForkPhase::Failed, 1));
    assert!(failed.why[0].contains("h1"), "{failed:?}");
    let told = fs::read(&out).expect("printed");
    let answer: ForkResponse = serde_json::from_slice(&told).expect("JSON alone");
    let [CloneResult::Vm(vm), CloneResult::Error(error)] = answer.clones.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!(vm.host, None);
    assert!(error.message.contains("h1"), "{error}");
    assert_eq!(here.sums(vm.name.as_str(), FILES), before);
    cluster.mend(1);
    let clones = made(here.json(["fork", "p", "-n", "2", "--to", "here,h1"]));
    let hosts: Vec<_> = clones.iter().map(|vm| vm.host.as_deref()).collect();
    assert_eq!(hosts, [None, Some("h1")]);
    let told = here.fails(["fork", "p", "--to", "nowhere"]);
    assert!(told.contains("nowhere"), "{told}");
    cluster.end();
}

#[test]
fn what_a_clone_writes_over_its_disk_is_fetched_from_nowhere() {
    let cluster = Cluster::new(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p"]);
    here.sh(
        "p",
        "mkdir /d && dd if=/dev/urandom of=/d/a bs=1M count=24 2>/dev/null && sync && \
         echo 3 >/proc/sys/vm/drop_caches",
    );
    let clone = made(here.json(["fork", "p", "--to", "h1"])).remove(0);
    let name = clone.name.as_str();
    let away = || {
        let seen: VmInspect = there.json(["inspect", name]);
        let disk = seen
            .vm
            .awaits
            .into_iter()
            .find(|it| it.part == VmPart::Disk);
        disk.expect("not all of it has come").away
    };
    // Whole blocks, and what finds them has come once some were written.
    let write = |from: u32| {
        let dd = format!(
            "dd if=/dev/zero of=/d/a bs=64k seek={from} count=32 conv=notrunc oflag=direct \
             2>/dev/null; sync"
        );
        there.sh(name, &dd);
    };
    [0, 32].into_iter().for_each(write);
    // What lies beside it is asked for in advance, and comes a little later.
    eventually("nothing more to come", || {
        let before = away();
        sleep(CALM);
        away() == before
    });
    // On a busy machine one of these may still be late, but not one beside each write. Neither was
    // asked for ahead of the one before, nor is at the end of the file.
    let undisturbed = [256, 96, 320, 160].into_iter().find(|from| {
        let before = away();
        write(*from);
        away() == before
    });
    assert!(
        undisturbed.is_some(),
        "pages of the disk came that were written over"
    );
    write(256);
    let zeros =
        "dd if=/d/a bs=64k skip=256 count=32 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c";
    assert_eq!(there.sh(name, zeros), "0");
    let before = away();
    there.sh(
        name,
        "dd if=/d/a of=/dev/null bs=64k skip=192 count=32 iflag=direct",
    );
    assert!(away() < before, "or what is read would not be seen either");
    cluster.end();
}
