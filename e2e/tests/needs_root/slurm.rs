//! A cluster whose room Slurm hands out: a real one, with a node for each host.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{CloneResult, ForkResponse, ListedVm, NodeView, VmId};
use std::collections::BTreeSet;

/// Processors that Slurm believes each host to have.
const CPUS: u32 = 4;

fn vms(from: &Host) -> BTreeSet<VmId> {
    let vms: Vec<ListedVm> = from.json(["ps"]);
    vms.into_iter().map(|it| it.vm.id).collect()
}

/// Lists the nodes on which Slurm has allocations, and how many processors.
fn allocations(cluster: &Cluster) -> Vec<String> {
    let shown = cluster.slurm("squeue", &["-h", "-t", "R", "-o", "%N %C"]);
    let mut shown: Vec<_> = shown.lines().map(str::to_owned).collect();
    shown.sort();
    shown
}

#[test]
fn vms_live_in_allocations_and_neither_outlives_the_other() {
    let mut cluster = Cluster::of_nodes_in_slurm(2, CPUS);
    cluster.join(1);
    let nodes: Vec<NodeView> = cluster.host(1).json(["node", "ls"]);
    assert!(nodes.iter().all(|node| node.offers.vcpus == CPUS));

    // Asked of one, run on the other; and the clones of one spread over both.
    let [a, b] = [0, 1].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "q", "--node", "h1"]);
    assert_eq!(allocations(&cluster), ["h1 1"]);
    a.ok(["run", "tiny", "--name", "p"]);

    // A guest's ticket is an allocation of what there is, on each node, and ends with it.
    let at_rest = ["h0 1", "h1 1"];
    assert_eq!(allocations(&cluster), at_rest);
    let ticket = a.ok(["exec", "p", "--", "vmfork", "ticket", "9"]);
    assert_eq!(allocations(&cluster), ["h0 1", "h0 3", "h1 1", "h1 3"]);
    a.ok(["exec", "p", "--", "vmfork", "kill", &ticket]);
    eventually("the end of a ticket", || allocations(&cluster) == at_rest);
    a.ok(["exec", "p", "--", "vmfork", "run", "-n", "2", "--", "true"]);
    eventually("the end of a job", || allocations(&cluster) == at_rest);

    // One that is taken away before its clones are made says so, and makes none.
    let ticket = a.ok(["exec", "p", "--", "vmfork", "ticket", "2"]);
    let jobs = cluster.slurm("squeue", &["-h", "-t", "R", "--sort=-i", "-o", "%i"]);
    let last = jobs.lines().next().expect("there are some");
    cluster.slurm("scancel", &[last]);
    eventually("its end", || allocations(&cluster) == at_rest);
    let before = vms(a);
    let words = ["exec", "p", "--", "vmfork", "clone", &ticket];
    let told = a.start(words, "").wait();
    assert!(told.stderr.contains("has ended"), "{told:?}");
    assert_eq!(vms(a), before);

    let answer: ForkResponse = b.json(["fork", "p", "-n", "4", "--spread"]);
    let clones = answer.clones.iter().map(|clone| match clone {
        CloneResult::Vm(vm) => vm.id,
        CloneResult::Error(error) => panic!("a clone was not made: {error}"),
    });
    let clones: BTreeSet<_> = clones.collect();
    assert_eq!(clones.len(), 4);
    assert_eq!(allocations(&cluster), ["h0 1", "h0 2", "h1 1", "h1 2"]);
    // There is room for one more on each, and no clone beyond that.
    let outcome = a.start(["fork", "p", "-n", "4", "--spread"], "").wait();
    let told = outcome.exited(3).stderr;
    assert!(told.contains("no node has room"), "{told}");
    let more: BTreeSet<_> = vms(a).difference(&before).copied().collect();
    assert_eq!(more.len(), 6);
    let full = b.fails(["run", "tiny"]);
    assert!(full.contains("no node has room"), "{full}");

    // The next daemon knows what lives on what. All allocations on h1 end: so does what
    // lived there, and the clones on h0 that came of the same forks; no other.
    cluster.kill_daemon(0);
    cluster.start(0);
    cluster.slurm("scancel", &["--nodelist=h1", "--me", "--state=R"]);
    let a = cluster.host(0);
    eventually(
        "the end of what was on h1, and of what it was part of",
        || vms(a).len() == 1,
    );
    assert_eq!(vms(a), [a.vm("p").id].into());
    eventually("the end of all that nobody lives in", || {
        allocations(&cluster) == ["h0 1"]
    });

    // A VM's end is its allocation's.
    a.ok(["rm", "p"]);
    eventually("the end of its allocation", || {
        allocations(&cluster).is_empty()
    });
    cluster.end();
}
