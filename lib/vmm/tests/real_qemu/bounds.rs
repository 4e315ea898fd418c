//! Tests of a QEMU's view of the host and its use of it, beyond its privileges.
//! Needs root, QEMU and cgroup v2.

use crate::support::{self, Site, slice};
use forkyard_vmm::{Machine, files};
use std::{collections::BTreeSet, fs, path::Path};

#[tokio::test]
async fn a_machine_sees_no_files_but_its_own_and_what_it_takes_to_run() {
    let site = Site::new();
    let machine = site.boot_over_the_disk().await;
    let mut spec = site.boot_spec();
    spec.machine.disk = None;
    let other = site.qemu.boot(spec).await.expect("boots");
    let pid = machine.record().process.pid;
    let inside = |path: &Path| {
        let path = path.strip_prefix("/").expect("absolute");
        Path::new(&format!("/proc/{pid}/root")).join(path)
    };
    let names = |path: &Path| {
        let entries = fs::read_dir(inside(path)).expect("alive").flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("text"));
        names.collect::<BTreeSet<_>>()
    };
    for gone in [
        "/root",
        "/home",
        "/proc",
        "/sys",
        "/var",
        "/run",
        "/etc/shadow",
        "/etc/passwd",
    ] {
        assert!(!inside(Path::new(gone)).exists(), "{gone}");
    }
    let devices = names(Path::new("/dev"));
    assert_eq!(
        devices,
        ["null", "urandom", "zero"].map(str::to_owned).into()
    );
    // Neither another's folder nor its own.
    let own = machine
        .active_slice()
        .await
        .expect("asked")
        .expect("a disk");
    let name = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    };
    let disks: BTreeSet<_> = [&own, &site.disk]
        .into_iter()
        .filter_map(|path| name(path))
        .collect();
    assert_eq!(names(site.path()), disks);
    assert!(other.record().dir.exists() && !inside(&other.record().dir).exists());
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("alive");
    let usr = mounts.lines().find(|line| line.contains(" /usr "));
    assert!(
        usr.is_some_and(|line| line.contains(" ro,nosuid,nodev")),
        "{mounts}"
    );

    // What it is to open later comes later, and goes when it is closed.
    let later = site.path().join("later.qcow2");
    slice(&later, &own, site.owner);
    let overlay = machine.prepare_overlay(&later).await.expect("prepared");
    assert!(inside(&later).exists());
    machine.discard_overlay(overlay).await.expect("closed");
    assert!(!inside(&later).exists() && later.exists());
    machine.kill().await.expect("killed");
    other.kill().await.expect("killed");
}

#[tokio::test]
async fn a_fold_takes_what_was_folded_out_of_sight() {
    let site = Site::new();
    let machine = site.boot().await;
    let root = format!("/proc/{}/root", machine.record().process.pid);
    let seen = |path: &Path| {
        let path = path.strip_prefix("/").expect("absolute");
        Path::new(&root).join(path).exists()
    };
    let paths = ["a", "b", "c", "d"].map(|name| site.path().join(name));
    let mut under = site.disk.clone();
    for path in &paths {
        slice(path, &under, site.owner);
        let overlay = machine.prepare_overlay(path).await.expect("prepared");
        support::write_behind(&machine, 5).await;
        machine.freeze_disk(overlay).await.expect("frozen");
        under.clone_from(path);
    }
    let [a, b, c, d] = &paths;
    let never = std::future::pending();
    machine
        .fold_disk(&[c.clone(), b.clone()], a, Box::pin(never))
        .await
        .expect("folded");
    assert!(seen(a) && !seen(b) && !seen(c) && seen(d));
    assert!(support::read_and_quit(machine, 5).await, "what was folded");
}

#[tokio::test]
async fn slices_are_lifted_into_one_that_was_written_here_and_there() {
    let site = Site::new();
    let machine = site.boot().await;
    let mut under = site.disk.clone();
    // Each over the beginning of what is below.
    for (name, write) in [("a", "5 1M 256k"), ("b", "6 1M 128k"), ("c", "7 1M 8k")] {
        let path = site.path().join(name);
        slice(&path, &under, site.owner);
        let overlay = machine.prepare_overlay(&path).await.expect("prepared");
        machine.freeze_disk(overlay).await.expect("frozen");
        support::qemu_io(&machine, &format!("write -P {write}")).await;
        under = path;
    }
    let [a, b] = ["a", "b"].map(|name| site.path().join(name));
    let never = std::future::pending();
    let lifted = machine.lift_disk(&[b], &a, Box::pin(never)).await;
    lifted.expect("lifted");
    for read in ["7 1M 8k", "6 1032k 120k", "5 1152k 128k"] {
        support::qemu_io(&machine, &format!("read -P {read}")).await;
    }
    machine.quit().await.expect("quits");
    let log = fs::read_to_string(machine.record().dir.join(files::LOG)).expect("log");
    assert_eq!(log.matches("read ").count(), 3, "{log}");
    assert!(!log.contains("Pattern verification failed"), "{log}");
}

#[tokio::test]
async fn what_qemu_says_fills_no_disk() {
    let site = Site::new();
    let machine = site.boot().await;
    // Some 300 KiB of output each.
    for _ in 0..8 {
        support::qemu_io(&machine, "read -v 0 64k").await;
    }
    let size = |name| fs::metadata(machine.record().dir.join(name)).map_or(0, |file| file.len());
    let halves = || [files::LOG, files::LOG_OLDER].map(size);
    assert!(
        halves().iter().all(|half| *half <= 512 << 10),
        "{:?}",
        halves()
    );
    machine.quit().await.expect("quits");
    assert!(halves().iter().sum::<u64>() > 4096, "{:?}", halves());
    assert!(
        halves().iter().all(|half| *half <= 512 << 10),
        "{:?}",
        halves()
    );
}
