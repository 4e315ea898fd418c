//! An instant that is kept, and forked when its VM has long gone.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{VmInspect, VmState, VmView};
use std::{fs, path::Path};

#[test]
fn a_checkpoint_is_forked_after_its_vm_is_gone_and_everything_was_restarted() {
    let host = Host::with_woken_p([]);
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/then bs=64k count=128 2>/dev/null; cp /m/then /d/then; sync; sleep 100000 </dev/null >/dev/null 2>&1 &",
    );
    let told = host.sums("p", "/m/then /d/then");
    let kept: VmView = host.json(["checkpoint", "p", "--name", "then"]);
    assert_eq!(kept.state, VmState::Checkpoint);
    host.sh(
        "p",
        "yes now | head -c 64k >/m/piece; all=; i=0; \
         while [ $i -lt 128 ]; do i=$((i + 1)); all=\"$all /m/piece\"; done; \
         cat $all >/m/then; cp /m/then /d/then; sync",
    );
    assert_ne!(host.sums("p", "/m/then /d/then"), told);

    // A clone of it beside the VM it is of, which goes on.
    let clone = host.fork("then", 1).remove(0);
    let name = clone.name.as_str();
    assert_eq!((clone.parent, clone.family), (Some(kept.id), kept.family));
    assert_eq!(host.sums(name, "/m/then /d/then"), told);
    assert!(!host.sh(name, "pidof sleep").is_empty(), "it goes on");
    assert_eq!(host.sh(name, "hostname"), name);
    host.ok(["rm", "p", name]);

    // As after a restart of the host: no process and nothing mounted is left.
    host.kill_9("forkyardd");
    eventually("its end", || host.processes("forkyardd").is_empty());
    host.kill_whole_pager();
    assert_eq!(host.vm("then").state, VmState::Checkpoint);
    let clones = host.fork("then", 2);
    for clone in &clones {
        assert_eq!(host.sums(clone.name.as_str(), "/m/then /d/then"), told);
    }
    assert_ne!(clones[0].epoch, clones[1].epoch);

    // In use, its memory and disk stay although it is removed.
    host.ok(["rm", "then"]);
    let complaint = host.fails(["fork", "then"]);
    assert!(complaint.contains("no VM \"then\""), "{complaint}");
    for clone in &clones {
        host.sh(clone.name.as_str(), "echo 3 >/proc/sys/vm/drop_caches");
        assert_eq!(host.sums(clone.name.as_str(), "/m/then /d/then"), told);
    }
    host.end();
}

#[test]
fn a_checkpoint_that_is_damaged_or_lacks_a_part_is_refused() {
    let host = Host::with_woken_p([]);
    a_damaged_checkpoint_is_refused_and_nothing_is_left_of_the_attempt(&host);
    for vm in host.vms() {
        if vm.name.as_str() != "p" {
            host.ok(["rm", vm.name.as_str()]);
        }
    }
    a_checkpoint_without_a_part_of_its_memory_or_disk_is_refused_until_it_is_back(&host);
    host.end();
}

#[track_caller]
fn a_damaged_checkpoint_is_refused_and_nothing_is_left_of_the_attempt(host: &Host) {
    let kept: VmView = host.json(["checkpoint", "p", "--live"]);
    assert_eq!(kept.name.as_str(), "p-at-1");
    let devices = host.folder().join(format!("state/vms/{}/devices", kept.id));
    let whole = std::fs::read(&devices).expect("there");
    std::fs::write(&devices, &whole[..whole.len() / 2]).expect("cut");
    let complaint = host.fails(["fork", "p-at-1", "--count", "2"]);
    assert!(complaint.contains("a clone failed"), "{complaint}");
    std::fs::write(&devices, &whole).expect("restored");
    assert_eq!(host.fork("p-at-1", 2).len(), 2);
    let complaint = host.exec_refused("p-at-1");
    assert!(complaint.contains("not running"), "{complaint}");
    let complaint = host.fails(["checkpoint", "p", "--name", "p-at-1"]);
    assert!(complaint.contains("p-at-1"), "{complaint}");
}

#[track_caller]
fn a_checkpoint_without_a_part_of_its_memory_or_disk_is_refused_until_it_is_back(host: &Host) {
    host.sh(
        "p",
        "dd if=/dev/urandom of=/m/then bs=64k count=128 2>/dev/null; cp /m/then /d/then; sync; echo 3 >/proc/sys/vm/drop_caches",
    );
    let told = host.sums("p", "/m/then /d/then");
    let kept: VmView = host.json(["checkpoint", "p", "--name", "c"]);
    let inspected: VmInspect = host.json(["inspect", "c"]);
    let slice = Path::new(&inspected.disk[0].path);
    let memory = host
        .folder()
        .join(format!("state/vms/{}/memory.pages", kept.id));
    let refused = |part: &Path, vms: usize| {
        let complaint = host.fails(["fork", "c"]);
        let name = part.file_name().and_then(|name| name.to_str());
        assert!(complaint.contains(name.expect("text")), "{complaint}");
        assert_eq!(host.vms().len(), vms, "nothing is listed of it");
    };
    let aside = host.folder().join("aside");
    let used = host.fails(["image", "rm", "tiny"]);
    assert!(used.contains("in use by p"), "{used}");

    // A slice that p has open: it goes on.
    fs::rename(slice, &aside).expect("moved");
    refused(slice, 2);
    host.sh("p", "echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(host.sums("p", "/m/then /d/then"), told);
    fs::rename(&aside, slice).expect("back");

    // As after a restart of the host, with nothing in any process's memory.
    host.ok(["rm", "p"]);
    host.kill_9("forkyardd");
    eventually("its end", || host.processes("forkyardd").is_empty());
    host.kill_whole_pager();
    fs::rename(&memory, &aside).expect("moved");
    let used = host.fails(["image", "rm", "tiny"]);
    assert!(used.contains("in use by c"), "{used}");
    host.ok(["run", "tiny", "--name", "q"]);
    refused(&memory, 2);
    let whole = fs::read(&aside).expect("there");
    for cut in [0, 1000, whole.len() / 2, whole.len() - 1] {
        fs::write(&memory, &whole[..cut]).expect("cut");
        refused(&memory, 2);
    }
    assert_eq!(host.sh("q", "hostname"), "q");
    fs::write(&memory, &whole).expect("restored");
    fs::remove_file(&aside).expect("removed");
    let clone = host.fork("c", 1).remove(0);
    assert_eq!(host.sums(clone.name.as_str(), "/m/then /d/then"), told);
}
