//! Images in and out: what is imported boots, what is exported can be imported.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{GuestImage, ImageOrigin};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// Runs a program of this host that must succeed; what it printed.
pub(super) fn tool(program: &str, words: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(words).output().expect(program);
    assert!(done.status.success(), "{program} {words:?}: {done:?}");
    done.stdout
}

/// The disk of the test image.
fn tiny() -> PathBuf {
    std::env::var_os("FORKYARD_TEST_IMAGE")
        .expect("`cargo xtask test` sets it")
        .into()
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Puts the userland of the test image into a tree.
pub(super) fn userland(tree: &Path, applets: &[&str]) {
    fs::create_dir_all(tree.join("bin")).expect("made");
    let busybox = text(&tree.join("bin/busybox"));
    tool(
        "debugfs",
        &[
            "-R",
            &format!("dump -p /bin/busybox {busybox}"),
            &text(&tiny()),
        ],
    );
    for applet in applets {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet)).expect("linked");
    }
}

/// An OCI archive, as `skopeo copy … oci-archive:` makes one: the userland of
/// the test image in one gzipped layer, and a program to run in another.
fn archive(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    userland(&tree, &["sh", "cat", "sleep", "id", "init"]);
    fs::create_dir_all(tree.join("usr/etc")).expect("made");
    // Images of ostree have such links, and one may lead anywhere.
    for (link, target) in [
        ("etc", "usr/etc"),
        ("opt", "var/opt"),
        ("run", "/var/run"),
        ("tmp", "../../var/scratch"),
        ("proc", "system/proc"),
        ("sys", "/../system/sys"),
        ("dev", "system/dev"),
    ] {
        std::os::unix::fs::symlink(target, tree.join(link)).expect("linked");
    }
    fs::write(tree.join("etc/passwd"), "web:x:33:34::/srv:/bin/sh\n").expect("written");
    fs::write(tree.join("etc/group"), "web:x:34:\nlogs:x:4:web\n").expect("written");
    let lower = folder.join("lower.tar");
    tool(
        "tar",
        &[
            "-C",
            &text(&tree),
            "--numeric-owner",
            "-cf",
            &text(&lower),
            ".",
        ],
    );

    let more = folder.join("more");
    fs::create_dir_all(more.join("srv")).expect("made");
    // Counts for ever, where tests find it.
    let program = "#!/bin/sh\n\
        trap 'echo told to end by its own signal; exit 0' USR1\n\
        echo \"$GREETING from $(id -u):$(id -G) in $PWD, $1 $2\"\n\
        echo logged >/dev/stdout\n\
        n=0\nwhile :; do n=$((n + 1)); echo $n >/tmp/count; sleep 0.1; [ ! -e /tmp/end ] || exit 3; done\n";
    fs::write(more.join("srv/count"), program).expect("written");
    tool("chmod", &["755", &text(&more.join("srv/count"))]);
    let upper = folder.join("upper.tar");
    tool(
        "tar",
        &[
            "-C",
            &text(&more),
            "--owner=0",
            "--group=0",
            "-cf",
            &text(&upper),
            "srv",
        ],
    );

    pack(
        folder,
        &[&lower, &upper],
        &json!({
            "Entrypoint": ["/srv/count"], "Cmd": ["one", "two words"],
            "Env": ["PATH=/bin", "GREETING=hello"], "WorkingDir": "/srv", "User": "web",
            "StopSignal": "SIGUSR1",
        }),
    )
}

