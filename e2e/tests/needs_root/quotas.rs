//! Tests of the limits of a cluster's users, on whichever of its nodes.

use forkyard_e2e::{Cluster, Host, Outcome, eventually};
use forkyard_types::{ListedVm, NodeView, QuotaView, TokenGrant};

/// A user, by the API of one node.
struct User<'a> {
    host: &'a Host,
    variables: [(&'static str, String); 3],
}

impl<'a> User<'a> {
    fn new(cluster: &'a Cluster, number: usize, name: &str) -> Self {
        let host = cluster.host(number);
        let grant: TokenGrant = host.json(["token", "create", name]);
        let url = format!("https://{}:7433", cluster.address(number));
        let remote = grant.remote.expect("nodes are reached over the network");
        let variables = [
            ("FORKYARD_URL", url),
            ("FORKYARD_TOKEN", grant.token.0),
            ("FORKYARD_CA", remote.fingerprint),
        ];
        Self { host, variables }
    }

    fn asks(&self, line: &str) -> Outcome {
        let variables = { self.variables.iter() }.map(|(name, value)| (*name, value.as_str()));
        self.host.start_with(line.split(' '), variables).wait()
    }
}

fn taken_by(from: &Host, user: &str) -> u32 {
    let quotas: Vec<QuotaView> = from.json(["node", "quota"]);
    let found = quotas.into_iter().find(|quota| quota.user == user);
    found.expect("has a quota").taken
}

fn taken(from: &Host) -> u32 {
    let nodes: Vec<NodeView> = from.json(["node", "ls"]);
    nodes.iter().map(|node| node.taken.vcpus).sum()
}

#[test]
fn a_user_at_the_quota_is_refused_on_every_node_and_nobody_else_is() {
    let mut cluster = Cluster::of_nodes(2);
    cluster.join(1);
    let [a, b] = [0, 1].map(|number| cluster.host(number));
    b.ok(["node", "quota", "ci", "--vcpus", "5"]);
    let (ci, ci_on_b) = (User::new(&cluster, 0, "ci"), User::new(&cluster, 1, "ci"));
    let ops = User::new(&cluster, 1, "ops");
    ci_on_b
        .asks("run tiny --name p --vcpus 2 --node h0")
        .exited(0);
    eventually("what p takes", || taken_by(a, "ci") == 2);

    // Three processes fill one clone of two vCPUs and half of another: as much as is left.
    let job = "(vmfork run -n 3 --hierarchical -- sleep 600) </dev/null >/dev/null 2>&1 &";
    a.sh("p", job);
    let clones = || {
        let vms: Vec<ListedVm> = b.json(["ps"]);
        let clones = vms.into_iter().filter(|it| it.vm.parent.is_some());
        clones.map(|it| it.vm).collect::<Vec<_>>()
    };
    // For a moment what was granted counts beside what was made of it.
    eventually("two clones that are counted", || {
        clones().len() == 2 && taken(b) == 5 && taken_by(b, "ci") == 5
    });
    let mut granted: Vec<_> = clones().iter().map(|vm| vm.vcpus_taken()).collect();
    granted.sort_unstable();
    assert_eq!(granted, [1, 2]);

    // Whatever it asks for, and wherever; and another user is not told so.
    for user in [&ci, &ci_on_b] {
        for line in ["fork p -n 2 --spread", "run tiny"] {
            let told = user.asks(line).exited(1).stderr;
            assert!(told.contains("ci has 5 vCPUs of the 5"), "{line}: {told}");
            let asked = if line.starts_with("run") { 1 } else { 4 };
            assert!(told.contains(&format!("for {asked} more")), "{told}");
            assert!(told.contains("node quota"), "{told}");
        }
    }
    ops.asks("run tiny --name q --spread").exited(0);
    ops.asks("fork q -n 2 --spread").exited(0);

    // What ends is there to be asked for again, and no more than that.
    for clone in clones()
        .iter()
        .filter(|vm| vm.name.as_str().starts_with("p-"))
    {
        b.ok(["rm", clone.name.as_str()]);
    }
    eventually("what they took", || taken_by(b, "ci") == 2);
    let told = ci.asks("fork p -n 2 --to h1").exited(3).stderr;
    assert!(told.contains("ci has 4 vCPUs of the 5"), "{told}");
    eventually("the clone to be counted once", || taken_by(b, "ci") == 4);
    let told = ci_on_b.asks("fork p").exited(1).stderr;
    assert!(told.contains("ci has 4 vCPUs of the 5"), "{told}");
    cluster.end();
}
