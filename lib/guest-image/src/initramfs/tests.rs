use super::*;
use std::process::{Command, Stdio};

struct Inputs {
    dir: tempfile::TempDir,
    kernel: GuestKernel,
    guest: GuestFiles,
}

fn inputs() -> Inputs {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| {
        let path = dir.path().join(name);
        fs::write(&path, name).expect("written");
        path
    };
    let kernel = GuestKernel {
        image: at("vmlinuz"),
        modules: vec![at("virtio.ko"), at("virtio_pci.ko")],
        release: Some("6.1".into()),
    };
    let guest = GuestFiles {
        agent: at("agent"),
        library: Some(at("libforkyard.so")),
        header: None,
        python: Some(at("forkyard.py")),
        reseed: None,
    };
    Inputs { dir, kernel, guest }
}

fn key(inputs: &Inputs) -> CacheKey {
    let content = Content::read(&inputs.kernel, &inputs.guest);
    content.expect("readable").key()
}

#[test]
fn cpio_itself_unpacks_a_tree_the_agent_can_start_from() {
    let inputs = inputs();
    let archive = inputs.dir.path().join("cpio");
    let content = Content::read(&inputs.kernel, &inputs.guest).expect("readable");
    content.write(&archive).expect("written");
    let out = inputs.dir.path().join("out");
    fs::create_dir(&out).expect("made");
    // Devices take root to make, and are none of a test's business.
    let status = Command::new("cpio")
        .args(["--extract", "--quiet", "--nonmatching", "dev/console"])
        .current_dir(&out)
        .stdin(Stdio::from(fs::File::open(&archive).expect("there")))
        .status();
    assert!(status.expect("cpio is installed").success());

    let read = |name: &str| fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(read("init"), "agent");
    assert_eq!(read("forkyard/bin/vmfork"), "agent");
    assert_eq!(read("modules"), "virtio.ko\nvirtio_pci.ko\n");
    assert_eq!(read("lib/modules/virtio_pci.ko"), "virtio_pci.ko");
    assert_eq!(read("forkyard/python/forkyard.py"), "forkyard.py");
    assert!(!out.join("forkyard/include/forkyard.h").exists());
    assert!(out.join("newroot").is_dir());
}

#[test]
fn key_changes_with_every_input_and_not_with_its_place() {
    let before = key(&inputs());
    assert_eq!(key(&inputs()), before);
    for name in ["virtio.ko", "agent", "libforkyard.so", "forkyard.py"] {
        let changed = inputs();
        fs::write(changed.dir.path().join(name), "new").expect("written");
        assert_ne!(key(&changed), before, "{name}");
    }
    let mut reordered = inputs();
    reordered.kernel.modules.reverse();
    assert_ne!(key(&reordered), before);
    let mut fewer = inputs();
    fewer.guest.python = None;
    assert_ne!(key(&fewer), before);
}

#[test]
fn missing_agent_is_named() {
    let mut inputs = inputs();
    inputs.guest.agent = inputs.dir.path().join("nowhere");
    let error = Content::read(&inputs.kernel, &inputs.guest).expect_err("no agent");
    assert!(matches!(error, BuildError::Io { path, .. } if path == inputs.guest.agent));
}