/// An OCI archive of these layers, the lowest first, with what is to run.
pub(super) fn pack(folder: &Path, layers: &[&PathBuf], run: &Value) -> PathBuf {
    let layout = folder.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).expect("made");
    let digest = |bytes: &[u8]| -> String {
        Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let put = |bytes: &[u8], kind: &str| {
        let name = digest(bytes);
        fs::write(layout.join("blobs/sha256").join(&name), bytes).expect("written");
        json!({"mediaType": kind, "digest": format!("sha256:{name}"), "size": bytes.len()})
    };
    let mut listed = Vec::new();
    let mut unpacked = Vec::new();
    for (path, number) in layers.iter().zip(0..) {
        let bytes = fs::read(path).expect("read");
        unpacked.push(format!("sha256:{}", digest(&bytes)));
        listed.push(match number {
            0 => put(
                &tool("gzip", &["-c", &text(path)]),
                "application/vnd.oci.image.layer.v1.tar+gzip",
            ),
            _ => put(&bytes, "application/vnd.oci.image.layer.v1.tar"),
        });
    }
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": run,
        "rootfs": {"type": "layers", "diff_ids": unpacked},
    });
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = put(config.to_string().as_bytes(), kind);
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": listed});
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = put(manifest.to_string().as_bytes(), kind);
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string()).expect("written");
    let marker = r#"{"imageLayoutVersion": "1.0.0"}"#;
    fs::write(layout.join("oci-layout"), marker).expect("written");
    let archive = folder.join("web.tar");
    tool("tar", &["-C", &text(&layout), "-cf", &text(&archive), "."]);
    archive
}

#[test]
fn container_image_runs_its_entry_point_and_clones_go_on_with_it() {
    let host = Host::with_own_cache();
    let here = tempfile::tempdir().expect("a folder");
    let archive = text(&archive(here.path()));
    let image: GuestImage = host.json(["image", "import", "web", &archive]);
    assert_eq!(
        (image.name.as_str(), image.origin),
        ("web", ImageOrigin::Oci)
    );
    host.ok(["run", "web", "--name", "w"]);
    eventually("the entry point", || {
        host.ok(["logs", "w"]).contains("logged")
    });
    let said = host.ok(["logs", "w"]);
    assert!(
        said.contains("hello from 33:34 4 in /srv, one two words"),
        "{said}"
    );
    // A command has the image's environment, working directory and user, unless it is told otherwise.
    let ask = "echo $GREETING $PWD $(id -u)";
    assert_eq!(host.sh("w", ask), "hello /srv 33");
    let words = [
        "exec",
        "-uroot",
        "-w/",
        "-eGREETING=bye",
        "w",
        "sh",
        "-c",
        ask,
    ];
    assert_eq!(host.ok(words).trim(), "bye / 0");
    // Read while it is written it may be empty.
    let count = |vm: &str| -> u64 {
        loop {
            let count = host.sh(vm, "cat /tmp/count 2>/dev/null || true");
            if let Ok(count) = count.trim().parse() {
                return count;
            }
        }
    };
    eventually("a count", || count("w") > 2);
    let before = count("w");
    host.fork("w", 1);
    let in_clone = count("w-1");
    assert!(
        in_clone >= before,
        "{in_clone} after {before}: it did not begin anew"
    );
    eventually("more in the clone", || count("w-1") > in_clone);
    let now = count("w");
    eventually("more in the parent", || count("w") > now);

    host.sh("w-1", "echo >/tmp/end");
    let ended = "the entry point /srv/count one two words ended: status 3";
    eventually("the end", || host.ok(["logs", "w-1"]).contains(ended));
    assert!(
        !host.ok(["logs", "w"]).contains(ended),
        "its parent goes on"
    );
    // Without an init there is still a way to end in good order.
    host.ok(["stop", "w"]);
    let said = host.ok(["logs", "w"]);
    assert!(said.contains("told to end by its own signal"), "{said}");

    let told = host.fails(["image", "rm", "web"]);
    assert!(told.contains("in use"), "{told}");
    host.ok(["rm", "--all"]);
    assert_eq!(host.ok(["image", "rm", "web"]).trim(), "web");
    let left: Vec<GuestImage> = host.json(["image", "ls"]);
    assert!(left.iter().all(|image| image.name != "web"), "{left:?}");
    host.end();
}

