//! The network of a family that is on several hosts.

use forkyard_e2e::{Cluster, Host, eventually, outside};
use forkyard_types::{
    CloneResult, Diagnosis, ForkResponse, ListedVm, NodeState, NodeView, VmState, VmView,
};
use nix::net::if_::if_nameindex;
use std::{net::Ipv4Addr, process::Command};

fn forked(host: &Host, words: &[&str]) -> Vec<VmView> {
    let answer: ForkResponse = host.json(words);
    let made = answer.clones.into_iter().map(|clone| match clone {
        CloneResult::Vm(vm) => *vm,
        CloneResult::Error(error) => panic!("a clone was not made: {error}"),
    });
    made.collect()
}

/// A member, and where it runs.
struct Member<'a> {
    host: &'a Host,
    vm: VmView,
}

impl Member<'_> {
    fn sh(&self, script: &str) -> String {
        self.host.sh(self.vm.name.as_str(), script)
    }

    fn address(&self) -> Ipv4Addr {
        self.vm.address.ip
    }

    /// Sends one packet of this many bytes; true if one comes back soon.
    fn ping(&self, to: Ipv4Addr, bytes: u16) -> bool {
        let ping = format!("ping -c 1 -W 5 -s {bytes} {to} >/dev/null && echo heard || true");
        self.sh(&ping) == "heard"
    }

    /// Sends one packet and gets one back, however long a busy machine takes for it.
    #[track_caller]
    fn reaches(&self, to: Ipv4Addr) {
        self.sh(&format!("ping -c 1 -W 60 {to}"));
    }

    /// Does the same, and asks for the other's address once: a kernel that has no answer asks
    /// again after a minute only, and not before it has given up.
    #[track_caller]
    fn reaches_at_once(&self, to: Ipv4Addr) {
        let asking = |times: u32, ms: u32| {
            let of = "/proc/sys/net/ipv4/neigh/*";
            format!(
                "for of in {of}; do echo {times} >$of/mcast_solicit; echo {ms} >$of/retrans_time_ms; done"
            )
        };
        let (once, usual) = (asking(1, 60_000), asking(3, 1000));
        self.sh(&format!(
            "{once}; lost=0; ping -c 1 -W 50 {to} || lost=$?; {usual}; exit $lost"
        ));
    }

    /// Several packets there and back, a second from each to the next.
    fn keeps_hearing(&self, from: &Self) -> bool {
        let ping = format!(
            "ping -c 4 -W 5 {} | grep -o '[0-9]* packets received'",
            from.address()
        );
        self.sh(&ping) == "4 packets received"
    }

    /// Returns its kernel's counters of ICMP: they count each host that asks
    /// it.
    fn icmp(&self) -> String {
        self.sh("grep Icmp: /proc/net/snmp | tail -n 1")
    }

    /// Sends a file to another by TCP; its checksum there.
    fn send(&self, file: &str, to: &Self) -> String {
        to.sh("(sleep 600 | nc -l -p 9 >/m/got) >/dev/null 2>&1 </dev/null &");
        // No host is asked before: a connection that is refused would be tried again.
        let listens = "grep -qs ':0009 .* 0A ' /proc/net/tcp /proc/net/tcp6";
        to.host.wait_in(to.vm.name.as_str(), listens);
        self.sh(&format!("nc {} 9 <{file}", to.address()));
        let sum = to.sh("killall sleep; md5sum </m/got");
        assert!(!sum.is_empty());
        sum
    }
}

/// A host answers for a VM that is on another, and asks none.
#[track_caller]
fn answers_for(host: &Host, vm: &VmView) {
    let known = host.within(|| {
        let mut ip = Command::new("ip");
        let output = ip.args(["neigh", "show", "nud", "permanent"]).output();
        let output = output.expect("ip");
        String::from_utf8(output.stdout).expect("text")
    });
    let (address, mac) = (format!("{} dev", vm.address.ip), vm.address.mac.to_string());
    let found = known.lines().find(|line| line.starts_with(&address));
    assert!(
        found.is_some_and(|line| line.contains(&mac)),
        "{} is not among\n{known}",
        vm.name
    );
}

fn tunnels(host: &Host) -> usize {
    let names = host.within(|| {
        let links = if_nameindex().expect("interfaces");
        let names = links
            .iter()
            .map(|link| link.name().to_string_lossy().into_owned());
        names.collect::<Vec<_>>()
    });
    names.iter().filter(|name| name.starts_with("fyv")).count()
}

