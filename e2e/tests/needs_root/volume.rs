//! Volumes with a real guest: a disk outlives its VM, forks read it and never write it.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::VolumeView;

fn seen(host: &Host, name: &str) -> VolumeView {
    host.json(["volume", "inspect", name])
}

/// Reads a file of the guest from its disk, not from its page cache.
fn read(host: &Host, vm: &str, path: &str) -> String {
    host.sh(
        vm,
        &format!("echo 3 >/proc/sys/vm/drop_caches; cat {path} 2>/dev/null || echo none"),
    )
}

#[test]
fn a_volume_outlives_its_vm_and_its_servers_and_forks_lie_over_it() {
    let host = Host::new();
    let run = |name: &str| {
        let words = ["run", "tiny", "--name", name, "--volume", "d:1G"];
        host.start(words.iter(), "").wait().exited(0);
    };
    run("p");
    let volume = seen(&host, "d");
    assert_eq!(volume.size.0, 1 << 30);
    let first = volume.epoch;
    assert_eq!(volume.vm.as_ref().map(|vm| vm.as_str()), Some("p"));
    host.sh("p", "echo kept >/root/file; sync");

    // Another VM is refused, and a user of this host that is not a VM's sees nothing.
    let complaint = host.fails(["run", "tiny", "--volume", "d"]);
    assert!(complaint.contains("p has volume d"), "{complaint}");
    host.fails(["volume", "rm", "d"]);
    host.fails(["volume", "resize", "d", "2G"]);
    host.fails(["volume", "export", "d", "/tmp/never"]);

    // A fork: what is written later stays with its writer.
    host.fork("p", 2);
    host.sh("p", "echo parent >/root/parent; sync");
    host.sh("p-1", "echo clone >/root/clone; sync");
    for clone in ["p-1", "p-2"] {
        assert_eq!(read(&host, clone, "/root/file"), "kept");
        assert_eq!(read(&host, clone, "/root/parent"), "none");
    }
    assert_eq!(read(&host, "p", "/root/clone"), "none");
    assert_eq!(read(&host, "p-2", "/root/clone"), "none");
    let [snapshot] = &seen(&host, "d").snapshots[..] else {
        panic!("{:?}", seen(&host, "d"));
    };
    assert_eq!(snapshot.vms.len(), 2);
    // Clones of a clone lie over the same, and a checkpoint over a later one.
    host.fork("p-1", 1);
    assert_eq!(read(&host, "p-3", "/root/clone"), "clone");
    host.ok(["checkpoint", "p", "--name", "c"]);
    assert_eq!(seen(&host, "d").snapshots.len(), 2);
    host.sh("p", "echo later >/root/later; sync");
    let woken = host.fork("c", 1).remove(0).name;
    assert_eq!(read(&host, woken.as_str(), "/root/parent"), "parent");
    assert_eq!(read(&host, woken.as_str(), "/root/later"), "none");

    // Whichever server dies, the guests go on, and nothing that was flushed is gone.
    host.kill_9("forkyard-blockd");
    host.sh("p", "echo after >/root/after; sync");
    assert_eq!(read(&host, "p-2", "/root/file"), "kept");
    host.kill_9("forkyardd");
    host.sh("p", "echo again >/root/again; sync");
    assert_eq!(read(&host, "p-1", "/root/clone"), "clone");
    host.fork("p", 1);

    // A user's snapshot is of the disk as it is, and stays until it is removed.
    host.ok(["volume", "snapshot", "d", "monday"]);
    host.sh("p", "rm /root/file; sync");
    // A checkpoint's disk keeps its size, whatever becomes of the volume.
    host.ok(["rm", "p"]);
    host.ok(["volume", "resize", "d", "900M"]);
    let woken = host.fork("c", 1).remove(0).name;
    let last = "dd if=/dev/vda bs=4096 skip=262143 count=1 2>/dev/null | wc -c";
    assert_eq!(host.sh(woken.as_str(), last), "4096");
    host.ok(["volume", "resize", "d", "1G"]);
    host.ok(["rm", "--all"]);
    let volume = seen(&host, "d");
    assert_eq!(volume.vm, None);
    let names: Vec<_> = volume.snapshots.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["monday"], "those of forks are gone");

    // A VM of another name boots on what the first one left.
    run("q");
    assert_eq!(seen(&host, "d").epoch, first + 1);
    assert_eq!(
        host.sh(
            "q",
            "hostname; cat /root/after /root/again; ls /root/file 2>&1 | wc -l"
        ),
        "q\nafter\nagain\n1"
    );
    host.ok(["stop", "q"]);
    host.ok(["start", "q"]);
    assert_eq!(seen(&host, "d").epoch, first + 2);
    assert_eq!(read(&host, "q", "/root/after"), "after");
    host.ok(["rm", "q"]);
    host.ok(["volume", "rm", "d"]);
    host.ok(["doctor"]);
    host.end();
}

#[test]
fn a_disk_goes_on_at_another_node_with_all_that_its_guest_had_written() {
    let mut cluster = Cluster::of_nodes(2);
    cluster.join(1);
    let (a, b) = (cluster.host(0), cluster.host(1));
    let run = ["run", "tiny", "--name", "p", "--volume", "d:256M"];
    a.ok(run);
    a.sh("p", "echo kept >/root/file; sync");
    a.ok(["rm", "p"]);
    b.ok(run);
    assert_eq!(read(b, "p", "/root/file"), "kept");
    let node = |host: &Host| seen(host, "d").node;
    assert_eq!(
        (node(a).as_deref(), node(b).as_deref()),
        (Some("h1"), Some("h1"))
    );
    // It is one disk, and has one VM.
    let why = a.fails(["run", "tiny", "--name", "q", "--volume", "d"]);
    assert!(why.contains("p has volume d"), "{why}");
    b.sh("p", "echo there >/root/file; sync");
    b.ok(["rm", "p"]);
    a.ok(run);
    assert_eq!(read(a, "p", "/root/file"), "there");
    a.ok(["rm", "p"]);
    b.ok(["volume", "rm", "d"]);
    a.ok(["volume", "rm", "d"]);
    eventually("no volume", || {
        b.json::<Vec<VolumeView>>(["volume", "ls"]).is_empty()
    });
    cluster.end();
}
