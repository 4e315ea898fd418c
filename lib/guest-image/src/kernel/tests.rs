use super::*;
use std::{os::unix::fs::PermissionsExt as _, process::Command};

/// A relocatable ELF file with one section, `.modinfo`.
fn module(dir: &Path, info: &str) -> Vec<u8> {
    // objcopy of any host with a compiler: the tests need one anyway.
    let (raw, elf) = (dir.join("info"), dir.join("elf"));
    fs::write(&raw, info).expect("written");
    let run = |program: &str, args: &[&str]| {
        let status = Command::new(program).current_dir(dir).args(args).status();
        assert!(status.expect(program).success(), "{program}");
    };
    run("as", &["-o", "elf", "/dev/null"]);
    run("objcopy", &["--add-section", ".modinfo=info", "elf"]);
    fs::read(elf).expect("there")
}

/// An unpacked kernel package.
fn tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    let modules = tree.join("lib/modules/6.1.0-test");
    fs::create_dir_all(tree.join("boot")).expect("made");
    fs::create_dir_all(modules.join("kernel/drivers")).expect("made");
    fs::write(tree.join("boot/vmlinuz-6.1.0-test"), "kernel").expect("written");
    fs::write(tree.join("boot/config-6.1.0-test"), "").expect("written");
    let built_in = "kernel/fs/ext4/ext4.ko\nkernel/crypto/crc32c_generic.ko\n\
        kernel/drivers/virtio/virtio_balloon.ko\nkernel/drivers/block/virtio-blk.ko\n\
        kernel/net/ipv4/tcp_diag.ko\nkernel/net/ipv4/udp_diag.ko\n";
    fs::write(modules.join("modules.builtin"), built_in).expect("written");
    for (name, info) in [
        ("virtio", "depends=\0"),
        ("virtio_pci", "alias=x\0depends=virtio\0"),
        ("virtio-console", "depends=virtio\0"),
        ("net_failover", "depends=\0"),
        ("virtio_net", "depends=net-failover,virtio\0"),
        ("unwanted", "depends=\0"),
    ] {
        let path = modules.join(format!("kernel/drivers/{name}.ko"));
        fs::write(path, module(dir, info)).expect("written");
    }
    tree
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn what_a_guest_needs_is_gathered_and_loads_again() {
    let dir = scratch();
    let tree = tree(dir.path());
    let fetched = gather(&tree, &dir.path().join("out"), &mut |_| {}).expect("gathered");
    assert!(fetched.name.starts_with("6.1.0-test-"), "{}", fetched.name);
    let kernel = GuestKernel::load(&fetched.dir).expect("loads");
    assert_eq!(kernel.release.as_deref(), Some("6.1.0-test"));
    assert_eq!(fs::read(&kernel.image).expect("there"), b"kernel");
    let names: Vec<_> = kernel
        .modules
        .iter()
        .filter_map(|m| m.file_name()?.to_str())
        .collect();
    let wanted: [&str; 5] = [
        "virtio",
        "virtio_pci",
        "virtio_console",
        "net_failover",
        "virtio_net",
    ];
    assert_eq!(names, wanted.map(|n| format!("{n}.ko")));
    for module in &kernel.modules {
        assert!(module.exists(), "{module:?}");
    }
}

#[test]
fn compressed_modules_are_unpacked() {
    let dir = scratch();
    let tree = tree(dir.path());
    let module = tree.join("lib/modules/6.1.0-test/kernel/drivers/virtio.ko");
    let plain = fs::read(&module).expect("there");
    let status = Command::new("xz").arg(&module).status().expect("xz");
    assert!(status.success());
    let fetched = gather(&tree, &dir.path().join("out"), &mut |_| {}).expect("gathered");
    let unpacked = fs::read(fetched.dir.join("modules/virtio.ko")).expect("there");
    assert_eq!(unpacked, plain);
}

#[test]
fn unknown_compression_is_refused() {
    let dir = scratch();
    let tree = tree(dir.path());
    let module = tree.join("lib/modules/6.1.0-test/kernel/drivers/virtio.ko");
    fs::rename(&module, module.with_extension("ko.zst")).expect("renamed");
    let error = gather(&tree, &dir.path().join("out"), &mut |_| {}).expect_err("no zstd");
    let BuildError::Modules(ModuleError::Compression { name }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "virtio");
}

#[test]
fn kernel_without_a_needed_driver_is_refused() {
    let dir = scratch();
    let tree = tree(dir.path());
    fs::remove_file(tree.join("lib/modules/6.1.0-test/kernel/drivers/net_failover.ko"))
        .expect("removed");
    let error = gather(&tree, &dir.path().join("out"), &mut |_| {}).expect_err("none");
    let BuildError::Modules(ModuleError::Missing { name }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "net_failover");
}

#[test]
fn kernel_is_the_one_the_package_depends_on() {
    let shown = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\n\
        Depends: linux-base (>= 4), linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n";
    let kernel = kernel_of(shown);
    assert_eq!(kernel.as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
    assert_eq!(kernel_of("Package: x\nDepends: libc6\n"), None);
    assert_eq!(kernel_of("Package: x\n"), None);
}

#[test]
fn kernel_of_the_users_own_has_no_modules_and_must_exist() {
    let dir = scratch();
    let path = dir.path().join("bzImage");
    let error = GuestKernel::from_file(&path).expect_err("not there");
    assert!(matches!(error, BuildError::UnfitKernel { path: named, .. } if named == path));
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("made");
    for none in [fifo.as_path(), dir.path(), Path::new("/dev/null")] {
        let error = GuestKernel::from_file(none).expect_err("it cannot be booted");
        assert!(matches!(error, BuildError::NoFile { .. }), "{error:?}");
    }
    let mut image = vec![0; 0x400];
    image[0x202..0x206].copy_from_slice(b"HdrS");
    for (content, bits) in [
        (&b"kernel"[..], 0o644),
        (&[0; 0x400], 0o644),
        (&image, 0o600),
    ] {
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).expect("set");
        let error = GuestKernel::from_file(&path).expect_err("it cannot be booted");
        assert!(matches!(error, BuildError::UnfitKernel { .. }), "{error:?}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    let kernel = GuestKernel::from_file(&path).expect("there");
    assert_eq!((kernel.modules, kernel.release), (vec![], None));
}
