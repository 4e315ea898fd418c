//! A cluster, from nothing to the death of a node.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{ListedVm, NodeState, NodeView};
use std::time::Instant;

/// Nodes; etcd is beside them.
const NODES: u8 = 3;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Clones, dealt over all nodes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    clones: u16,
}

/// Shows it; panics if anything is not as it is promised.
pub fn show(options: &Options) {
    say("three hosts, and etcd");
    let mut cluster = Cluster::of_nodes(NODES);
    for node in 1..usize::from(NODES) {
        println!("h0$ forkyard node invite");
        println!(
            "h{node}$ forkyardd --join TOKEN --node h{node} --advertise {}",
            cluster.address(node)
        );
        cluster.join(node);
    }
    let first = cluster.host(0);
    run(first, &["node", "ls"]);

    say("a VM on the first, which is warm: 24 MB of memory that no clone has to make again");
    run(first, &["run", "tiny", "--name", "p", "--node", "h0"]);
    let warm = "mkdir -p /m && mount -t tmpfs m /m && head -c 24000000 /dev/urandom >/m/data";
    first.sh("p", warm);
    let sum = first.sh("p", "md5sum </m/data");

    say("forked over all three");
    let count = options.clones.to_string();
    let begun = Instant::now();
    run(first, &["fork", "p", "--count", &count, "--spread"]);
    println!("{} ms, command line included", begun.elapsed().as_millis());
    let clones = listed(first);
    let clones: Vec<_> = clones.iter().filter(|it| it.vm.parent.is_some()).collect();
    assert_eq!(
        clones.len(),
        usize::from(options.clones),
        "some were not made"
    );

    say(
        "each has its parent's memory, a name and an address of its own; its pages come as it touches them",
    );
    for clone in &clones {
        let name = clone.vm.name.as_str();
        assert_eq!(first.sh(name, "md5sum </m/data"), sum, "{name}");
        let node = clone.node.as_ref().map_or("?", |node| node.as_str());
        let itself = first.sh(name, "hostname");
        println!("{node}: {itself}, {}: the same 24 MB", clone.vm.address.ip);
    }

    say("they are on one network, whichever host they are on");
    let (one, other) = (clones[0], clones[clones.len() - 1]);
    let to = other.vm.address.ip.to_string();
    run(
        first,
        &["exec", one.vm.name.as_str(), "--", "ping", "-c", "2", &to],
    );

    say("the power of h2 fails");
    cluster.die(2);
    let first = cluster.host(0);
    eventually("the loss", || {
        let nodes: Vec<NodeView> = first.json(["node", "ls"]);
        nodes.iter().any(|node| node.state == NodeState::Lost)
    });
    run(first, &["node", "ls"]);
    run(first, &["ps"]);
    run(first, &["node", "rm", "h2", "--force"]);
    for vm in listed(first) {
        assert_eq!(first.sh(vm.vm.name.as_str(), "md5sum </m/data"), sum);
    }
    println!("all others have what they had");

    say("and everything is taken down");
    run(first, &["rm", "--all"]);
    // It comes back as one that is no node any more, and has nothing left.
    cluster.start(2);
    cluster.end();
    println!("nothing is left");
}

fn listed(host: &Host) -> Vec<ListedVm> {
    host.json(["ps"])
}

fn say(what: &str) {
    println!("\n== {what}");
}

/// Runs a command, and shows it with what it printed.
fn run(host: &Host, words: &[&str]) {
    println!("h0$ forkyard {}", words.join(" "));
    let outcome = host.start(words, "").wait().exited(0);
    let (said, complained) = (outcome.text(), outcome.stderr.trim_end().to_owned());
    for text in [complained, said].iter().filter(|text| !text.is_empty()) {
        println!("{text}");
    }
}
