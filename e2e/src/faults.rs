//! Daemons that stand still or have died, and faults of the network of a cluster whose hosts are on a bridge: cut, slowed,
//! lossy, or one that no group passes; and its traffic.

use crate::{
    Cluster,
    cluster::PAGES,
    outside::UPLINK,
    switch::{Turned, port, run},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::process::Command;

/// Groups that pages are sent to.
const GROUPS: &str = "239.192.0.0/14";

impl Cluster {
    /// Cuts a host off from the others.
    pub fn cut(&self, number: usize) {
        self.switch.turn(number, Turned::Off);
    }

    /// Connects it again.
    pub fn mend(&self, number: usize) {
        self.switch.turn(number, Turned::On);
    }

    /// Waits until a daemon that was killed has ended.
    pub fn buried(&mut self, number: usize) {
        if let Some(mut daemon) = self.daemons[number].take() {
            daemon.wait().expect("reaped");
        }
    }

    /// Lets a host's daemon go on that stands still.
    pub fn go_on(&self, number: usize) {
        let daemon = self.daemons[number].as_ref().expect("one runs");
        let pid = Pid::from_raw(i32::try_from(daemon.id()).expect("a pid"));
        kill(pid, Signal::SIGCONT).expect("ours");
    }

    /// From now on so many of a hundred packets of pages are lost on their way, by chance.
    pub fn lose(&self, percent: u8) {
        // Packets to a group have that port at both ends, and are drawn for once.
        let chains = format!(
            "chain drawn {{\n\
             numgen random mod 100 < {percent} drop\n\
             }}\n\
             chain lost {{\n\
             type filter hook forward priority 0\n\
             ether type ip udp sport {PAGES} goto drawn\n\
             ether type ip udp dport {PAGES} goto drawn\n\
             }}"
        );
        // What is given to the kernel at once is lost one by one, as on a wire.
        let apart = ["link", "set", "dev", UPLINK, "gso_max_segs", "1"];
        for host in &self.hosts {
            host.within(move || run("ip", &apart));
        }
        self.switch.rule("loss", &chains);
    }

    /// From now on what is sent to a group does not reach this host.
    pub fn deafen(&self, number: usize) {
        let port = port(number);
        let chains = format!(
            "chain deaf {{\n\
             type filter hook forward priority 0\n\
             oifname {port} ip daddr 239.0.0.0/8 drop\n\
             }}"
        );
        self.switch.rule("deaf", &chains);
    }

    /// From now on what goes to groups of pages is counted, by the hosts it reaches.
    pub fn count_groups(&self) {
        let ports = (0..self.hosts.len()).map(port);
        let (counters, rules): (String, String) = ports
            .map(|port| {
                let rule = format!("oifname {port} ip daddr {GROUPS} counter name {port}\n");
                (format!("counter {port} {{ }}\n"), rule)
            })
            .unzip();
        let chains = format!(
            "{counters}chain heard {{\n\
             type filter hook forward priority 10\n\
             {rules}}}"
        );
        self.switch.rule("heard", &chains);
    }

    /// Frames to groups of pages that reached a host since they are counted.
    pub fn of_groups(&self, number: usize) -> u64 {
        let port = port(number);
        let said = self.switch.within(move || {
            let mut nft = Command::new("nft");
            nft.args(["list", "counter", "bridge", "heard", &port]);
            let output = nft.output().expect("nft");
            String::from_utf8(output.stdout).expect("text")
        });
        let mut words = said
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        let count = words.nth(1).and_then(|word| word.parse().ok());
        count.unwrap_or_else(|| panic!("not counted: {said}"))
    }

    /// From now on nothing goes from or to a host faster than so many Mbit/s.
    pub fn limit(&self, mbit: u32) {
        (0..self.hosts.len()).for_each(|number| self.slow(number, mbit));
    }

    /// Slows the link of one host alone.
    pub fn slow(&self, number: usize, mbit: u32) {
        self.hosts[number].within(move || limit(UPLINK, mbit));
        self.switch.within(move || limit(&port(number), mbit));
    }
}

/// Has this network's end of a cable send so many Mbit/s and no more.
fn limit(end: &str, mbit: u32) {
    let rate = format!("{mbit}mbit");
    let shaped = ["qdisc", "replace", "dev", end, "root", "tbf", "rate", &rate];
    run(
        "tc",
        &[&shaped[..], &["burst", "128kb", "latency", "50ms"]].concat(),
    );
}
