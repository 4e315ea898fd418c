//! Substrates with a real guest: what is in them, and what comes of them.

use crate::cluster::made;
use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{ByteCount, CloneResult, ForkResponse, SubstrateInspect, VmView};
use std::collections::BTreeSet;

/// Most bytes that a substrate of `tiny` may take.
const SMALL: ByteCount = ByteCount(16 << 20);

fn activate(host: &Host, name: &str, count: u16) -> Vec<VmView> {
    let count = count.to_string();
    activate_as(host, name, &["--count", &count])
}

fn activate_as(host: &Host, name: &str, words: &[&str]) -> Vec<VmView> {
    let words = [&["substrate", "activate", name], words].concat();
    let answer: forkyard_types::ActivateResponse = host.json(words);
    let made = answer.vms.into_iter().map(|made| match made {
        CloneResult::Vm(vm) => *vm,
        CloneResult::Error(error) => panic!("{error:?}"),
    });
    made.collect()
}

#[test]
fn a_docked_vm_wakes_as_independent_ones_that_have_its_files_and_not_its_secrets() {
    let host = Host::new();
    // The kernel keeps more for itself where there is more.
    let run = ["run", "tiny", "--name", "p", "--memory", "512"];
    let words = run.iter().chain(&["--secret", "/etc/key"]);
    host.start(words, "").wait().exited(0);
    host.sh(
        "p",
        "echo hunter2 >/etc/key; echo kept >/root/file; echo typed >/root/.ash_history
         touch /etc/machine-id; (while :; do echo x >>/run/count; sleep 0.1; done) >/dev/null 2>&1 &
         mkdir -p /etc/ssh; touch /etc/ssh/sshd_config; echo old >/etc/ssh/ssh_host_rsa_key
         printf '#!/bin/sh\nhead -c 16 /dev/urandom | hexdump -C >/etc/ssh/ssh_host_rsa_key\n' >/usr/bin/ssh-keygen
         chmod +x /usr/bin/ssh-keygen
         dd if=/dev/urandom of=/root/noise bs=1M count=32 2>/dev/null; rm /root/noise",
    );
    let before = host.sh("p", "cat /etc/machine-id");
    host.ok([
        "substrate",
        "dock",
        "p",
        "--name",
        "base",
        "--kind",
        "public",
    ]);
    assert!(host.vms().is_empty(), "it has ended as the substrate");
    let seen: SubstrateInspect = host.json(["substrate", "inspect", "base"]);
    println!("{seen:#?}");
    assert!(seen.substrate.size < SMALL, "{seen:?}");
    let guest = seen.guest.expect("prepared");
    assert!(
        guest.given_back > ByteCount(100 << 20) && guest.notes.is_empty(),
        "{guest:?}"
    );

    // By another daemon and another pager.
    host.kill_9("forkyardd");
    host.kill_whole_pager();
    host.ok(["substrate", "standby", "base", "--count", "1"]);
    let standby = || -> forkyard_types::StandbyView {
        let seen: SubstrateInspect = host.json(["substrate", "inspect", "base"]);
        seen.substrate.standby.expect("kept ready")
    };
    eventually("one is ready", || standby().ready == 1);
    println!("{:?}", standby());
    // One of them was ready, and is as the others are.
    let vms = activate(&host, "base", 3);
    assert!(standby().hits >= 1, "{:?}", standby());
    host.ok(["substrate", "standby", "base", "--count", "0"]);
    let distinct = |what: &dyn Fn(&VmView) -> String| {
        let all: BTreeSet<_> = vms.iter().map(what).collect();
        assert_eq!(all.len(), vms.len(), "{all:?}");
    };
    distinct(&|vm| vm.family.to_string());
    distinct(&|vm| vm.address.ip.to_string());
    distinct(&|vm| host.sh(vm.name.as_str(), "cat /etc/machine-id"));
    distinct(&|vm| host.sh(vm.name.as_str(), "head -c 16 /dev/urandom | hexdump -C"));
    // Each has host keys of its own, made anew.
    for vm in &vms {
        host.wait_in(vm.name.as_str(), "[ -s /etc/ssh/ssh_host_rsa_key ]");
    }
    distinct(&|vm| host.sh(vm.name.as_str(), "cat /etc/ssh/ssh_host_rsa_key"));
    for vm in &vms {
        let name = vm.name.as_str();
        assert_eq!((vm.parent, vm.member.0), (None, 0));
        assert_eq!(
            host.sh(name, "hostname; cat /root/file"),
            format!("{name}\nkept")
        );
        assert_ne!(host.sh(name, "cat /etc/machine-id"), before);
        assert_eq!(
            host.sh(name, "ls /etc/key /root/.ash_history 2>/dev/null || true"),
            ""
        );
        // What it gave back is its own again.
        let free = host.sh(name, "awk '/MemFree/ {print $2}' /proc/meminfo");
        assert!(free.parse::<u64>().expect("a number") > 100 << 10, "{free}");
        // Programs of the instant go on.
        host.wait_in(
            name,
            "a=$(wc -l </run/count); sleep 0.3; [ $(wc -l </run/count) -gt $a ]",
        );
        host.sh(name, "echo own >/root/file && sync");
    }
    // They are whole VMs: they fork, and boot again from their own disks.
    let first = vms[0].name.as_str();
    let clone = host.fork(first, 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "cat /root/file"), "own");
    let second = vms[1].name.as_str();
    host.ok(["stop", second]);
    host.ok(["start", second]);
    assert_eq!(
        host.sh(second, "hostname; cat /root/file"),
        format!("{second}\nown")
    );
    // What a substrate has in common with another is stored once.
    let third = vms[2].name.as_str();
    host.ok([
        "substrate",
        "dock",
        third,
        "--name",
        "next",
        "--kind",
        "private",
    ]);
    let next: SubstrateInspect = host.json(["substrate", "inspect", "next"]);
    let parts = next.parts.clone().expect("kept");
    assert!(parts.memory.over.is_some(), "{parts:?}");
    assert!(
        next.substrate.size.0 * 3 < seen.substrate.size.0,
        "{next:?}"
    );
    let woken = activate(&host, "next", 1).remove(0);
    let name = woken.name.as_str();
    assert_eq!(host.sh(name, "cat /root/file"), "own");
    // Its disk becomes its own while it writes.
    let sums = "find /bin /sbin /lib /root/file -type f | sort | xargs cat | md5sum";
    let before = host.sh(name, sums);
    host.sh(
        name,
        "(while :; do echo x >>/root/count; sync; sleep 0.05; done) >/dev/null 2>&1 &",
    );
    host.ok(["independent", name, "--wait"]);
    host.sh(name, "echo 3 >/proc/sys/vm/drop_caches");
    host.wait_in(
        name,
        "a=$(wc -l </root/count); sleep 0.3; [ $(wc -l </root/count) -gt $a ]",
    );
    assert_eq!(host.sh(name, sums), before);
    host.fails(["substrate", "rm", "base"]);
    host.ok(["substrate", "rm", "next"]);
    host.ok(["stop", name]);
    host.ok(["start", name]);
    assert_eq!(host.sh(name, sums), before);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "base"]);
    host.end();
}

