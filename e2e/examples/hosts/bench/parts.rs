//! Parts that several measurements have in common: a parent and its job, a fork of
//! it over hosts, and the traffic for it.

use super::Options;
use crate::report::Row;
use forkyard_e2e::{Cluster, Host, Links};
use forkyard_types::{CloneResult, ForkResponse};
use std::time::Duration;

/// Names of clones, and the number of the host of each.
pub(super) type Clones = [(usize, String)];

/// Result of a fork.
pub(super) struct Forked {
    pub made: Vec<(usize, String)>,
    /// Until the last clone's vCPUs ran, as the parent's host says.
    pub running: Duration,
}

/// A VM that has room for data in its memory.
pub(super) fn run_parent(host: &Host, name: &str, options: &Options) {
    let memory = options.memory.to_string();
    host.ok(["run", "tiny", "--name", name, "--memory", &memory]);
    host.sh(name, MOUNT);
}

/// Makes a place in memory for data.
pub(super) const MOUNT: &str = "mkdir -p /m && mount -t tmpfs -o size=90% m /m";

/// Data that does not pack and that no host has yet.
pub(super) fn fill(options: &Options) -> String {
    format!("head -c {}m /dev/urandom >/m/data", options.fill)
}

/// A job as those the paper ran: it looks something up in what its parent has, a
/// twelfth of it, and works in memory that it takes anew.
pub(super) fn looks_up(options: &Options) -> String {
    let (part, half) = ((options.fill / 12).max(1), options.fill / 2);
    format!(
        "head -c {part}m /m/data | md5sum >/dev/null; \
         dd if=/dev/zero of=/m/own bs=1M count={half} 2>/dev/null; rm /m/own"
    )
}

/// Forks a VM of a host's to others.
pub(super) fn fork(
    cluster: &Cluster,
    (host, vm): (usize, &str),
    to: &[usize],
    clones: u16,
    more: &[&str],
) -> Forked {
    let to: Vec<_> = to.iter().map(|host| format!("h{host}")).collect();
    let (count, to) = (clones.to_string(), to.join(","));
    let words = [&["fork", vm, "-n", &count, "--to", &to], more].concat();
    let answer: ForkResponse = cluster.host(host).json(words);
    let made = answer.clones.into_iter().map(|clone| {
        let CloneResult::Vm(vm) = clone else {
            panic!("a clone was not made: {clone:?}");
        };
        let host = vm.host.as_deref().and_then(|host| host.strip_prefix('h'));
        let host = host.and_then(|host| host.parse().ok());
        (host.expect("elsewhere"), vm.name.to_string())
    });
    Forked {
        made: made.collect(),
        running: Duration::from_micros(answer.report.running_us),
    }
}

/// Has all of them do something at once.
pub(super) fn all(cluster: &Cluster, clones: &Clones, script: &str) {
    let running = clones.iter().map(|(host, name)| {
        let words = ["exec", name, "--", "sh", "-e", "-c", script];
        cluster.host(*host).start(words, "")
    });
    let running: Vec<_> = running.collect();
    for one in running {
        one.wait().exited(0);
    }
}

pub(super) fn remove(cluster: &Cluster, clones: &Clones) {
    for (host, name) in clones {
        cluster.host(*host).ok(["rm", name]);
    }
}

/// Returns the traffic since an earlier look at a host's links.
pub(super) fn passed(cluster: &Cluster, host: usize, before: &Links) -> Row {
    let after = Links::of(cluster.host(host));
    let more = |name: &str| after.all(name) - before.all(name);
    Row {
        asked: more("pages_asked"),
        suppressed: more("pages_suppressed"),
        sent: more("pages_sent"),
        resent: more("pages_resent"),
        pushed: more("pages_pushed"),
        bytes: more("bytes_sent"),
        ..Row::default()
    }
}
