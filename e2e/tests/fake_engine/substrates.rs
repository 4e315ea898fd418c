//! Substrates, as far as they are the same with any machine.

use crate::former::sql;
use forkyard_e2e::{Host, Process, eventually, is_sound, sweep};
use forkyard_types::{ActivateResponse, CloneResult, SubstrateView, VmState, VmView};
use serde_json::json;
use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

pub fn substrates(host: &Host) -> Vec<SubstrateView> {
    host.json(["substrate", "ls"])
}

pub fn activate(host: &Host, words: &[&str]) -> Vec<VmView> {
    let all = [&["substrate", "activate"], words].concat();
    let answer: ActivateResponse = host.json(all);
    let made = answer.vms.into_iter().map(|made| match made {
        CloneResult::Vm(vm) => *vm,
        CloneResult::Error(error) => panic!("{error:?}"),
    });
    made.collect()
}

fn with_p() -> Host {
    let host = Host::fake();
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 3");
    host
}

/// Tells whether a list of VMs waits for some that are being made: others that ask later are answered,
/// again and again, and it is not.
pub fn waits_for_made(host: &Host) -> bool {
    const OTHERS: usize = 30;
    let mut socket = UnixStream::connect(host.folder().join("run/api.sock")).expect("a daemon");
    let ask = "GET /v1/vms?made=true HTTP/1.0\r\n\r\n";
    socket.write_all(ask.as_bytes()).expect("asked");
    for _ in 0..OTHERS {
        host.get("/openapi.json");
    }
    socket.set_nonblocking(true).expect("set");
    let answered = socket.read(&mut [0; 16]);
    answered.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn vms_that_are_being_made_are_removed_with_all_others() {
    let host = with_p();
    host.ok(DOCK);
    // Without a VM the daemon would end, and wait for the pager.
    host.ok(["run", "tiny", "--name", "other"]);
    let pagers = host.processes("forkyard-pager");
    assert!(!waits_for_made(&host), "none is being made");
    // None is made without the pager's help. One is removed by the name that it is about to have.
    pagers.iter().for_each(Process::stop);
    let made = host.start(["substrate", "activate", "s", "--as", "q"], "");
    eventually("a VM to be on its way", || waits_for_made(&host));
    let removed = host.start(["rm", "q"], "");
    pagers.iter().for_each(Process::go_on);
    let (_, removed) = (made.wait(), removed.wait());
    removed.exited(0);
    assert_eq!(host.vms().len(), 1, "the other alone");
    pagers.iter().for_each(Process::stop);
    let made = host.start(["substrate", "activate", "s", "--count", "2"], "");
    eventually("VMs to be on their way", || waits_for_made(&host));
    let removed = host.start(["rm", "--all"], "");
    pagers.iter().for_each(Process::go_on);
    let (_, removed) = (made.wait(), removed.wait());
    removed.exited(0);
    assert!(host.vms().is_empty());
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

const DOCK: [&str; 7] = ["substrate", "dock", "p", "--name", "s", "--kind", "public"];

#[test]
fn a_vm_ends_as_a_substrate_and_comes_back_as_many_of_families_of_their_own() {
    let host = with_p();
    host.ok(DOCK);
    assert!(host.vms().is_empty());
    // By another daemon and another pager.
    host.kill_9("forkyardd");
    host.kill_whole_pager();
    let vms = activate(&host, &["s", "--count", "2"]);
    assert_ne!(vms[0].family, vms[1].family);
    for vm in &vms {
        let name = vm.name.as_str();
        assert_eq!((vm.parent, vm.member.0), (None, 0));
        assert_eq!(host.sh(name, "peek 7 && hostname"), format!("3\n{name}"));
    }
    let one = activate(&host, &["s", "--as", "web"]).remove(0);
    assert_eq!(one.name.as_str(), "web");
    // A founder like any other: it is forked, stops and starts.
    host.sh("web", "poke 7 4");
    let clone = host.fork("web", 1).remove(0);
    assert_eq!((clone.family, clone.name.as_str()), (one.family, "web-1"));
    assert_eq!(host.sh("web-1", "peek 7"), "4");
    host.ok(["stop", "web"]);
    host.ok(["start", "web"]);
    assert_eq!(host.sh("web", "hostname"), "web");
    let over: Vec<_> = substrates(&host).remove(0).vms;
    assert!(over.len() >= 3, "{over:?}");
    host.fails(["substrate", "rm", "s"]);
    // One whose agent would not understand this version is not waited for.
    host.kill_9("forkyardd");
    let former = "UPDATE substrate SET entry = json_set(entry, '$.agent', 3)";
    sql(&host.folder().join("state"), former);
    let refused = host.fails(["substrate", "activate", "s"]);
    assert!(refused.contains("speaks version 3"), "{refused}");
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn a_vm_that_is_docked_live_runs_on() {
    let host = with_p();
    let pid = host.vm("p").pid;
    host.start(DOCK.iter().chain(&["--live"]), "")
        .wait()
        .exited(0);
    host.sh("p", "poke 7 5");
    let vms = host.vms();
    assert_eq!(vms.len(), 1, "{vms:?}");
    assert_eq!(
        (host.vm("p").pid, host.vm("p").state),
        (pid, VmState::Running)
    );
    let vm = activate(&host, &["s"]).remove(0);
    assert_eq!(host.sh(vm.name.as_str(), "peek 7"), "3");
    // What was activated can be docked in turn, and then what it lies over is needed.
    host.ok([
        "substrate",
        "dock",
        vm.name.as_str(),
        "--name",
        "t",
        "--kind",
        "private",
    ]);
    host.fails(["substrate", "rm", "s"]);
    let second = activate(&host, &["t"]).remove(0);
    assert_eq!(host.sh(second.name.as_str(), "peek 7"), "3");
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "t", "s"]);
    host.end();
}

#[test]
fn what_cannot_be_docked_or_activated_is_refused_and_costs_nothing() {
    let host = with_p();
    host.fork("p", 1);
    host.fails(DOCK);
    host.ok(["rm", "p-1"]);
    host.ok(["pause", "p"]);
    host.fails(DOCK);
    host.ok(["resume", "p"]);
    host.fails(["substrate", "dock", "q", "--name", "s", "--kind", "public"]);
    host.fails(["substrate", "activate", "s"]);
    assert!(substrates(&host).is_empty());
    host.start(DOCK.iter().chain(&["--live"]), "")
        .wait()
        .exited(0);
    host.fails(DOCK);
    host.fails(["substrate", "activate", "s", "--as", "p"]);
    host.fails(["substrate", "activate", "s", "--count", "0"]);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_a_dock_leaves_the_vm_or_the_substrate() {
    let host = Host::fake().counted();
    let run = ["run", "tiny", "--name", "p"];
    host.start(run, "").wait().exited(0);
    sweep(&host, DOCK, 24, |host| {
        let (vms, kept) = (host.vms(), substrates(host));
        match kept.first() {
            None => assert_eq!(host.vm("p").state, VmState::Running),
            Some(substrate) => {
                assert!(substrate.ready && vms.is_empty(), "{substrate:?} {vms:?}");
                activate(host, &["s", "--as", "x"]);
                host.ok(["rm", "x"]);
                host.ok(["substrate", "rm", "s"]);
                host.ok(run);
            }
        }
    });
    is_sound(&host);
    host.end();
}

#[test]
fn a_daemon_killed_at_any_step_of_an_activation_or_a_removal_costs_no_substrate() {
    let host = Host::fake().counted();
    host.start(["run", "tiny", "--name", "p"], "")
        .wait()
        .exited(0);
    host.ok(DOCK);
    sweep(
        &host,
        [
            "substrate",
            "activate",
            "s",
            "--count",
            "2",
            "--memory",
            "512M",
        ],
        16,
        |host| {
            if !host.vms().is_empty() {
                host.ok(["rm", "--all"]);
            }
            assert!(
                substrates(host)
                    .iter()
                    .all(|it| it.ready && it.vms.is_empty())
            );
        },
    );
    let vm = activate(&host, &["s"]).remove(0);
    host.ok(["rm", vm.name.as_str()]);
    host.ok(["substrate", "rm", "s"]);
    is_sound(&host);
    host.end();
}

#[test]
fn what_is_pushed_is_pulled_by_another_host_and_damage_is_found() {
    let host = with_p();
    host.ok(DOCK);
    let store = tempfile::tempdir().expect("a folder");
    let folder = store.path().display().to_string();
    let own = store.path().join("s");
    // One that depends on another one is whole where it is pushed.
    let vm = activate(&host, &["s"]).remove(0);
    host.sh(vm.name.as_str(), "poke 9 4");
    host.ok([
        "substrate",
        "dock",
        vm.name.as_str(),
        "--name",
        "t",
        "--kind",
        "private",
    ]);
    for name in ["s", "t"] {
        host.ok(["substrate", "push", name, &folder]);
    }
    let key = host.ok(["substrate", "key"]).trim().to_owned();
    host.ok(["substrate", "rm", "t", "s"]);
    host.end();

    let other = Host::fake();
    // Without the guest image it lies over.
    other.ok(["run", "tiny", "--name", "x"]);
    let (s, t) = (format!("{folder}/s"), format!("{folder}/t"));
    let said = other.fails(["substrate", "pull", &s]);
    assert!(said.contains(&key), "{said}");
    other.fails(["substrate", "pull", &s, "--trust", &"0".repeat(64)]);
    let pull = ["substrate", "pull", &s, "--trust", &key];
    other.ok(["substrate", "pull", &t, "--trust", &key]);
    other.ok(pull);
    other.fails(pull);
    let vm = activate(&other, &["t", "--as", "y"]).remove(0);
    assert_eq!(other.sh(vm.name.as_str(), "peek 7; peek 9"), "3\n4");
    other.ok(["rm", "--all"]);
    other.ok(["substrate", "rm", "t", "s"]);
    // Each file of it, cut short or changed.
    for file in ["memory.pages", "disk.pages", "devices", "substrate.json"] {
        let path = own.join(file);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        other.fails(pull);
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        std::fs::write(&path, &changed).expect("written");
        other.fails(pull);
        std::fs::write(&path, &whole).expect("written");
        assert!(substrates(&other).is_empty());
    }
    std::fs::remove_file(own.join("substrate.sig")).expect("removed");
    other.fails(pull);
    // Nor is it believed what it says of itself.
    let unsigned = ["substrate", "pull", &s, "--unsigned"];
    let path = own.join("substrate.json");
    let whole = std::fs::read(&path).expect("read");
    let told = |field: &str, value: serde_json::Value| {
        let mut manifest: serde_json::Value = serde_json::from_slice(&whole).expect("JSON");
        *manifest.pointer_mut(field).expect("a field") = value;
        std::fs::write(&path, manifest.to_string()).expect("written");
    };
    for (field, value) in [
        ("/entry/vcpus", json!(0)),
        ("/entry/memory", json!(1u64 << 63)),
        ("/entry/memory", json!(128 << 20)),
        ("/entry/booted", json!(0)),
        ("/entry/booted", json!(64 << 20)),
        ("/entry/engine", json!("")),
        ("/entry/engine", json!(null)),
        ("/entry/parts/memory/over", json!("0".repeat(32))),
        ("/entry/parts/memory/image", json!("0".repeat(32))),
        ("/entry/parts/disk/image", json!("0".repeat(32))),
        ("/files/devices/bytes", json!(u64::MAX)),
    ] {
        told(field, value);
        other.fails(unsigned);
    }
    // Made on another CPU it is refused before anything starts, with what differs.
    told("/entry/cpu/model", json!("elsewhere"));
    other.ok(unsigned);
    let said = other.fails(["substrate", "activate", "s"]);
    assert!(said.contains("elsewhere"), "{said}");
    assert!(other.vms().is_empty());
    other.ok(["substrate", "rm", "s"]);
    for value in [0, u64::MAX] {
        told("/entry/parts/memory/file", json!(value));
        other.ok(unsigned);
        let size = substrates(&other)[0].size.0;
        assert!((1..1 << 30).contains(&size), "{size}");
        other.ok(["substrate", "rm", "s"]);
    }
    other.end();
}

#[test]
fn a_first_boot_is_kept_and_others_are_woken_from_it() {
    let host = Host::fake().owning_cache().keeping_boots();
    host.ok(["run", "tiny", "--name", "a"]);
    let kept = |host: &Host| {
        let all = substrates(host).into_iter();
        all.filter(|it| it.boot && it.ready).collect::<Vec<_>>()
    };
    eventually("it is kept", || {
        kept(&host).len() == 1 && host.vms().len() == 1
    });
    host.ok([
        "run",
        "tiny",
        "--name",
        "b",
        "--secret",
        "/etc/key",
        "--max-clones",
        "1",
    ]);
    // Woken, as one of its own.
    assert_eq!(kept(&host)[0].vms, ["b".parse().expect("a name")]);
    assert_eq!(host.sh("b", "hostname"), "b");
    assert_ne!(host.vm("a").family, host.vm("b").family);
    assert_eq!(host.vm("b").parent, None);
    host.fork("b", 1);
    host.fails(["fork", "b", "-n", "1"]);
    // Another size is another boot, and one that is told to boot does.
    host.ok(["run", "tiny", "--name", "c", "--cold"]);
    host.ok(["run", "tiny", "--name", "d", "--memory", "128"]);
    assert_eq!(kept(&host)[0].vms.len(), 2, "b and its clone");
    eventually("both are kept", || {
        kept(&host).len() == 2 && host.vms().len() == 5
    });
    host.fails(["run", "tiny", "--name", "a"]);
    host.fails(["image", "rm", "tiny"]);
    host.ok(["rm", "--all"]);
    for name in kept(&host) {
        host.ok(["substrate", "rm", name.name.as_str()]);
    }
    host.end();
}

#[test]
fn a_pool_that_is_full_refuses_another_and_the_vm_runs_on() {
    let host = Host::fake().telling("FORKYARD_SUBSTRATE_POOL", "0");
    host.ok(["run", "tiny", "--name", "p"]);
    host.sh("p", "poke 7 3");
    let said = host.fails(DOCK);
    assert!(said.contains("nothing in it can be removed"), "{said}");
    assert_eq!(host.sh("p", "peek 7"), "3");
    assert!(substrates(&host).is_empty());
    host.end();
}

#[test]
fn a_substrate_that_is_damaged_on_disk_is_refused_and_others_wake() {
    let host = with_p();
    // The second may lie over the first, and needs that.
    for name in ["t", "s"] {
        host.ok([
            "substrate",
            "dock",
            "p",
            "--name",
            name,
            "--kind",
            "public",
            "--live",
        ]);
    }
    host.ok(["rm", "--all"]);
    let seen: forkyard_types::SubstrateInspect = host.json(["substrate", "inspect", "s"]);
    let image = seen.parts.expect("kept").memory.image.to_string();
    let folder = host.folder().join("state/substrates").join(image);
    for file in ["devices", "memory.pages", "disk.pages"] {
        let path = folder.join(file);
        let whole = std::fs::read(&path).expect("read");
        let mut changed = whole.clone();
        changed[9] ^= 1;
        std::fs::write(&path, changed).expect("written");
        // What is served already was read when it was whole.
        host.kill_9("forkyardd");
        host.kill_whole_pager();
        let said = host.fails(["substrate", "activate", "s"]);
        assert!(said.contains(file), "{said}");
        assert!(host.vms().is_empty());
        activate(&host, &["t", "--as", "x"]);
        host.ok(["rm", "x"]);
        std::fs::write(&path, whole).expect("written");
    }
    activate(&host, &["s"]);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s", "t"]);
    host.end();
}

#[test]
fn activations_at_the_same_time_get_names_of_their_own() {
    let host = with_p();
    host.ok(DOCK);
    let all: Vec<_> = (0..6)
        .map(|_| host.start(["substrate", "activate", "s", "--count", "2"], ""))
        .collect();
    for one in all {
        one.wait().exited(0);
    }
    assert_eq!(host.vms().len(), 12);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "s"]);
    host.end();
}