#[test]
fn a_second_run_is_woken_and_is_a_vm_like_any_other() {
    let host = Host::new().owning_cache().keeping_boots();
    host.ok(["run", "tiny", "--name", "a"]);
    host.sh("a", "echo mine >/root/file && sync");
    let boots = || -> Vec<forkyard_types::SubstrateView> { host.json(["substrate", "ls"]) };
    eventually("a boot is kept", || {
        boots().iter().any(|it| it.boot && it.ready)
    });
    eventually("what it was made of has ended", || host.vms().len() == 1);
    host.ok(["run", "tiny", "--name", "b"]);
    let kept = boots().remove(0);
    assert_eq!(kept.vms, ["b".parse().expect("a name")]);
    assert_eq!(
        host.sh("b", "hostname; ls /root/file 2>/dev/null || echo none"),
        "b\nnone"
    );
    // Its programs are not told that they are a clone's.
    assert_eq!(host.sh("b", "vmfork id"), "0");
    let machine = |name: &str| host.sh(name, "head -c 16 /dev/urandom | hexdump -C");
    assert_ne!(machine("a"), machine("b"));
    host.sh("b", "echo b >/root/file && sync");
    let clone = host.fork("b", 1).remove(0);
    assert_eq!(host.sh(clone.name.as_str(), "cat /root/file"), "b");
    host.ok(["checkpoint", "b", "--name", "c"]);
    host.ok(["rm", clone.name.as_str()]);
    host.ok(["stop", "b"]);
    host.ok(["start", "b"]);
    assert_eq!(host.sh("b", "cat /root/file; hostname"), "b\nb");
    host.ok(["rm", "--all"]);
    // It is in the cache as well, for hosts that share it, until its image goes.
    let cached = host.cache().join("boots").join(kept.name.as_str());
    assert!(cached.join("substrate.json").exists());
    host.ok(["image", "rm", "tiny"]);
    assert!(boots().is_empty() && !cached.exists());
    host.end();
}