#[test]
fn members_on_three_hosts_reach_each_other_by_the_first_packet_and_go_on_when_a_daemon_dies() {
    let mut cluster = Cluster::waking(3);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let big = "mkdir -p /m && mount -t tmpfs m /m && dd if=/dev/urandom of=/m/big bs=40k count=100 2>/dev/null";
    cluster.host(0).sh("p", big);
    assert_eq!(tunnels(cluster.host(0)), 0, "it is on one host");
    let clones = forked(cluster.host(0), &["fork", "p", "-n", "2", "--to", "h1,h2"]);
    let [one, two] = <[VmView; 2]>::try_from(clones).expect("two");
    // Before any host has sent a packet each host can say whose address is where.
    let all = [cluster.host(0).vm("p"), one.clone(), two.clone()];
    for (host, own) in (0..).zip(&all) {
        for other in all.iter().filter(|vm| vm.id != own.id) {
            answers_for(cluster.host(host), other);
        }
    }
    {
        let member = |host: usize, vm: &VmView| Member {
            host: cluster.host(host),
            vm: vm.clone(),
        };
        let p = member(0, &cluster.host(0).vm("p"));
        let (one, two) = (member(1, &one), member(2, &two));
        for (from, to) in [
            (&one, &two),
            (&p, &one),
            (&two, &p),
            (&one, &p),
            (&two, &one),
        ] {
            from.reaches_at_once(to.address());
        }
        // More than fits the tunnel in one piece.
        eventually("its size to be known", || p.ping(two.address(), 1472));
        let sum = p.sh("md5sum </m/big");
        assert_eq!(one.send("/m/big", &p), sum);
        assert_eq!(p.send("/m/big", &two), sum);
        assert_eq!(two.send("/m/big", &one), sum);
    }
    for host in 0..3 {
        cluster.kill_daemon(host);
        cluster.start(host);
    }
    let p = Member {
        host: cluster.host(0),
        vm: cluster.host(0).vm("p"),
    };
    for vm in [&one, &two] {
        eventually("a daemon to have joined them again", || {
            p.ping(vm.address.ip, 56)
        });
    }
    cluster.host(1).ok(["rm", "--all"]);
    eventually("the second host to have left", || {
        tunnels(cluster.host(1)) == 0
    });
    // The third is still there.
    p.reaches(two.address.ip);
    cluster.host(0).ok(["rm", two.name.as_str()]);
    eventually("all to have left", || tunnels(cluster.host(0)) == 0);
    let again = forked(cluster.host(0), &["fork", "p", "--to", "h1"]).remove(0);
    // And one has come again.
    p.reaches(again.address.ip);
    cluster.end();
}

#[test]
fn a_clones_clone_on_a_third_host_is_soon_known_to_the_first() {
    let cluster = Cluster::waking(3);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let child = forked(cluster.host(0), &["fork", "p", "--to", "h1"]).remove(0);
    let words = ["fork", child.name.as_str(), "--to", "h2"];
    let grandchild = forked(cluster.host(1), &words).remove(0);
    let member = |host: usize, vm: &VmView| Member {
        host: cluster.host(host),
        vm: vm.clone(),
    };
    let p = member(0, &cluster.host(0).vm("p"));
    let (child, grandchild) = (member(1, &child), member(2, &grandchild));
    // Its parent's host made it known.
    child.reaches(grandchild.address());
    eventually("the first host to hear of it", || {
        grandchild.ping(p.address(), 56)
    });
    p.reaches(grandchild.address());
    // Its parent goes, and what its parent's host knew of the others stays with it.
    cluster.host(1).ok(["rm", child.vm.name.as_str()]);
    p.reaches(grandchild.address());
    cluster.host(1).ok(["rm", grandchild.vm.name.as_str()]);
    for host in 0..3 {
        eventually("all to have left", || tunnels(cluster.host(host)) == 0);
    }
    cluster.end();
}

