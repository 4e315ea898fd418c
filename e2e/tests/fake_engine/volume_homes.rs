//! Volumes in clusters: the cluster says at which node each is at home, and nothing else does.

use super::volume_moves::{Dying, blockd, content, make, read, sweep, volume, write};
use forkyard_e2e::{Cluster, Host, eventually, is_sound};
use forkyard_types::{Term, VolumeView};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Volumes that all nodes are said to have, from any node: name, node, and where it is at home if not there.
fn listed(host: &Host) -> Vec<(String, String, Option<String>)> {
    let all: Vec<VolumeView> = host.json(["volume", "ls"]);
    let row = |it: VolumeView| (it.name.to_string(), it.node.unwrap_or_default(), it.at);
    all.into_iter().map(row).collect()
}

fn row(name: &str, node: &str, at: Option<&str>) -> (String, String, Option<String>) {
    (name.to_owned(), node.to_owned(), at.map(str::to_owned))
}

#[test]
fn in_a_cluster_a_volume_is_at_home_at_one_node_and_is_brought_to_its_vm() {
    let mut cluster = Cluster::fake_of_nodes(2);
    // One that was made before its host became a node.
    blockd_makes_a_volume(cluster.host(1), "x");
    cluster.join(1);
    let mut now = content(1);
    make(cluster.host(0), &now);
    let (a, b) = (cluster.host(0), cluster.host(1));
    eventually("both to be known", || {
        listed(a) == [row("d", "h0", None), row("x", "h1", None)]
    });
    assert_eq!(listed(b), listed(a));
    // Any node may be asked.
    b.ok(["volume", "snapshot", "d", "monday"]);
    let seen = volume(b, "d");
    assert_eq!(
        (seen.node.as_deref(), seen.term),
        (Some("h0"), Some(Term(1)))
    );
    assert_eq!(seen.snapshots.len(), 1);
    let why = b.fails(["volume", "create", "d", "1M"]);
    assert!(why.contains("is at h0"), "{why}");
    let file = b.folder().join("d.img");
    let why = b.fails(["volume", "export", "d", file.to_str().expect("text")]);
    assert!(why.contains("volume bring"), "{why}");
    write(a, &mut now, 5, b'a');
    // A VM of the other node gets it.
    let run = ["run", "tiny", "--name", "p", "--data", "d"];
    b.ok(run);
    let both = [
        row("d", "h0", Some("h1")),
        row("d", "h1", None),
        row("x", "h1", None),
    ];
    assert_eq!(listed(a), both);
    assert_eq!(volume(a, "d").term, Some(Term(2)));
    let why = a.fails(["run", "tiny", "--name", "q", "--data", "d"]);
    assert!(why.contains("p has volume d"), "{why}");
    b.ok(["rm", "p"]);
    assert!(read(b, None) == now && read(b, Some("monday")) == content(1));
    write(b, &mut now, 6, b'b');
    // Asked for at a node that has a copy, it is moved by the node that has it.
    a.ok(["volume", "move", "d", "--to", "h0"]);
    assert_eq!(volume(b, "d").term, Some(Term(3)));
    assert!(read(a, None) == now);
    a.ok(["run", "tiny", "--name", "p", "--data", "d"]);
    // It goes along with its VM, in the next term, and from there again.
    a.ok(["migrate", "p", "--to", "h1"]);
    b.ok(["rm", "p"]);
    a.ok(["volume", "bring", "d"]);
    assert_eq!(volume(a, "d").term, Some(Term(5)));
    assert!(read(a, None) == now);
    // The copy there is removed there, and the volume stays.
    b.ok(["volume", "rm", "d"]);
    assert!(read(a, None) == now);
    b.ok(["volume", "rm", "d"]);
    eventually("no volume", || listed(a) == [row("x", "h1", None)]);
    a.ok(["volume", "rm", "x"]);
    assert_eq!(listed(a), []);
    cluster.end();
}

/// Makes an empty volume on a host on which no daemon runs.
fn blockd_makes_a_volume(host: &Host, name: &str) {
    let (folder, run) = (
        host.folder().join("state/volumes"),
        host.folder().join("run"),
    );
    fs::create_dir_all(&run).expect("made");
    let socket = run.join("blockd.sock");
    let mut server = Command::new(host.dist().join("bin/forkyard-blockd"));
    server.arg("--socket").arg(&socket).arg("serve");
    server
        .arg("--folder")
        .arg(folder)
        .arg("--nbd")
        .arg(run.join("nbd.sock"));
    let mut server = server.stdout(Stdio::null()).spawn().expect("started");
    eventually("a server of volumes", || socket.exists());
    blockd(host, &["create", name, "1M"]);
    server.kill().expect("ours");
    server.wait().expect("reaped");
    fs::remove_file(run.join("nbd.sock")).expect("ours");
}