#[test]
fn an_import_that_the_daemons_death_ends_leaves_nothing_and_can_be_made_again() {
    let host = Host::with_own_cache();
    let disk = fs::read(tiny()).expect("read");
    let mut import = host.talk_to(["image", "import", "mine", "-", "--format", "raw"]);
    let mut input = import.stdin.take().expect("a pipe");
    // Some of it, and no more: the daemon waits in the middle.
    input.write_all(&disk[..disk.len() / 2]).expect("taken");
    let begun =
        || fs::read_dir(host.cache().join("tmp")).is_ok_and(|mut work| work.next().is_some());
    eventually("it to have begun", begun);
    host.kill_9("forkyardd");
    drop(input);
    assert!(!import.wait().expect("ended").success(), "it is not there");
    let images: Vec<GuestImage> = host.json(["image", "ls"]);
    assert!(
        images.iter().all(|image| image.name != "mine"),
        "{images:?}"
    );
    eventually("what it left to go", || !begun());
    host.ok(["image", "import", "mine", &text(&tiny()), "--format", "raw"]);
    host.ok(["run", "mine", "--name", "p"]);
    host.end();
}

#[test]
fn what_is_exported_can_be_imported_and_boots() {
    let host = Host::with_own_cache();
    let here = tempfile::tempdir().expect("a folder");
    let path = |name: &str| text(&here.path().join(name));
    // The test image's own disk, raw.
    host.ok(["image", "import", "mine", &text(&tiny()), "--format", "raw"]);
    host.ok(["run", "mine", "--name", "p"]);
    host.sh("p", "echo kept >/root/note; sync");
    let told = host.fails(["image", "export", "--vm", "p", &path("p.qcow2")]);
    assert!(told.contains("checkpoint"), "{told}");
    host.ok(["checkpoint", "p", "--name", "kept"]);
    host.sh("p", "echo later >/root/note; sync");
    host.ok(["image", "export", "--vm", "kept", &path("kept.qcow2")]);
    host.ok([
        "image",
        "export",
        "mine",
        &path("mine.raw"),
        "--format",
        "raw",
    ]);
    let same = fs::read(path("mine.raw")).expect("read") == fs::read(tiny()).expect("read");
    assert!(same, "a disk that nobody has changed is as it was");
    host.ok(["rm", "--all"]);

    host.ok(["image", "import", "again", &path("kept.qcow2")]);
    let images: Vec<GuestImage> = host.json(["image", "ls"]);
    let again = images.iter().find(|image| image.name == "again");
    let again = again.expect("listed");
    assert_eq!(again.origin, ImageOrigin::Qcow2);
    host.ok(["run", "again", "--name", "q"]);
    assert_eq!(host.sh("q", "cat /root/note"), "kept");
    let left: Vec<_> = fs::read_dir(here.path()).expect("listed").collect();
    assert_eq!(left.len(), 2, "nothing half written: {left:?}");
    host.end();
}

#[test]
fn what_cannot_be_an_image_is_refused_and_leaves_nothing() {
    let host = Host::with_own_cache();
    let here = tempfile::tempdir().expect("a folder");
    let path = |name: &str| text(&here.path().join(name));
    let over = path("over.qcow2");
    tool(
        "qemu-img",
        &[
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            "/etc/shadow",
            "-F",
            "raw",
            &over,
        ],
    );
    fs::write(path("empty.img"), vec![0; 1 << 20]).expect("written");
    fs::write(path("archive.tar"), vec![0; 10_240]).expect("written");
    fs::write(path("plain"), vec![0; 10_240]).expect("written");
    for (words, why) in [
        (["image", "import", "x", &over], "another file"),
        (
            ["image", "import", "tiny", &path("empty.img")],
            "tiny already",
        ),
        (["image", "import", "x", &path("empty.img")], "no ext4"),
        (
            ["image", "import", "x", &path("archive.tar")],
            "neither index.json",
        ),
        (["image", "import", "x", &path("none.img")], "cannot read"),
        (["image", "import", "x", &path("none")], "cannot read"),
        (["image", "import", "x", &path("plain")], "--format"),
        (["image", "export", "x", &path("out")], "no image"),
    ] {
        let told = host.fails(words);
        assert!(told.contains(why), "{words:?}: {told}");
    }
    let images: Vec<GuestImage> = host.json(["image", "ls"]);
    assert!(
        images
            .iter()
            .all(|image| image.origin == ImageOrigin::Recipe),
        "{images:?}"
    );
    let tmp = fs::read_dir(host.cache().join("tmp"))
        .expect("there")
        .count();
    assert_eq!(tmp, 0);
    assert!(!here.path().join("out").exists());
    host.end();
}
