//! The network of a family that is on several hosts.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{CloneResult, ForkResponse, VmView};
use nix::net::if_::if_nameindex;
use std::net::Ipv4Addr;

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

    /// One packet there and one back, of this many bytes.
    fn ping(&self, to: Ipv4Addr, bytes: u16) -> bool {
        let ping = format!("ping -c 1 -W 5 -s {bytes} {to} >/dev/null && echo heard || true");
        self.sh(&ping) == "heard"
    }

    /// What its kernel counts of ICMP: who asks it is counted.
    fn icmp(&self) -> String {
        self.sh("grep Icmp: /proc/net/snmp | tail -n 1")
    }

    /// Sends a file to another by TCP; its checksum there.
    fn send(&self, file: &str, to: &Self) -> String {
        to.sh("(sleep 600 | nc -l -p 9 >/m/got) >/dev/null 2>&1 </dev/null &");
        // Nobody is asked before: a connection that is refused would be tried again.
        let listens = "grep -qs ':0009 .* 0A ' /proc/net/tcp /proc/net/tcp6 && echo yes || true";
        eventually("a listener", || to.sh(listens) == "yes");
        self.sh(&format!("nc {} 9 <{file}", to.address()));
        let sum = to.sh("killall sleep; md5sum </m/got");
        assert!(!sum.is_empty());
        sum
    }
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
    let mut cluster = Cluster::new(3);
    cluster.host(0).ok(["run", "tiny", "--name", "p"]);
    let big = "mkdir -p /m && mount -t tmpfs m /m && head -c 4000000 /dev/urandom >/m/big";
    cluster.host(0).sh("p", big);
    assert_eq!(tunnels(cluster.host(0)), 0, "it is on one host");
    let clones = forked(cluster.host(0), &["fork", "p", "-n", "2", "--to", "h1,h2"]);
    let [one, two] = <[VmView; 2]>::try_from(clones).expect("two");
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
            let (name, other) = (&from.vm.name, &to.vm.name);
            assert!(from.ping(to.address(), 56), "{name} to {other}");
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
    assert!(p.ping(two.address.ip, 56), "the third is still there");
    cluster.host(0).ok(["rm", two.name.as_str()]);
    eventually("all to have left", || tunnels(cluster.host(0)) == 0);
    let again = forked(cluster.host(0), &["fork", "p", "--to", "h1"]).remove(0);
    assert!(p.ping(again.address.ip, 56), "and one to have come again");
    cluster.end();
}

#[test]
fn a_clones_clone_on_a_third_host_is_soon_known_to_the_first() {
    let cluster = Cluster::new(3);
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
    assert!(
        child.ping(grandchild.address(), 56),
        "its parent's host made it known"
    );
    eventually("the first host to hear of it", || {
        grandchild.ping(p.address(), 56)
    });
    assert!(p.ping(grandchild.address(), 56));
    // Its parent goes, and what its parent's host knew of the others stays with it.
    cluster.host(1).ok(["rm", child.vm.name.as_str()]);
    assert!(p.ping(grandchild.address(), 56));
    cluster.host(1).ok(["rm", grandchild.vm.name.as_str()]);
    for host in 0..3 {
        eventually("all to have left", || tunnels(cluster.host(host)) == 0);
    }
    cluster.end();
}

#[test]
fn nobody_else_is_heard_in_a_family_that_is_on_two_hosts() {
    let cluster = Cluster::new(2);
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
