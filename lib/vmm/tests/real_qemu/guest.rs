//! The engine with a Linux guest. Needs root, QEMU, cgroup v2, and:
//!
//! - `FORKYARD_TEST_KERNEL`: a kernel
//! - `FORKYARD_TEST_INITRD`: an initial RAM disk for it, whose init writes
//!   `forkyard-probe-ok` on the console when told `forkyard.probe=1`

use crate::support::{self, Site, slice};
use forkyard_vmm::{
    Accel, AccelChoice, BootSpec, Kernel, Machine, Probe, QemuMachine, RunState, console,
};
use std::{fs, path::PathBuf, time::Duration};

const CMDLINE: &str = "console=ttyS0 panic=-1 forkyard.probe=1";
const MARKER: &str = "forkyard-probe-ok";

fn given(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!("set {variable} to a file, or let `cargo xtask test` do so"),
    }
}

fn kernel() -> Kernel {
    Kernel {
        image: given("FORKYARD_TEST_KERNEL"),
        initrd: Some(given("FORKYARD_TEST_INITRD")),
        cmdline: CMDLINE.to_owned(),
    }
}

fn console(machine: &QemuMachine) -> String {
    let log = console::kept(&machine.record().dir).expect("log");
    String::from_utf8_lossy(&log).into_owned()
}

/// Waits until a guest has written something.
async fn wait_for(machine: &QemuMachine, text: &str) {
    for _ in 0..6000 {
        if console(machine).contains(text) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no {text:?} on the console:\n{}", console(machine));
}

#[tokio::test]
async fn a_guest_forked_while_its_kernel_starts_ends_up_in_user_space_twice() {
    let kernel = kernel();
    let site = Site::with_memory(support::GUEST_MEMORY);
    let parent = BootSpec {
        machine: site.machine(&site.disk),
        kernel: Some(kernel),
    };
    let parent = site.qemu.boot(parent).await.expect("boots");
    let shell = site.shell(&site.disk).await;
    let next = site.path().join("next.qcow2");
    slice(&next, &site.disk, site.owner);
    let overlay = parent.prepare_overlay(&next).await.expect("prepared");
    wait_for(&parent, "Linux version").await;
    parent.stop().await.expect("stopped");
    parent.freeze_disk(overlay).await.expect("frozen");
    assert!(
        !console(&parent).contains(MARKER),
        "forked too late to tell"
    );
    let descriptor = parent.save_descriptor().await.expect("saved");
    site.copy_memory(&parent).await;
    let clone = shell.load(&descriptor).await.expect("loaded");
    wait_for(&clone, MARKER).await;
    assert!(!console(&parent).contains(MARKER), "the parent stood still");
    assert_eq!(parent.run_state().await.expect("asked"), RunState::Paused);
    parent.cont().await.expect("goes on");
    wait_for(&parent, MARKER).await;
    clone.kill().await.expect("killed");
    parent.kill().await.expect("killed");
}

#[tokio::test]
async fn kvm_is_chosen_only_if_a_guest_reaches_user_space_on_it_and_that_is_remembered() {
    let kernel = kernel();
    let site = Site::with_memory(support::GUEST_MEMORY);
    let cache = site.path().join("accel.json");
    let mut owner = site.owner;
    // With access to the device: what is tried here is the device.
    (owner.uid, owner.gid) = (0, 0);
    let mut probe = Probe {
        kernel: kernel.image,
        initrd: kernel.initrd.expect("given"),
        cmdline: CMDLINE.to_owned(),
        marker: MARKER.to_owned(),
        owner,
        dir: site.path().join("probe"),
        within: std::time::Duration::from_secs(5),
    };
    fs::create_dir(&probe.dir).expect("dir");
    let choose = async |probe: &Probe| {
        let chosen = site.qemu.choose_accel(AccelChoice::Auto, probe, &cache);
        chosen.await.expect("chosen")
    };
    let first = choose(&probe).await;
    let said = console::kept(&probe.dir).unwrap_or_default();
    let reached = String::from_utf8_lossy(&said).contains(MARKER);
    assert_eq!(first.accel == Accel::Kvm, reached, "{first:?}");
    // Of a guest that was only late nothing is remembered: a host may be slow once.
    if !cache.exists() {
        assert!(!reached, "{first:?}");
        return;
    }
    // Were it tried again, this could only fail.
    probe.dir = site.path().join("does not exist");
    assert_eq!(choose(&probe).await, first);
}

#[tokio::test]
async fn a_guest_that_never_says_the_word_speaks_against_kvm() {
    let kernel = kernel();
    let site = Site::with_memory(support::GUEST_MEMORY);
    let probe = Probe {
        kernel: kernel.image,
        initrd: kernel.initrd.expect("given"),
        cmdline: CMDLINE.to_owned(),
        marker: "a word no guest says".to_owned(),
        owner: site.owner,
        dir: site.path().join("probe"),
        within: Duration::from_millis(200),
    };
    fs::create_dir(&probe.dir).expect("dir");
    let cache = site.path().join("accel.json");
    let chosen = site
        .qemu
        .choose_accel(AccelChoice::Auto, &probe, &cache)
        .await;
    assert_eq!(chosen.expect("chosen").accel, Accel::Tcg);
}