#[test]
fn a_family_holds_together_over_a_host_that_has_none_of_it_left() {
    let cluster = Cluster::waking(3);
    let [a, b, c] = [0, 1, 2].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "p"]);
    let child = forked(a, &["fork", "p", "--to", "h1"]).remove(0);
    let grandchild = forked(b, &["fork", child.name.as_str(), "--to", "h2"]).remove(0);
    // No host but its own is told of this one.
    let great = forked(c, &["fork", grandchild.name.as_str()]).remove(0);
    let member = |host, vm: VmView| Member { host, vm };
    let (p, great) = (member(a, a.vm("p")), member(c, great));
    eventually("the first host to hear of the third", || {
        great.ping(p.address(), 56)
    });
    b.ok(["rm", grandchild.name.as_str()]);
    b.ok(["rm", child.name.as_str()]);
    eventually("it to be seen", || b.vms().is_empty() && a.vms().len() == 1);
    assert!(
        p.keeps_hearing(&great),
        "longer than it takes to ask around"
    );
    for host in [a, b, c] {
        let diagnosis: Diagnosis = host.json(["doctor", "--repair"]);
        assert_eq!(diagnosis.leftovers, [], "a network in use is not left over");
    }
    // Back on the host between them: with a place that no VM has.
    let again = forked(a, &["fork", "p", "--to", "h1"]).remove(0);
    let again = member(b, again);
    let nephew = forked(b, &["fork", again.vm.name.as_str(), "--to", "h2"]).remove(0);
    let nephew = member(c, nephew);
    let all = [&p, &great, &again, &nephew];
    for (one, other) in [
        (&again, &great),
        (&p, &again),
        (&nephew, &great),
        (&p, &nephew),
    ] {
        assert_ne!(one.address(), other.address());
        eventually("all to know each other", || one.ping(other.address(), 56));
    }
    assert_eq!(all.map(is_itself), [true; 4], "as themselves");
    c.ok(["rm", "--all"]);
    b.ok(["rm", "--all"]);
    a.ok(["rm", "--all"]);
    for host in [a, b, c] {
        eventually("all to have left", || tunnels(host) == 0);
    }
    cluster.end();
}

/// Tells whether a member has but the address that it was given.
fn is_itself(member: &Member<'_>) -> bool {
    let found = member.sh("ip -4 -o addr show scope global | awk '{ print $4 }'");
    found.split('/').next() == Some(&member.address().to_string())
}

/// Counts what a host's kernel knows of another, of whichever family: the hosts it
/// hears, and the ones it sends frames to.
fn known(host: &Host, other: Ipv4Addr) -> usize {
    let said = host.within(|| {
        let said = |program: &str, words: &[&str]| {
            let output = Command::new(program).args(words).output().expect("runs");
            assert!(output.status.success(), "{program}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let heard = said("nft", &["list", "set", "ip", "forkyard_tunnels", "places"]);
        let sent = said("bridge", &["fdb", "show"]);
        heard + &sent
    });
    said.matches(&format!("{other} ")).count()
}

#[test]
fn generations_spread_over_nodes_have_one_network_and_a_way_out_and_a_dead_node_leaves_it() {
    let mut cluster = Cluster::of_waking_nodes(3);
    cluster.join(1);
    cluster.join(2);
    let beyond = cluster.listen_beyond();
    let (hub, port) = (beyond.ip(), beyond.port());
    let node_of = |from: &Host, vm: &str| {
        let vms: Vec<ListedVm> = from.json(["ps"]);
        let found = vms.into_iter().find(|it| it.vm.name.as_str() == vm);
        found.and_then(|it| it.node).expect("listed").to_string()
    };
    let a = cluster.host(0);
    let allow = format!("{hub}:{port}");
    a.ok([
        "run", "tiny", "--name", "p", "--node", "h0", "--allow", &allow,
    ]);
    let mut all = vec![a.vm("p")];
    all.extend(forked(a, &["fork", "p", "-n", "3", "--spread"]));
    let homes = |all: &[VmView]| {
        let homes = all.iter().map(|vm| node_of(a, vm.name.as_str()));
        homes.collect::<Vec<_>>()
    };
    let far = all.iter().find(|vm| node_of(a, vm.name.as_str()) == "h1");
    let far = far.expect("one on each").clone();
    // The next generation, on all nodes again: also where its founder is.
    all.extend(forked(
        a,
        &["fork", far.name.as_str(), "-n", "3", "--to", "h0,h1,h2"],
    ));
    let places = homes(&all);
    for node in ["h0", "h1", "h2"] {
        assert!(places.iter().any(|home| home == node), "{places:?}");
    }
    let addresses: Vec<_> = all.iter().map(|vm| vm.address.ip).collect();
    let misses = |from: &Host, vms: &[&VmView], seconds: u32| {
        let addresses = vms.iter().map(|vm| vm.address.ip.to_string());
        let words = addresses.collect::<Vec<_>>().join(" ");
        let script = format!(
            "for to in {words}; do ping -c 1 -W {seconds} $to >/dev/null || echo $to; done"
        );
        let missed = vms.iter().map(|vm| from.sh(vm.name.as_str(), &script));
        missed.collect::<String>()
    };
    let everybody: Vec<_> = all.iter().collect();
    eventually("everybody to reach everybody", || {
        misses(a, &everybody, 2).is_empty()
    });
    let mut unique = addresses.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), all.len(), "{addresses:?}");
    // Out by the host that each is on.
    for vm in &all {
        let name = vm.name.as_str();
        a.sh(name, &format!("nc -w 10 {hub} {port} </dev/null"));
    }

    let dead = cluster.address(2);
    for host in [0, 1] {
        assert!(
            known(cluster.host(host), dead) > 0,
            "or this proves nothing"
        );
    }
    cluster.die(2);
    let a = cluster.host(0);
    eventually("the loss", || {
        let nodes: Vec<NodeView> = a.json(["node", "ls"]);
        let found = nodes.iter().find(|it| it.name.as_str() == "h2");
        found.map(|it| it.state) == Some(NodeState::Lost)
    });
    a.ok(["node", "rm", "h2", "--force"]);
    for host in [0, 1] {
        eventually("it to be forgotten", || {
            known(cluster.host(host), dead) == 0
        });
    }
    let left: Vec<_> = all.iter().zip(&places).collect();
    let left = left.into_iter().filter(|(_, home)| *home != "h2");
    let left: Vec<_> = left.map(|(vm, _)| vm).collect();
    assert_eq!(misses(a, &left, 10), "", "the others do without");
    let listed: Vec<ListedVm> = a.json(["ps"]);
    assert!(listed.iter().all(|it| it.vm.state == VmState::Running));
    assert_eq!(listed.len(), left.len());
    a.ok(["rm", "--all"]);
    for host in [0, 1] {
        eventually("nothing to be left", || tunnels(cluster.host(host)) == 0);
    }
    cluster.start(2);
    cluster.end();
}

