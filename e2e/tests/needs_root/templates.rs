//! Images that people have elsewhere: pulled from a registry, built from a Dockerfile, made of a VM.

use super::import::{pack, text, tool, userland};
use forkyard_e2e::{Host, eventually};
use forkyard_types::{GuestImage, ImageOrigin, Start};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Debian's registry, where the host's processes are.
struct Registry {
    process: Child,
    address: String,
}

impl Registry {
    fn on(host: &Host, folder: &Path) -> Self {
        let blobs = folder.join("blobs");
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"127.0.0.1:0\"}}\n",
            blobs.display()
        );
        let path = folder.join("registry.yml");
        fs::write(&path, config).expect("written");
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = host
            .within(move || command.spawn())
            .expect("docker-registry is installed");
        let said = process.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening on ")?;
            let end = rest.find(|c: char| c != ':' && c != '.' && !c.is_ascii_digit());
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        });
        // Its output has no other reader, and it must not wait for one.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.expect("it says where it listens"),
        }
    }

    fn put(&self, host: &Host, archive: &Path, name: &str) -> String {
        let reference = format!("{}/{name}", self.address);
        let mut command = Command::new("skopeo");
        command
            .args(["copy", "-q", "--dest-tls-verify=false"])
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://{reference}"));
        let copied = host.within(move || command.output()).expect("skopeo");
        assert!(copied.status.success(), "{copied:?}");
        reference
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An image whose entry point would leave a file, and whose init powers off.
fn archive(folder: &Path) -> std::path::PathBuf {
    let tree = folder.join("tree");
    userland(&tree, &["sh", "cat", "id", "ls", "mkdir", "sleep"]);
    for path in ["etc", "srv", "tmp", "sbin"] {
        fs::create_dir_all(tree.join(path)).expect("made");
    }
    fs::write(
        tree.join("etc/passwd"),
        "root:x:0:0::/:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n",
    )
    .expect("written");
    fs::write(
        tree.join("srv/serve"),
        "#!/bin/sh\necho >/tmp/started\nexec sleep 1000\n",
    )
    .expect("written");
    fs::write(tree.join("sbin/init"), "#!/bin/sh\nexit\n").expect("written");
    for program in ["srv/serve", "sbin/init"] {
        tool("chmod", &["755", &text(&tree.join(program))]);
    }
    tool("chmod", &["1777", &text(&tree.join("tmp"))]);
    let layer = folder.join("layer.tar");
    let (from, to) = (text(&tree), text(&layer));
    let owned = ["--owner=0", "--group=0"];
    tool("tar", &["-C", &from, owned[0], owned[1], "-cf", &to, "."]);
    let run = json!({
        "Cmd": ["/srv/serve"], "Env": ["PATH=/bin", "GREETING=hello"],
        "WorkingDir": "/srv", "User": "web",
    });
    pack(folder, &[&layer], &run)
}

#[test]
fn images_of_a_registry_and_of_vms_run_with_their_settings_and_start_nothing_unasked() {
    let host = Host::with_own_cache();
    host.with_loopback();
    let here = tempfile::tempdir().expect("a folder");
    let registry = Registry::on(&host, here.path());
    let reference = registry.put(&host, &archive(here.path()), "team/web:1");

    let pulled: Vec<GuestImage> = host.json(["image", "pull", &reference]);
    assert_eq!(pulled[0].name, "web-1");
    let image: GuestImage = host.json(["image", "inspect", "web-1"]);
    assert_eq!(image.origin, ImageOrigin::Registry);
    assert_eq!(image.source.as_deref(), Some(reference.as_str()));
    assert!(
        image
            .digest
            .is_some_and(|digest| digest.starts_with("sha256:"))
    );
    let entry = image.entry.expect("known");
    assert_eq!(
        (entry.argv, entry.start),
        (vec!["/srv/serve".to_owned()], Start::Never)
    );
    let told = host.fails(["image", "pull", &reference]);
    assert!(told.contains("already"), "{told}");
    let script = format!(
        "from forkyard_host import Forkyard\n\
         image = Forkyard().pull_image('{reference}', 'again')\n\
         assert Forkyard().image('again') == image and image['entry']['start'] == 'never', image\n\
         Forkyard().remove_image('again')\n\
         assert 'again' not in [image['name'] for image in Forkyard().images()]\n"
    );
    host.python(&script);
    let none = format!("{}/none:1", registry.address);
    let told = host.fails(["image", "pull", &none]);
    assert!(told.contains("unknown"), "{told}");

    // Neither its entry point nor its init runs; what is asked for does, as the image has it.
    host.ok(["run", "web-1", "--name", "w"]);
    let ask = "echo $GREETING $PWD $(id -u) $(ls /tmp)";
    assert_eq!(host.sh("w", ask), "hello /srv 33");
    let as_root = |vm: &str, script: &str| {
        let words = ["exec", "-uroot", vm, "sh", "-c", script];
        host.ok(words).trim().to_owned()
    };
    as_root(
        "w",
        "mkdir -p /etc/ssh; echo secret >/etc/ssh/ssh_host_rsa_key; echo kept >/srv/kept",
    );
    let committed: Vec<GuestImage> = host.json(["image", "commit", "w", "tools"]);
    assert_eq!(committed[0].origin, ImageOrigin::Vm);
    assert_eq!(committed[0].source.as_deref(), Some("w"));
    assert!(committed[0].entry.is_some(), "as its image has it");
    assert_eq!(host.vms().len(), 1, "the checkpoint it took has gone");
    assert_eq!(
        as_root("w", "cat /etc/ssh/ssh_host_rsa_key"),
        "secret",
        "it is as it was"
    );

    host.ok(["run", "tools", "--name", "t"]);
    assert_eq!(host.sh("t", ask), "hello /srv 33");
    assert_eq!(host.sh("t", "cat /srv/kept; ls /etc/ssh"), "kept");
    let id = "cat /etc/machine-id";
    assert_ne!(host.sh("t", id), host.sh("w", id));

    // Built over the image, with a file of the context.
    let context = here.path().join("context");
    fs::create_dir(&context).expect("made");
    fs::write(context.join("added"), "from here\n").expect("written");
    let dockerfile = context.join("Dockerfile");
    let steps = "COPY added /srv/added\nUSER root\nRUN echo $GREETING >/srv/made; id -u\n";
    fs::write(&dockerfile, format!("FROM {reference}\n{steps}USER web\n")).expect("written");
    let folder = text(&context);
    host.ok(["image", "build", "-t", "built", &folder]);
    let built: GuestImage = host.json(["image", "inspect", "built"]);
    assert_eq!(built.origin, ImageOrigin::Dockerfile);
    host.ok(["run", "built", "--name", "b"]);
    assert_eq!(host.sh("b", ask), "hello /srv 33");
    assert_eq!(host.sh("b", "cat /srv/made /srv/added"), "hello\nfrom here");

    // A step that fails: its line, what it said, and nothing left.
    let wrong = format!("FROM {reference}\n# why\nRUN echo oh dear; \\\n  exit 3\n");
    fs::write(&dockerfile, wrong).expect("written");
    let told = host.fails(["image", "build", "-t", "wrong", &folder]);
    assert!(told.contains("Dockerfile:3 failed"), "{told}");
    assert!(told.contains("oh dear"), "{told}");
    let work = host.cache().join("tmp");
    let is_idle = || fs::read_dir(&work).expect("there").count() == 0;
    assert!(is_idle(), "nothing of the builds is left");

    // One that its client, and one that its daemon, leaves in the middle.
    let seconds = 100_000 + std::process::id();
    let slow = format!("FROM {reference}\nRUN sleep {seconds}\n");
    fs::write(&dockerfile, slow).expect("written");
    // In namespaces of its own, and so not among the host's processes.
    let words = format!("sleep\0{seconds}\0").into_bytes();
    let sleeps = || {
        let all = fs::read_dir("/proc").expect("listed").flatten();
        all.map(|entry| fs::read(entry.path().join("cmdline")))
            .any(|command| command.is_ok_and(|command| command == words))
    };
    for daemon_dies in [false, true] {
        let mut build = host.talk_to(["image", "build", "-t", "slow", &folder]);
        eventually("the step to run", sleeps);
        match daemon_dies {
            false => build.kill().expect("killed"),
            true => host.kill_9("forkyardd"),
        }
        build.wait().expect("reaped");
        eventually("the step to end", || !sleeps());
        assert_eq!(host.sh("b", "echo there"), "there");
        eventually("what it left to go", is_idle);
    }

    // A folder with the layout of one is as good as an archive.
    let layout = text(&here.path().join("layout"));
    host.ok(["image", "import", "laid", &layout, "--format", "oci"]);

    // One that has stopped is as good.
    as_root("w", "echo last >/srv/kept");
    host.ok(["stop", "w"]);
    host.ok(["image", "commit", "w", "later"]);
    let disk = here.path().join("later.raw");
    host.ok(["image", "export", "later", &text(&disk), "--format", "raw"]);
    let kept = tool("debugfs", &["-R", "cat /srv/kept", &text(&disk)]);
    assert_eq!(kept, b"last\n");

    drop(registry);
    host.end();
}
