//! Data disks, as far as they are the same with any machine: which volumes, branches and snapshots
//! there are, and what becomes of them.

use forkyard_e2e::{Host, eventually, is_sound, sweep};
use forkyard_types::VolumeView;

const RUN: [&str; 10] = [
    "run", "tiny", "--name", "p", "--data", "d:1M", "--data", "e:1M", "--data", "f:ro",
];

fn volumes(host: &Host) -> Vec<VolumeView> {
    host.json(["volume", "ls"])
}

/// Names of the branches that clones write.
fn branches(host: &Host) -> Vec<String> {
    let folder = host.folder().join("state/volumes");
    let entries = std::fs::read_dir(folder).expect("there are volumes");
    let names = entries.map(|it| it.expect("listed").file_name().into_string());
    let names = names.map(|it| it.expect("text"));
    names.filter(|it| it.starts_with("clone-")).collect()
}

/// Names of a volume's snapshots, and how many VMs and checkpoints lie over each.
fn snapshots(host: &Host, name: &str) -> Vec<usize> {
    let seen: VolumeView = host.json(["volume", "inspect", name]);
    seen.snapshots.iter().map(|it| it.vms.len()).collect()
}

#[test]
fn clones_write_branches_that_stay_as_long_as_something_lies_over_them() {
    let host = Host::fake();
    host.ok(["volume", "create", "f", "1M"]);
    host.ok(RUN);
    let names: Vec<_> = volumes(&host)
        .into_iter()
        .map(|it| (it.name.to_string(), it.vm))
        .collect();
    assert_eq!(names.len(), 3);
    assert!(
        names[..2]
            .iter()
            .all(|it| it.1.as_ref().is_some_and(|vm| vm.as_str() == "p"))
    );
    assert_eq!(names[2].1, None, "what is read has no writer");
    assert_eq!(snapshots(&host, "f"), [1]);

    host.fork("p", 2);
    assert_eq!(branches(&host).len(), 4);
    assert_eq!(
        (snapshots(&host, "d"), snapshots(&host, "f")),
        (vec![2], vec![3])
    );
    // Branches are no volumes of a user's.
    assert_eq!(volumes(&host).len(), 3);
    // A clone's clones lie over its branches, also when it has gone.
    host.fork("p-1", 1);
    assert_eq!(branches(&host).len(), 6);
    host.ok(["rm", "p-1"]);
    assert_eq!(branches(&host).len(), 6, "p-3 lies over those of p-1");
    assert_eq!(snapshots(&host, "d"), [2]);
    // So do checkpoints, and what is made of them.
    host.ok(["checkpoint", "p-3", "--name", "c"]);
    host.ok(["rm", "p-2", "p-3"]);
    assert_eq!(branches(&host).len(), 4);
    host.fork("c", 2);
    assert_eq!(branches(&host).len(), 8);
    for what in ["d", "f"] {
        host.fails(["volume", "rm", what]);
    }
    // A new server finds all of it.
    host.kill_9("forkyardd");
    eventually("the next daemon", || host.vms().len() == 4);
    host.kill_9("forkyard-blockd");
    assert_eq!(branches(&host).len(), 8);
    host.ok(["stop", "p"]);
    host.ok(["start", "p"]);
    host.fork("p", 1);
    host.fails(["substrate", "dock", "p", "--name", "s", "--kind", "public"]);
    host.ok(["rm", "--all"]);
    eventually("no branch", || branches(&host).is_empty());
    for name in ["d", "e", "f"] {
        assert_eq!(snapshots(&host, name), [] as [usize; 0]);
        host.ok(["volume", "rm", name]);
    }
    host.end();
}