#[test]
fn without_the_authority_nothing_new_opens_and_what_runs_goes_on() {
    let mut cluster = Cluster::fake_of_nodes(2);
    blockd_makes_a_volume(cluster.host(1), "d");
    let mut now = content(1);
    make(cluster.host(0), &now);
    cluster.join(1);
    let (a, b) = (cluster.host(0), cluster.host(1));
    eventually("both to be known", || {
        listed(a) == [row("d", "h0", None), row("d", "h1", None)]
    });
    // Of two of one name it is not known which is meant.
    for (host, words) in [
        (a, &["run", "tiny", "--name", "p", "--data", "d"][..]),
        (b, &["run", "tiny", "--name", "p", "--volume", "d"]),
        (b, &["volume", "bring", "d", "--from", "h0"]),
    ] {
        let said = host.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
        let is_told = said.stderr.contains("h0 and at h1") || said.stderr.contains("at home here");
        assert!(is_told, "{words:?}: {}", said.stderr);
    }
    // The node that has one removes it.
    b.ok(["volume", "rm", "d"]);
    eventually("one of them", || listed(a) == [row("d", "h0", None)]);
    a.ok(["volume", "create", "e", "1M"]);
    a.ok(["run", "tiny", "--name", "p", "--data", "e"]);
    a.ok(["run", "tiny", "--name", "s", "--data", "d"]);
    a.ok(["stop", "s"]);
    cluster.stop_etcd();
    let (a, b) = (cluster.host(0), cluster.host(1));
    for words in [
        &["start", "s"][..],
        &["volume", "create", "f", "1M"],
        &["volume", "move", "e", "--to", "h1"],
    ] {
        let said = a.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
    }
    let said = b
        .start(["run", "tiny", "--name", "q", "--data", "d"], "")
        .wait();
    assert_ne!(said.code, Some(0));
    assert_eq!(a.sh("p", "echo here"), "here");
    cluster.start_etcd();
    let a = cluster.host(0);
    eventually("it to go on", || {
        a.start(["start", "s"], "").wait().code == Some(0)
    });
    a.ok(["rm", "p", "s"]);
    write(a, &mut now, 8, b'x');
    eventually("it to be brought", || {
        cluster
            .host(1)
            .start(["volume", "bring", "d"], "")
            .wait()
            .code
            == Some(0)
    });
    assert!(read(cluster.host(1), None) == now);
    let (a, b) = (cluster.host(0), cluster.host(1));
    a.ok(["volume", "rm", "e"]);
    a.ok(["volume", "rm", "d"]);
    b.ok(["volume", "rm", "d"]);
    cluster.end();
}

#[test]
fn a_node_killed_at_any_step_of_a_move_finds_out_from_the_cluster_who_has_the_volume() {
    let mut cluster = Cluster::fake_of_nodes(2);
    cluster.join(1);
    let mut now = content(1);
    make(cluster.host(0), &now);
    cluster.host(0).ok(["volume", "snapshot", "d", "monday"]);
    sweep(&mut cluster, (Dying::Daemon(0), 3), &mut now);
    sweep(&mut cluster, (Dying::Daemon(1), 3), &mut now);
    for number in [1, 0] {
        is_sound(cluster.host(number));
        cluster.host(number).ok(["volume", "rm", "d"]);
    }
    cluster.end();
}

#[test]
fn a_promoted_copy_is_the_clusters_volume_and_the_former_home_learns_of_it() {
    let mut cluster = Cluster::fake_of_nodes(2);
    cluster.join(1);
    let mut now = content(1);
    let a = cluster.host(0);
    make(a, &now);
    write(a, &mut now, 4, b'm');
    a.ok(["volume", "mirror", "d", "h1", "--away", "go-on"]);
    let why = a.fails(["volume", "move", "d", "--to", "h1"]);
    assert!(why.contains("flush by flush"), "{why}");
    eventually("all of it to be held", || {
        let held = volume(a, "d").mirrors;
        held.iter().any(|it| it.is_there && it.behind == 0)
    });
    cluster.die(0);
    let b = cluster.host(1);
    b.ok(["volume", "promote", "d"]);
    assert!(read(b, None) == now);
    b.ok(["run", "tiny", "--name", "p", "--data", "d"]);
    assert_eq!(volume(b, "d").term, Some(Term(2)));
    cluster.start(0);
    let (a, b) = (cluster.host(0), cluster.host(1));
    eventually("the former home to learn of it", || {
        listed(a) == [row("d", "h0", Some("h1")), row("d", "h1", None)]
    });
    let why = a.fails(["run", "tiny", "--name", "q", "--data", "d"]);
    assert!(why.contains("p has volume d"), "{why}");
    b.ok(["rm", "p"]);
    a.ok(["volume", "rm", "d"]);
    b.ok(["volume", "rm", "d"]);
    cluster.end();
}
