//! Switch that joins the hosts of a cluster: a bridge in a network namespace of
//! its own, or taps of a network in user space.
//!
//! The bridge sends frames of a group to those alone that said they are in it, as
//! a switch does that is worth its price. That takes a querier that asks which hosts are in
//! which: the bridge itself.

use crate::{
    Host,
    outside::{UPLINK, netlink, up},
};
use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use rtnetlink::{LinkBridge, LinkUnspec, LinkVeth};
use std::{
    io::Write,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

const BRIDGE: &str = "switch";
/// Address of etcd.
pub(crate) const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

type Work = Box<dyn FnOnce() + Send>;

/// A network namespace with a bridge, and the thread in it.
#[derive(Debug)]
pub(crate) struct Switch {
    work: mpsc::Sender<Work>,
    thread: u32,
}

/// State of a link: carrying traffic, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    On,
    Off,
}

impl Switch {
    pub fn new() -> Self {
        let (work, inbox) = mpsc::channel::<Work>();
        let (born, thread) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            let _ = born.send(gettid().as_raw());
            inbox.iter().for_each(|work| work());
        });
        let thread = thread.recv().expect("the thread enters its namespace");
        let switch = Self {
            work,
            thread: u32::try_from(thread).expect("a process id"),
        };
        switch.within(|| {
            netlink(async |netlink| {
                let bridge = LinkBridge::new(BRIDGE)
                    .forward_delay(0)
                    .mcast_snooping(true)
                    .build();
                netlink.link().add(bridge).execute().await.expect("made");
                up(&netlink, "lo", &[]).await;
                up(&netlink, BRIDGE, &[(HUB, 24)]).await;
            });
            // In hundredths of a second. Until an answer is overdue, no host is known
            // not to be in a group, and all get everything: so that comes first.
            for told in [
                ["mcast_query_response_interval", "50"],
                ["mcast_querier", "1"],
            ] {
                run(
                    "ip",
                    &[&["link", "set", BRIDGE, "type", "bridge"], &told[..]].concat(),
                );
            }
        });
        switch
    }

    /// Lays a cable from a host.
    pub fn connect(&self, host: &Host, number: u8) {
        let (thread, port) = (self.thread, port(number.into()));
        let end = port.clone();
        host.within(move || {
            netlink(async move |netlink| {
                let cable = LinkVeth::new(UPLINK, &end).build();
                netlink.link().add(cable).execute().await.expect("a cable");
                let far = LinkUnspec::new_with_name(&end).setns_by_pid(thread).build();
                netlink.link().set(far).execute().await.expect("laid");
            });
            raise(number);
        });
        self.within(move || {
            netlink(async move |netlink| {
                let index = nix::net::if_::if_nametoindex(BRIDGE).expect("there");
                let on = LinkUnspec::new_with_name(&port)
                    .controller(index)
                    .up()
                    .build();
                netlink.link().set(on).execute().await.expect("plugged in");
            });
        });
    }

    /// Has a host's cable carry something or nothing.
    pub fn turn(&self, number: usize, turned: Turned) {
        let port = port(number);
        self.within(move || {
            netlink(async move |netlink| {
                let link = LinkUnspec::new_with_name(&port);
                let link = match turned {
                    Turned::On => link.up(),
                    Turned::Off => link.down(),
                };
                let set = netlink.link().set(link.build()).execute().await;
                set.expect("turned");
            });
        });
    }

    /// Puts a table of rules for frames in the place of one of the same name.
    pub fn rule(&self, table: &str, chains: &str) {
        let rules = format!(
            "table bridge {table}\ndelete table bridge {table}\ntable bridge {table} {{\n{chains}\n}}\n"
        );
        self.within(move || {
            let mut nft = Command::new("nft");
            nft.args(["-f", "-"]).stdin(Stdio::piped());
            let mut nft = nft.spawn().expect("nft");
            let mut stdin = nft.stdin.take().expect("a pipe");
            stdin.write_all(rules.as_bytes()).expect("told");
            drop(stdin);
            assert!(nft.wait().expect("a child of ours").success());
        });
    }

    /// Does something where the bridge is and waits for it.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            let _ = done.send(work());
        });
        self.work.send(work).expect("the thread lives");
        result.recv().expect("the work does not panic")
    }
}

/// The far end of a host's cable into user space.
pub(crate) fn tap(host: &Host, number: u8) -> OwnedFd {
    host.within(move || {
        let tap = forkyard_sys_host::tap::create(UPLINK).expect("a tap");
        raise(number);
        tap
    })
}

/// Gives the host whose network this is its address.
fn raise(number: u8) {
    netlink(async move |netlink| {
        up(&netlink, "lo", &[]).await;
        up(&netlink, UPLINK, &[(address(number), 24)]).await;
    });
}

/// A host's address on their network.
pub(crate) fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number + 1)
}

/// The switch's end of a host's cable.
pub(crate) fn port(number: usize) -> String {
    format!("port{number}")
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, words: &[&str]) {
    let status = Command::new(program).args(words).status();
    let status = status.expect(program);
    assert!(status.success(), "{program} {words:?}: {status}");
}
