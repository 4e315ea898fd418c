//! A daemon is killed before the Nth thing it does for a VM that moves: that of the host it
//! leaves, and that of the host it comes to. Exactly one of the two has it afterwards.

use forkyard_e2e::{Cluster, eventually, is_sound, steps};
use forkyard_types::{VmState, VmView, VolumeView};

/// Steps that are tried, spread evenly; `FORKYARD_E2E_STEPS=1` tries all.
const SOME: u64 = 7;

/// Hosts that have `p`, and the state it is in there.
fn places(cluster: &Cluster) -> Vec<(usize, VmState)> {
    let at = |number: usize| {
        let own = |vm: &VmView| vm.host.is_none() && vm.name.as_str() == "p";
        let vms = cluster.host(number).vms().into_iter();
        vms.filter(own).map(move |vm| (number, vm.state))
    };
    (0..2).flat_map(at).collect()
}

/// Its volume, if it has one, is where it is, and at most a copy elsewhere.
fn its_volume_is_with_it(cluster: &Cluster) {
    let volumes =
        |number: usize| -> Vec<VolumeView> { cluster.host(number).json(["volume", "ls"]) };
    eventually("its volume to be with it, and nowhere else", || {
        let [(at, _)] = places(cluster)[..] else {
            return false;
        };
        let (with, other) = (volumes(at), volumes(1 - at));
        let is_with = |it: &VolumeView| {
            it.at.is_none() && it.vm.as_ref().is_some_and(|vm| vm.as_str() == "p")
        };
        let is_copy = |it: &VolumeView| it.at == Some(format!("h{at}")) && it.vm.is_none();
        with.iter().all(is_with) && other.iter().all(is_copy) && with.len() >= other.len()
    });
}

/// Moves `p` home, if it is not there.
fn home(cluster: &Cluster) {
    eventually("exactly one of them to have it", || {
        matches!(places(cluster)[..], [(_, VmState::Running)])
    });
    its_volume_is_with_it(cluster);
    if places(cluster)[0].0 == 1 {
        cluster.host(1).ok(["migrate", "p", "--to", "h0"]);
    }
    assert_eq!(places(cluster), [(0, VmState::Running)]);
    eventually("the other to know of nothing", || {
        cluster.host(1).vms().iter().all(|vm| vm.host.is_some())
    });
}

fn sweep(cluster: &mut Cluster, dying: usize) {
    let epoch = cluster.host(0).vm("p").epoch;
    cluster.host(dying).steps().count_only();
    cluster.host(0).ok(["migrate", "p", "--to", "h1"]);
    let total = cluster.host(dying).steps().stop();
    home(cluster);
    let mut reached = 0;
    for step in steps::chosen(total, SOME) {
        cluster.host(dying).steps().kill_at(step);
        let outcome = cluster
            .host(0)
            .start(["migrate", "p", "--to", "h1"], "")
            .wait();
        cluster.host(dying).steps().stop();
        let call = cluster.host(dying).steps().died_before();
        let code = outcome.code;
        eprintln!("migrate, host {dying}: {step} of {total}, {call}: {code:?}");
        reached += u32::from(!call.is_empty());
        cluster.replace_daemon(dying);
        if outcome.code == Some(0) {
            eventually("it to be where it was said to be", || {
                places(cluster) == [(1, VmState::Running)]
            });
        }
        home(cluster);
        assert_eq!(cluster.host(0).vm("p").epoch, epoch);
        for host in [0, 1] {
            is_sound(cluster.host(host));
        }
    }
    assert!(reached > 0, "the daemon was never killed");
}

#[test]
fn a_daemon_killed_at_any_step_of_a_migration_leaves_its_vm_on_exactly_one_host() {
    let mut cluster = Cluster::fake_with_steps(2);
    for on_volume in [false, true] {
        let words = ["run", "tiny", "--name", "p", "--volume", "d"];
        let words = if on_volume { &words[..] } else { &words[..4] };
        cluster.host(0).start(words.iter(), "").wait().exited(0);
        sweep(&mut cluster, 0);
        sweep(&mut cluster, 1);
        cluster.host(0).ok(["rm", "p"]);
    }
    // Of neither host's copy does anything need the other.
    for host in [0, 1] {
        let left: Vec<VolumeView> = cluster.host(host).json(["volume", "ls"]);
        for volume in left {
            cluster
                .host(host)
                .ok(["volume", "rm", volume.name.as_str()]);
        }
    }
    cluster.end();
}
