//! Hosts that are network namespaces, each a thread; they, their interfaces
//! and what joins them are gone when the last of them is dropped.

use crate::link::{LinkFaults, TestSwitch};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A namespace and the thread that is in it.
struct Place {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Place {
    fn new() -> Self {
        let (jobs, arrived) = channel::<Job>();
        let (said, heard) = channel();
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (this test takes root)");
            said.send(gettid().as_raw()).expect("is waited for");
            arrived.into_iter().for_each(|job| job());
        });
        Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tid: heard.recv().expect("a namespace"),
        }
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = Box::new(move || drop(done.send(job())));
        let jobs = self.jobs.as_ref().expect("not dropped");
        jobs.send(job).expect("the thread lives");
        result.recv().expect("the job did not panic")
    }

    fn ip(&self, line: String) {
        self.run(move || {
            let status = Command::new("ip").args(line.split(' ')).status();
            assert!(status.expect("ip runs").success(), "ip {line}");
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Hosts on one network: host `n` has the address 10.9.0.`n + 1`.
pub struct Hosts {
    hosts: Vec<Place>,
    _switch: Option<Place>,
    link: Option<TestSwitch>,
}

impl Hosts {
    /// Joined by a bridge of the kernel.
    pub fn bridged(count: u8) -> Self {
        let switch = Place::new();
        switch.ip("link add switch0 type bridge".into());
        switch.ip("link set switch0 up".into());
        let hosts: Vec<_> = (0..count).map(|_| Place::new()).collect();
        for (n, host) in hosts.iter().enumerate() {
            let tid = host.tid;
            switch.ip(format!(
                "link add p{n} type veth peer name eth0 netns {tid}"
            ));
            switch.ip(format!("link set p{n} master switch0"));
            switch.ip(format!("link set p{n} up"));
        }
        let hosts = Self {
            hosts,
            _switch: Some(switch),
            link: None,
        };
        hosts.raise();
        hosts
    }

    /// Joined by a network that does as it is told.
    pub fn linked(count: u8, network: LinkFaults) -> Self {
        let hosts: Vec<_> = (0..count).map(|_| Place::new()).collect();
        let taps = hosts.iter().map(|host| {
            let tap = host.run(|| forkyard_sys_host::tap::create("eth0"));
            tap.expect("a tap (this test takes root)")
        });
        let link = Some(TestSwitch::new(taps.collect(), network));
        let hosts = Self {
            hosts,
            _switch: None,
            link,
        };
        hosts.raise();
        hosts
    }

    fn raise(&self) {
        for (n, host) in self.hosts.iter().enumerate() {
            host.ip("link set lo up".into());
            host.ip(format!("addr add 10.9.0.{}/24 dev eth0", n + 1));
            host.ip("link set eth0 up".into());
        }
    }

    /// Address of host `n`.
    pub fn address(&self, n: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 9, 0, n + 1))
    }

    /// Runs something on host `n`: what it opens, and the threads it starts, are
    /// in its network.
    pub fn on<T: Send + 'static>(&self, n: u8, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.hosts[usize::from(n)].run(job)
    }

    /// Returns the link that joins them, if it does as it is told.
    pub fn link(&self) -> &TestSwitch {
        self.link.as_ref().expect("linked")
    }
}