#[test]
fn a_woken_vm_is_forked_to_another_host() {
    let cluster = Cluster::new(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p"]);
    here.sh("p", "echo kept >/root/file; sync");
    let dock = ["substrate", "dock", "p", "--name", "base", "--kind"];
    here.start(dock.iter().chain(&["private"]), "")
        .wait()
        .exited(0);
    // Larger than it was docked.
    let size = ["--memory", "512M", "--vcpus", "2"];
    let woken = activate_as(here, "base", &size).remove(0);
    let name = woken.name.as_str();
    here.sh(name, "echo own >/root/own; sync");
    fill(here, name, 260);
    let answer: ForkResponse = here.json(["fork", name, "-n", "1", "--to", "h1"]);
    let clone = made(answer).remove(0);
    assert_eq!(
        there.sh(clone.name.as_str(), "cat /root/file /root/own"),
        "kept\nown"
    );
    assert_eq!(seen_by_guest(there, clone.name.as_str()), (true, 2));
    assert_eq!(sum(there, clone.name.as_str()), sum(here, name));
    here.ok(["rm", "--all"]);
    here.ok(["substrate", "rm", "base"]);
    cluster.end();
}

/// Fills memory of a guest with so many MiB of data.
fn fill(host: &Host, name: &str, mib: u32) {
    host.sh(
        name,
        &format!(
            "mkdir -p /m && mount -t tmpfs -o size={mib}m m /m
             dd if=/dev/urandom of=/m/some bs=1M count=4 2>/dev/null
             for i in $(seq 2 {}); do cat /m/some; done >/m/all",
            mib / 4
        ),
    );
}

/// Sums of parts of those data, the last ones among them.
fn sum(host: &Host, name: &str) -> String {
    host.sh(
        name,
        "n=$(($(stat -c %s /m/all) >> 20)); md5sum </m/some
         for at in 0 $((n / 2)) $((n - 8)); do dd if=/m/all bs=1M skip=$at count=8 2>/dev/null | md5sum; done",
    )
}

/// Checks that a guest of 512 MiB has as much, and counts its vCPUs.
fn seen_by_guest(host: &Host, name: &str) -> (bool, u32) {
    let (mib, vcpus) = memory_and_vcpus(host, name);
    ((440..512).contains(&mib), vcpus)
}

/// Checks that a guest's root disk is of so many GiB, and its file system nearly so.
fn has_disk(host: &Host, name: &str, gib: u64) {
    let said = host.sh(name, "cat /sys/block/vda/size; stat -f -c '%b %S' /");
    let numbers = said.split_whitespace().map(|it| it.parse::<u64>());
    let numbers: Vec<_> = numbers.collect::<Result<_, _>>().expect("numbers");
    let [sectors, blocks, block] = numbers[..] else {
        panic!("{said}");
    };
    assert_eq!(sectors * 512, gib << 30, "{name}");
    assert!(blocks * block > (gib << 30) / 10 * 9, "{name}: {said}");
}

/// MiB of memory and vCPUs, by the guest's account.
fn memory_and_vcpus(host: &Host, name: &str) -> (u64, u32) {
    let said = host.sh(name, "awk '/MemTotal/ {print $2}' /proc/meminfo; nproc");
    let (kib, vcpus) = said.split_once('\n').expect("two lines");
    let kib: u64 = kib.parse().expect("a number");
    (kib >> 10, vcpus.parse().expect("a number"))
}

#[test]
fn a_substrate_wakes_larger_than_it_was_docked_and_stays_so() {
    let host = Host::with_p([]);
    let dock = |vm: &str, name: &str| {
        host.ok(["substrate", "dock", vm, "--name", name, "--kind", "private"]);
    };
    dock("p", "base");
    // What cannot be is refused before anything starts, with what can.
    let refused = |words: &[&str]| {
        let all = ["substrate", "activate", "base"].iter().chain(words);
        let said = host.start(all, "").wait().exited(1).stderr;
        assert!(host.vms().is_empty());
        said
    };
    for (words, why) in [
        (["--memory", "900M"], "from 256 MiB to 896 MiB or 1 GiB"),
        (["--memory", "128M"], "cannot have less"),
        (["--memory", "8G"], "at most, 4 GiB"),
        (["--vcpus", "9"], "places for 8 vCPUs at most"),
        (["--vcpus", "0"], "wanted 1 to 64"),
        (["--disk", "64M"], "cannot have a smaller one"),
        (["--disk", "2048G"], "grows to 1024 GiB"),
    ] {
        let said = refused(&words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let seen: SubstrateInspect = host.json(["substrate", "inspect", "base"]);
    assert_eq!(seen.sizes.most_memory, ByteCount(4 << 30));

    let docked = seen.sizes.disk;
    let size = ["--memory", "1G", "--vcpus", "2", "--disk", "3G"];
    let run = ["run", "--from", "base", "--name", "big"];
    host.start(run.iter().chain(&size), "").wait().exited(0);
    let (mib, vcpus) = memory_and_vcpus(&host, "big");
    assert!((960..1024).contains(&mib), "{mib}");
    assert_eq!(vcpus, 2);
    let told: forkyard_types::VmInspect = host.json(["inspect", "big"]);
    assert_eq!(
        (told.vm.memory, told.vm.vcpus, told.booted),
        (ByteCount(1 << 30), 2, ByteCount(256 << 20))
    );
    // More than the docked one could hold, and both vCPUs work.
    fill(&host, "big", 260);
    host.sh(
        "big",
        "for c in 0 1; do taskset $((c + 1)) true || exit 1; done",
    );
    // More than was on the docked one's disk, which its file system has room for.
    assert!(docked < ByteCount(3 << 30), "{docked}");
    has_disk(&host, "big", 3);
    // What is larger than the docked disk takes all of that: what is written then lies beyond it.
    host.sh("big", "fallocate -l 300M /all && cp /m/some /far && sync");
    let far = |name: &str| host.sh(name, "md5sum </far");
    let written = far("big");
    // Clones, checkpoints and what is docked of it have all of that.
    let clone = host.fork("big", 1).remove(0);
    let clone = clone.name.as_str();
    assert_eq!(memory_and_vcpus(&host, clone), (mib, 2));
    let whole = sum(&host, "big");
    assert_eq!(sum(&host, clone), whole);
    has_disk(&host, clone, 3);
    assert_eq!(far(clone), written);
    host.ok(["rm", clone]);
    host.ok(["checkpoint", "big", "--name", "kept"]);
    let again = host.fork("kept", 1).remove(0);
    assert_eq!(sum(&host, again.name.as_str()), whole);
    host.ok(["rm", again.name.as_str(), "kept"]);
    host.sh("big", "rm /m/all");
    dock("big", "next");
    // It grows once more, and is kept ready in that size.
    let standby = [
        "substrate",
        "standby",
        "next",
        "--count",
        "1",
        "--vm-memory",
        "1152M",
        "--vm-vcpus",
        "3",
    ];
    host.ok(standby);
    let ready = || -> forkyard_types::StandbyView {
        let seen: SubstrateInspect = host.json(["substrate", "inspect", "next"]);
        seen.substrate
            .standby_larger
            .into_iter()
            .next()
            .expect("kept ready")
    };
    eventually("one is ready", || ready().ready == 1);
    let size = ["--as", "more", "--memory", "1152M", "--vcpus", "3"];
    activate_as(&host, "next", &size);
    assert_eq!(ready().hits, 1);
    host.ok(["substrate", "standby", "next", "--count", "0"]);
    assert_eq!(memory_and_vcpus(&host, "more"), (mib + 128, 3));
    has_disk(&host, "more", 3);
    assert_eq!(far("more"), written);
    host.ok(["rm", "more"]);
    let size = ["--as", "more", "--vcpus", "3", "--disk", "4G"];
    activate_as(&host, "next", &size);
    // From its own disk it boots with all that it has.
    host.ok(["stop", "more"]);
    host.ok(["start", "more"]);
    let told: forkyard_types::VmInspect = host.json(["inspect", "more"]);
    assert_eq!(told.booted, told.vm.memory);
    assert_eq!(memory_and_vcpus(&host, "more").1, 3);
    has_disk(&host, "more", 4);
    assert_eq!(far("more"), written);
    host.ok(["rm", "--all"]);
    host.ok(["substrate", "rm", "next"]);
    host.ok(["substrate", "rm", "base"]);
    host.end();
}
