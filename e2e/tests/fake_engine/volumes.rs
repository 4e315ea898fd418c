//! Volumes, as far as they are the same with any machine: one that is made up writes none.

use forkyard_e2e::{Host, eventually, is_sound, sweep};
use forkyard_types::{ByteCount, VolumeView};

const RUN: [&str; 6] = ["run", "tiny", "--name", "p", "--volume", "d"];

fn volumes(host: &Host) -> Vec<VolumeView> {
    host.json(["volume", "ls"])
}

/// Checks that what there is of volumes is what records say.
fn is_settled(host: &Host) {
    is_sound(host);
    let names: Vec<_> = host.vms().into_iter().map(|vm| vm.name).collect();
    for volume in volumes(host) {
        if let Some(vm) = &volume.vm {
            assert!(names.contains(vm), "{volume:?} of {names:?}");
        }
        for snapshot in &volume.snapshots {
            assert!(
                !snapshot.vms.is_empty(),
                "{volume:?} has one that nothing needs"
            );
        }
    }
}

#[test]
fn volumes_are_made_kept_grown_and_removed_unless_a_vm_has_them() {
    let host = Host::fake();
    assert!(volumes(&host).is_empty());
    host.ok(["volume", "create", "d", "1M"]);
    host.ok(["volume", "create", "web", "--image", "tiny"]);
    let made = volumes(&host);
    assert_eq!(
        (made[0].name.as_str(), made[0].size),
        ("d", ByteCount(1 << 20))
    );
    assert!(made[1].size > ByteCount(1 << 20) && made[1].stored > ByteCount(0));
    // A disk that goes out comes in again as it was.
    let file = host.folder().join("disk.img");
    let file = file.to_str().expect("text");
    host.ok(["volume", "snapshot", "web", "monday"]);
    host.ok(["volume", "export", "web", file, "--snapshot", "monday"]);
    host.fails(["volume", "export", "web", file]);
    host.ok(["volume", "import", "copy", file]);
    assert_eq!(
        host.json::<VolumeView>(["volume", "inspect", "copy"]).size,
        made[1].size
    );
    host.ok(["volume", "resize", "d", "8K"]);
    host.ok(["volume", "snapshot", "web", "monday", "--rm"]);

    for (words, wanted) in [
        (&["create", "d", "1M"][..], "called d already"),
        (&["create", "x", "4097"], "no size"),
        (&["create", "x", "9T"], "no size"),
        (&["create", "x", "1M", "--image", "tiny"], "do not fit"),
        (&["create", "x", "--image", "nosuch"], "no image"),
        (&["import", "x", "/nosuch"], "/nosuch"),
        (&["import", "x", "/dev/zero"], "no regular file"),
        (&["inspect", "nosuch"], "nosuch"),
        (&["rm", "nosuch"], "nosuch"),
        (&["resize", "nosuch", "1M"], "nosuch"),
        (&["snapshot", "nosuch", "s"], "nosuch"),
        (&["snapshot", "d", "fork-1"], "those of forks"),
        (&["snapshot", "d", "s", "--rm"], "no snapshot called s"),
        (&["snapshot", "d", "../s", "--rm"], "no snapshot called"),
        (&["export", "d", "/nosuch/d.img"], "/nosuch"),
    ] {
        let words = [&["volume"], words].concat();
        let said = host.start(words.iter(), "").wait();
        assert_ne!(said.code, Some(0), "{words:?}");
        let complaint = said.stderr;
        assert!(complaint.contains(wanted), "{words:?}: {complaint}");
    }
    assert_eq!(volumes(&host).len(), 3, "what was refused left nothing");

    host.ok(["run", "tiny", "--name", "p", "--volume", "web"]);
    host.fork("p", 2);
    for complaint in [
        host.fails(["volume", "rm", "web"]),
        host.fails(["volume", "resize", "web", "1G"]),
    ] {
        assert!(complaint.contains("p has volume web"), "{complaint}");
    }
    let complaint = host.fails(["run", "tiny", "--volume", "web"]);
    assert!(complaint.contains("p has volume web"), "{complaint}");
    let seen: VolumeView = host.json(["volume", "inspect", "web"]);
    let frozen = &seen.snapshots[0];
    let complaint = host.fails(["volume", "snapshot", "web", &frozen.name, "--rm"]);
    assert!(complaint.contains("lies over"), "{complaint}");
    for words in [
        &["substrate", "dock", "p", "--name", "s", "--kind", "public"][..],
        &["fork", "p", "--to", "b"],
    ] {
        host.start(words.iter(), "").wait();
        assert_eq!(host.vms().len(), 3, "{words:?} did nothing");
    }
    // The clones' disk outlives the VM that wrote it.
    host.ok(["rm", "p"]);
    host.fails(["volume", "rm", "web"]);
    host.ok(["rm", "--all"]);
    for volume in ["web", "copy", "d"] {
        host.ok(["volume", "rm", volume]);
    }
    std::fs::remove_file(file).expect("it was there");

    // An encrypted one is of no use without its key, and as it was with it.
    host.ok(["volume", "create", "secret", "1M", "--encrypted"]);
    let seen = || host.json::<VolumeView>(["volume", "inspect", "secret"]);
    let (key, aside) = (seen().key_file.expect("a key"), host.folder().join("aside"));
    host.ok(["volume", "create", "plain", "1M"]);
    let complaint = host.fails(["run", "tiny", "--data", "plain:encrypted"]);
    assert!(complaint.contains("not encrypted"), "{complaint}");
    std::fs::rename(&key, &aside).expect("moved");
    // The server has it in memory.
    assert_eq!(seen().failure, None);
    host.kill_9("forkyard-blockd");
    let without = seen();
    assert!(without.encrypted && without.failure.is_some_and(|it| it.contains(&key)));
    for words in [
        &["run", "tiny", "--data", "secret"][..],
        &["volume", "snapshot", "secret", "s"],
        &["doctor"],
    ] {
        let said = host.start(words.iter(), "").wait();
        let told = String::from_utf8_lossy(&said.stdout) + &*said.stderr;
        assert!(
            said.code != Some(0) && told.contains(&key),
            "{words:?}: {told}"
        );
    }
    std::fs::rename(&aside, &key).expect("moved");
    host.ok(["run", "tiny", "--name", "q", "--data", "secret:encrypted"]);
    host.ok(["rm", "q"]);
    // The operator's own key serves several, and stays.
    std::fs::copy(&key, &aside).expect("copied");
    let own = aside.to_str().expect("text");
    host.ok([
        "volume",
        "create",
        "other",
        "1M",
        "--encrypted",
        "--key-file",
        own,
    ]);
    for volume in ["secret", "other", "plain"] {
        host.ok(["volume", "rm", volume]);
    }
    assert!(!std::path::Path::new(&key).exists());
    std::fs::remove_file(&aside).expect("it stays");
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_boot_on_a_volume_leaves_it_to_the_next() {
    let host = Host::fake().counted();
    host.ok(["volume", "create", "d", "--image", "tiny"]);
    sweep(&host, RUN, 8, |host| {
        is_settled(host);
        host.ok(["rm", "--all"]);
        assert_eq!(volumes(host)[0].vm, None);
    });
    host.ok(RUN);
    host.ok(["rm", "p"]);
    host.ok(["volume", "rm", "d"]);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_fork_over_a_volume_leaves_no_snapshot_that_nothing_needs() {
    let host = Host::fake().counted();
    host.ok(RUN);
    sweep(&host, ["fork", "p", "--count", "2"], 16, |host| {
        is_settled(host);
        for vm in host.vms().iter().filter(|vm| vm.parent.is_some()) {
            host.ok(["rm", vm.name.as_str()]);
        }
        eventually("no snapshot", || volumes(host)[0].snapshots.is_empty());
    });
    host.ok(["rm", "--all"]);
    host.ok(["volume", "rm", "d"]);
    host.end();
}