#[test]
fn nobody_else_is_heard_in_a_family_that_is_on_two_hosts() {
    let cluster = Cluster::waking(2);
    let (here, there) = (cluster.host(0), cluster.host(1));
    here.ok(["run", "tiny", "--name", "p"]);
    there.ok(["run", "tiny", "--name", "stranger"]);
    let clone = forked(here, &["fork", "p", "--to", "h1"]).remove(0);
    let member = |host, vm: VmView| Member { host, vm };
    let p = member(here, here.vm("p"));
    let stranger = member(there, there.vm("stranger"));
    let clone = member(there, clone);
    let device = "device=$(ls /sys/class/net | grep -v lo)";
    let before = p.icmp();
    // On its own network, and as if all were one.
    stranger.sh(&format!("{device}; ip route add 10.128.0.0/9 dev $device"));
    assert!(!stranger.ping(p.address(), 56) && !stranger.ping(clone.address(), 56));
    // A clone that speaks as the next place of its host, and as its parent's host's.
    let next = |of: Ipv4Addr| Ipv4Addr::from(u32::from(of) + 1);
    for lie in [next(clone.address()), next(p.address())] {
        let from = format!("{device}; ip addr add {lie}/32 dev $device");
        clone.sh(&format!(
            "{from}; ping -c 1 -W 2 -I {lie} {} >/dev/null || true; ip addr del {lie}/32 dev $device",
            p.address()
        ));
    }
    let mac = next_mac(&p.vm);
    clone.sh(&format!(
        "{device}; own=$(cat /sys/class/net/$device/address); ip link set $device address {mac}; \
         ping -c 1 -W 2 {} >/dev/null || true; ip link set $device address $own",
        p.address()
    ));
    assert_eq!(p.icmp(), before, "nobody was heard");
    eventually("it to be itself again", || clone.ping(p.address(), 56));
    assert_ne!(p.icmp(), before, "or this test proves nothing");
    cluster.end();
}

/// The MAC of the place after a VM's.
fn next_mac(vm: &VmView) -> String {
    let mut mac = vm.address.mac;
    mac.0[5] += 1;
    mac.to_string()
}

#[test]
fn a_published_port_leads_to_the_founder_whichever_hosts_its_clones_are_on() {
    let cluster = Cluster::waking(3);
    let [a, b, c] = [0, 1, 2].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "p", "--publish", "8080:80"]);
    a.sh(
        "p",
        "while echo from $(hostname) | nc -l -p 80; do :; done >/dev/null 2>&1 </dev/null &",
    );
    let clone = forked(a, &["fork", "p", "--to", "h1"]).remove(0);
    assert_eq!(clone.published, []);
    let (home, away) = (cluster.address(0), cluster.address(1));
    for from in [a, b, c] {
        eventually("the founder's answer", || {
            let said = from.within(move || outside::ask(home, 8080));
            said.is_ok_and(|said| said == "from p")
        });
        let said = from.within(move || outside::ask(away, 8080));
        assert!(said.is_err(), "nothing is published there: {said:?}");
    }
    a.ok(["rm", "p"]);
    let said = c.within(move || outside::ask(home, 8080));
    assert!(said.is_err(), "{said:?}");
    // The clone serves the same, to its family.
    let name = clone.name.as_str();
    let ask = format!("nc -w 10 {} 80 </dev/null || true", clone.address.ip);
    eventually("the clone's answer", || {
        b.sh(name, &ask) == format!("from {name}")
    });
    cluster.end();
}
