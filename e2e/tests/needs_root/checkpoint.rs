//! An instant that is kept, and forked when its VM has long gone.

use forkyard_e2e::{Host, eventually};
use forkyard_types::{VmState, VmView};

#[test]
fn a_checkpoint_is_forked_after_its_vm_is_gone_and_everything_was_restarted() {
    let host = Host::with_p([]);
    host.sh(
        "p",
        "head -c 8m /dev/urandom | tee /m/then >/d/then; sync; sleep 100000 </dev/null >/dev/null 2>&1 &",
    );
    let told = host.sums("p", "/m/then /d/then");
    let kept: VmView = host.json(["checkpoint", "p", "--name", "then"]);
    assert_eq!(kept.state, VmState::Checkpoint);
    host.sh("p", "yes now | head -c 8m | tee /m/then >/d/then; sync");
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
fn a_damaged_checkpoint_is_refused_and_nothing_is_left_of_the_attempt() {
    let host = Host::with_p([]);
    let kept: VmView = host.json(["checkpoint", "p", "--live"]);
    assert_eq!(kept.name.as_str(), "p-at-1");
    let devices = host.folder().join(format!("state/vms/{}/devices", kept.id));
    let whole = std::fs::read(&devices).expect("there");
    std::fs::write(&devices, &whole[..whole.len() / 2]).expect("cut");
    let complaint = host.fails(["fork", "p-at-1", "--count", "2"]);
    assert!(complaint.contains("a clone failed"), "{complaint}");
    std::fs::write(&devices, &whole).expect("restored");
    assert_eq!(host.fork("p-at-1", 2).len(), 2);
    let complaint = host.fails(["exec", "p-at-1", "--", "true"]);
    assert!(complaint.contains("not running"), "{complaint}");
    let complaint = host.fails(["checkpoint", "p", "--name", "p-at-1"]);
    assert!(complaint.contains("p-at-1"), "{complaint}");
    host.end();
}