#[test]
fn many_read_a_snapshot_that_one_goes_on_writing() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "w", "--data", "d:1M"]);
    host.ok(["volume", "snapshot", "d", "monday"]);
    for name in ["a", "b"] {
        host.ok(["run", "tiny", "--name", name, "--data", "d@monday"]);
    }
    host.ok(["run", "tiny", "--name", "c", "--data", "d:ro"]);
    assert_eq!(snapshots(&host, "d"), [2, 1]);
    let complaint = host.fails(["volume", "snapshot", "d", "monday", "--rm"]);
    assert!(complaint.contains("lies over"), "{complaint}");
    for (words, wanted) in [
        (&["--data", "d"][..], "w has volume d"),
        (&["--data", "nosuch"], "nosuch"),
        (&["--data", "nosuch:ro"], "nosuch"),
        (&["--data", "d@nosuch"], "no snapshot called nosuch"),
        (&["--data", "e:1M:ro"], "read alone"),
        (&["--data", "e:1M", "--data", "e"], "two disks"),
        (&["--volume", "e", "--data", "e"], "two disks"),
        (&["--data", "a-name-of-21-letters1:1M"], "more than 20"),
    ] {
        let words = [&["run", "tiny"], words].concat();
        let said = host.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.stderr.contains(wanted), "{words:?}: {}", said.stderr);
    }
    assert_eq!(volumes(&host).len(), 1, "what was refused left nothing");
    host.ok(["rm", "--all"]);
    assert_eq!(snapshots(&host, "d"), [0], "a user's stays");
    host.ok(["volume", "rm", "d"]);
    host.end();
}

#[test]
fn doctor_finds_what_was_left_of_volumes_and_metrics_tell_of_each() {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p", "--data", "d:1M"]);
    host.fork("p", 1);
    host.ok(["doctor"]);
    // As a daemon would leave them that was killed and never came again.
    let socket = host.folder().join("run/blockd.sock");
    let blockd = |words: &[&str]| {
        let socket = socket.to_str().expect("text");
        let words = [&["--socket", socket], words].concat();
        host.start_program("forkyard-blockd", words.iter(), "")
            .wait()
            .exited(0)
    };
    blockd(&["snapshot", "d", "fork-lost"]);
    blockd(&["branch", "clone-lost-d", "d", "fork-lost"]);
    blockd(&["create", "e", "1M"]);
    blockd(&["open", "e"]);
    let wrong = ["clone-lost-d", "d@fork-lost", "e:1"];
    let found = host.start(["doctor"].iter(), "").wait();
    assert_eq!(found.code, Some(1));
    for name in wrong {
        assert!(
            found.text().contains(name),
            "{name} is not in {}",
            found.text()
        );
    }
    // One lies over the other: the second look takes what the first could not.
    host.start(["doctor", "--repair"].iter(), "").wait();
    host.ok(["doctor", "--repair"]);
    host.ok(["doctor"]);
    assert_eq!(branches(&host).len(), 1, "the clone's own stays");
    let metrics = host.get("/metrics");
    for name in [
        "reads",
        "written_bytes",
        "flushes",
        "log_bytes",
        "bytes_since_map",
    ] {
        let line = format!("forkyard_volume_{name}{{volume=\"d\"}}");
        assert!(metrics.contains(&line), "no {line}");
    }
    host.ok(["rm", "--all"]);
    for name in ["d", "e"] {
        host.ok(["volume", "rm", name]);
    }
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_fork_leaves_no_branch_that_nothing_needs() {
    let host = Host::fake().counted();
    host.ok(["volume", "create", "f", "1M"]);
    host.ok(RUN);
    sweep(&host, ["fork", "p", "--count", "2"], 16, |host| {
        is_sound(host);
        let clones: Vec<_> = host
            .vms()
            .into_iter()
            .filter(|vm| vm.parent.is_some())
            .collect();
        assert_eq!(branches(host).len(), 2 * clones.len());
        for vm in clones {
            host.ok(["rm", vm.name.as_str()]);
        }
        eventually("no branch and no snapshot", || {
            branches(host).is_empty()
                && snapshots(host, "d").is_empty()
                && snapshots(host, "f") == [1]
        });
    });
    host.ok(["rm", "--all"]);
    for name in ["d", "e", "f"] {
        host.ok(["volume", "rm", name]);
    }
    host.end();
}
