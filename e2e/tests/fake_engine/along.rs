//! Tests of what goes along with a VM that moves: its ports, data disks and branches, and that it is paused.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{MigrateResponse, MigrationReport, PageCount, VmState, VolumeView};

/// Names of volumes that are a VM's alone.
fn branches(host: &Host) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(host.folder().join("state/volumes")) else {
        return Vec::new();
    };
    let names = entries.map(|it| it.expect("listed").file_name().into_string());
    let names = names.map(|it| it.expect("text"));
    names.filter(|it| it.starts_with("clone-")).collect()
}

fn volumes(host: &Host) -> Vec<String> {
    let all: Vec<VolumeView> = host.json(["volume", "ls"]);
    all.into_iter().map(|it| it.name.to_string()).collect()
}

#[test]
fn a_clone_takes_its_branches_along_and_they_end_with_it_and_its_clones() {
    let mut cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["volume", "create", "f", "1M"]);
    here.ok([
        "run", "tiny", "--name", "p", "--data", "d:1M", "--data", "f:ro",
    ]);
    here.fork("p", 1);
    here.ok(["migrate", "p-1", "--to", "h1"]);
    // Of the one that it writes, and of the one that it reads.
    assert_eq!((branches(here).len(), branches(there).len()), (0, 2));
    assert_eq!(volumes(there), [] as [&str; 0]);
    there.ok(["doctor"]);
    // Its own clones lie over what it brought.
    there.fork("p-1", 1);
    assert_eq!(branches(there).len(), 3);
    let mut vms = there.vms().into_iter();
    let clone = vms.find(|vm| vm.host.is_none() && vm.name.as_str() != "p-1");
    let clone = clone.expect("a clone").name.to_string();
    cluster.kill_daemon(1);
    cluster.replace_daemon(1);
    let (here, there) = (cluster.host(0), cluster.host(1));
    assert_eq!(branches(there).len(), 3);
    // It goes back, and what its clone needs stays.
    there.ok(["migrate", "p-1", "--to", "h0"]);
    assert_eq!((branches(here).len(), branches(there).len()), (2, 3));
    // That is in the way of a second visit.
    let why = here.fails(["migrate", "p-1", "--to", "h1"]);
    assert!(why.contains("clone-"), "{why}");
    there.ok(["rm", &clone]);
    eventually("no branch there", || branches(there).is_empty());
    here.ok(["migrate", "p-1", "--to", "h1"]);
    there.ok(["rm", "p-1"]);
    here.ok(["rm", "p"]);
    for host in [here, there] {
        eventually("no branch", || branches(host).is_empty());
    }
    here.ok(["volume", "rm", "d"]);
    here.ok(["volume", "rm", "f"]);
    cluster.end();
}

#[test]
fn a_port_that_is_taken_there_is_told_of_before_anything_is_sent_and_otherwise_goes_along() {
    let mut cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    let ports = |host: &Host, name: &str| host.vm(name).published.len();
    here.ok(["run", "tiny", "--name", "p", "--publish", "7070:80"]);
    here.ok([
        "run",
        "tiny",
        "--name",
        "v",
        "--volume",
        "d",
        "--publish",
        "7071:80",
    ]);
    there.ok([
        "run",
        "tiny",
        "--name",
        "q",
        "--publish",
        "7070:80",
        "--publish",
        "7071:80",
    ]);
    for (name, port) in [("p", "7070"), ("v", "7071")] {
        let why = here.fails(["migrate", name, "--to", "h1"]);
        assert!(why.contains(port), "{why}");
        assert_eq!(
            (here.vm(name).state, ports(here, name)),
            (VmState::Running, 1)
        );
    }
    assert_eq!(volumes(there), [] as [&str; 0]);
    there.ok(["rm", "q"]);
    for name in ["p", "v"] {
        here.ok(["migrate", name, "--to", "h1"]);
        assert_eq!((ports(here, name), ports(there, name)), (1, 1));
        assert_eq!(here.vm(name).host.as_deref(), Some("h1"));
    }
    // They are free here, and not there.
    here.ok(["run", "tiny", "--name", "q", "--publish", "7070:80"]);
    there.fails(["run", "tiny", "--name", "r", "--publish", "7070:80"]);
    cluster.kill_daemon(1);
    cluster.replace_daemon(1);
    let (here, there) = (cluster.host(0), cluster.host(1));
    eventually("the next daemon", || ports(there, "p") == 1);
    there.fails(["run", "tiny", "--name", "r", "--publish", "7070:80"]);
    there.ok(["rm", "p", "v"]);
    here.ok(["rm", "q"]);
    for host in [here, there] {
        for volume in volumes(host) {
            host.ok(["volume", "rm", &volume]);
        }
    }
    cluster.end();
}

fn moved(host: &Host, to: &str) -> MigrationReport {
    let moved: MigrateResponse = host.json(["migrate", "p", "--to", to]);
    moved.report
}

#[test]
fn the_way_back_is_what_differs_unless_the_daemon_there_is_another() {
    let mut cluster = Cluster::fake_with_steps(2);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let first = moved(cluster.host(0), "h1");
    assert_eq!(first.pages_there, PageCount(0));
    for (at, to) in [(1, "h0"), (0, "h1")] {
        let next = moved(cluster.host(at), to);
        assert!(next.pages_there.0 > 0, "{next:?}");
        assert!(next.pages_ahead.0 < first.pages_ahead.0 / 4, "{next:?}");
    }
    cluster.kill_daemon(0);
    cluster.replace_daemon(0);
    let whole = moved(cluster.host(1), "h0");
    assert_eq!(whole.pages_there, PageCount(0));
    cluster.host(0).ok(["doctor"]);
    // Of one that is no more nothing is needed.
    cluster.host(0).ok(["rm", "p"]);
    cluster.end();
}

#[test]
fn a_copy_stays_where_a_vm_was_and_is_another_vm() {
    let cluster = Cluster::fake_with_steps(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p", "--data", "d:1M"]);
    let why = here.fails(["migrate", "p", "--to", "h1", "--keep-copy", "p"]);
    assert!(why.contains("p"), "{why}");
    assert_eq!(here.vm("p").host, None, "it was refused");
    here.ok(["migrate", "p", "--to", "h1", "--keep-copy", "before"]);
    let (p, copy) = (there.vm("p"), here.vm("before"));
    assert_eq!(
        (p.state, copy.state),
        (VmState::Running, VmState::Checkpoint)
    );
    assert_ne!((p.id, p.member), (copy.id, copy.member));
    // Its volume is a copy here, which the checkpoint lies over.
    here.fails(["volume", "rm", "d"]);
    here.fork("before", 1);
    let clones = here.vms().into_iter();
    let clone = clones.filter(|vm| vm.host.is_none() && vm.state == VmState::Running);
    let clone: Vec<_> = clone.collect();
    assert_eq!(clone.len(), 1);
    assert_ne!((clone[0].id, clone[0].epoch), (p.id, p.epoch));
    assert_eq!(there.sh("p", "echo here"), "here");
    there.ok(["migrate", "p", "--to", "h0"]);
    here.ok(["rm", "--all"]);
    for host in [here, there] {
        eventually("no branch", || branches(host).is_empty());
        host.ok(["volume", "rm", "d"]);
    }
    cluster.end();
}
