//! Several hosts on one network, each with a daemon that knows the others: from
//! a file, or as nodes of one cluster, whose etcd is where the bridge is.
//!
//! ```text
//! host 0: up0 10.77.0.1 ---.
//! host 1: up0 10.77.0.2 ---+--- port0, port1, … on a bridge, in a namespace
//! ...                          of their own; etcd at 10.77.0.254
//! ```
//!
//! They take one slot together. Dropped, they are ended as any host is.

use crate::{
    Host, Process,
    outside::{UPLINK, netlink, up},
    slot::Slot,
};
use forkyard_allocate::slurm::server as slurm;
use forkyard_etcd::server::Server;
use forkyard_types::TokenGrant;
use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, gettid},
};
use rtnetlink::{LinkBridge, LinkUnspec, LinkVeth};
use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io::Write,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
};

/// Where daemons listen, and where pagers do.
const API: u16 = 7433;
const PAGES: u16 = 7434;
const BRIDGE: &str = "switch";
/// Where etcd is.
const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
/// MiB of memory that Slurm believes each host to have.
const MIB: u64 = 8192;
/// Seconds after which a node that is silent is lost: nobody waits long for it.
const LEASE: &str = "10";

type Work = Box<dyn FnOnce() + Send>;

/// Hosts that know each other: each calls the others `h0`, `h1`, ….
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order.
    daemons: Vec<Option<Child>>,
    hosts: Vec<Host>,
    etcd: Option<Server>,
    slurm: Option<slurm::Server>,
    switch: Switch,
}

/// A network namespace with a bridge, and the thread in it.
#[derive(Debug)]
struct Switch {
    work: mpsc::Sender<Work>,
    thread: u32,
}

impl Cluster {
    /// Waits until so many hosts may be had; on none a daemon runs.
    fn idle(count: u8) -> Self {
        let slot = Arc::new(Slot::wait());
        let switch = Switch::new();
        let connected = (0..count).map(|number| {
            let host = Host::on(slot.clone());
            switch.connect(&host, number);
            host
        });
        Self {
            hosts: connected.collect(),
            daemons: (0..count).map(|_| None).collect(),
            etcd: None,
            slurm: None,
            switch,
        }
    }

    /// Nodes of one cluster. The first has founded it; the others are told to join
    /// by [`Cluster::join`].
    pub fn of_nodes(count: u8) -> Self {
        let mut cluster = Self::idle(count);
        cluster.found(&[]);
        cluster
    }

    /// The same, where Slurm hands out the room: so many processors on each.
    pub fn of_nodes_in_slurm(count: u8, cpus: u32) -> Self {
        let mut cluster = Self::idle(count);
        let slurm = cluster.switch.within(move || {
            let names: Vec<_> = (0..count).map(|number| format!("h{number}")).collect();
            let nodes: Vec<_> = names
                .iter()
                .map(|name| (name.as_str(), cpus, MIB))
                .collect();
            slurm::Server::start_on(HUB, &nodes)
        });
        let slurm = cluster.slurm.insert(slurm.expect("a Slurm"));
        let conf = slurm.conf().into_os_string();
        cluster.found(&[("FORKYARD_ALLOCATE", "slurm".into()), ("SLURM_CONF", conf)]);
        cluster
    }

    /// Founds a cluster, whose daemons are told this, too.
    fn found(&mut self, more: &[(&'static str, OsString)]) {
        let etcd = self.switch.within(|| Server::start_on(HUB));
        let etcd = etcd.expect("etcd");
        for (number, host) in (0..).zip(&mut self.hosts) {
            let number: u8 = number;
            host.told = vec![
                ("FORKYARD_NODE", format!("h{number}").into()),
                ("FORKYARD_ADVERTISE", address(number).to_string().into()),
                ("FORKYARD_LEASE", LEASE.into()),
            ];
            host.told.extend(more.iter().cloned());
            if number == 0 {
                let endpoint = etcd.endpoint().to_string();
                host.told.push(("FORKYARD_CLUSTER", endpoint.into()));
            }
        }
        self.etcd = Some(etcd);
        self.start(0);
    }

    /// Runs one of Slurm's commands; what that printed.
    #[track_caller]
    pub fn slurm(&self, program: &str, words: &[&str]) -> String {
        let slurm = self.slurm.as_ref().expect("in Slurm");
        let (conf, program) = (slurm.conf(), program.to_owned());
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let ran = self
            .switch
            .within(move || slurm::command(&conf, &program, &words));
        ran.expect("Slurm's command")
    }

    /// Has a host become a node.
    #[track_caller]
    pub fn join(&mut self, number: usize) {
        let token = self.hosts[0].ok(["node", "invite"]);
        self.tell(number, "FORKYARD_JOIN", token);
        self.start(number);
        // From now on it knows what it is.
        self.hosts[number].told.pop();
    }

    /// Tells a host's daemon one thing more, from its next start on.
    pub fn tell(&mut self, number: usize, variable: &'static str, value: impl Into<OsString>) {
        self.hosts[number].told.push((variable, value.into()));
    }

    /// Where etcd is.
    pub fn etcd(&self) -> String {
        let etcd = self.etcd.as_ref().expect("of nodes");
        etcd.endpoint().to_string()
    }

    /// Kills etcd; what it had stays.
    pub fn stop_etcd(&mut self) {
        let etcd = self.etcd.as_mut().expect("of nodes");
        etcd.stop().expect("killed");
    }

    /// Starts it again.
    pub fn start_etcd(&mut self) {
        // It is where the thread is that starts it.
        let mut etcd = self.etcd.take().expect("of nodes");
        let again = self.switch.within(move || etcd.go_on().map(|()| etcd));
        self.etcd = Some(again.expect("etcd"));
    }

    /// Hosts that were told of each other; their daemons run.
    pub fn new(count: u8) -> Self {
        Self::told(count, &[])
    }

    /// The same, all of whose daemons are told this, too.
    pub fn told(count: u8, variables: &[(&'static str, &str)]) -> Self {
        let mut cluster = Self::idle(count);
        for number in 0..count {
            let host = &mut cluster.hosts[usize::from(number)];
            let peers = host.folder().join("peers.toml");
            File::create(&peers)
                .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)))
                .expect("a file of its own");
            host.told = vec![
                (
                    "FORKYARD_LISTEN",
                    format!("{}:{API}", address(number)).into(),
                ),
                (
                    "FORKYARD_PAGES",
                    format!("{}:{PAGES}", address(number)).into(),
                ),
                ("FORKYARD_PEERS", peers.into()),
            ];
            let more = variables.iter();
            host.told
                .extend(more.map(|(name, value)| (*name, value.into())));
            cluster.start(number.into());
        }
        cluster.introduce();
        cluster
    }

    /// One of the hosts.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// Its address on their network.
    pub fn address(&self, number: usize) -> Ipv4Addr {
        address(u8::try_from(number).expect("few hosts"))
    }

    /// Starts a host's daemon, and waits until it answers.
    #[track_caller]
    pub fn start(&mut self, number: usize) {
        let host = &self.hosts[number];
        assert!(self.daemons[number].is_none(), "one runs");
        let run = host.folder().join("run");
        fs::create_dir_all(&run).expect("a folder");
        let log = File::options()
            .create(true)
            .append(true)
            .open(run.join("daemon.log"))
            .expect("a log");
        let mut daemon = Command::new(host.dist().join("bin/forkyardd"));
        daemon
            .envs(host.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = host.within(move || daemon.spawn()).expect("started");
        let child = self.daemons[number].insert(child);
        let socket = run.join("api.sock");
        crate::eventually("a daemon", || {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                panic!("the daemon of host {number} ended: {status}");
            }
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
    }

    /// Starts a host's daemon, which must end, for it cannot be what it is told to
    /// be; what it said.
    #[track_caller]
    pub fn refused(&self, number: usize) -> String {
        let host = &self.hosts[number];
        let mut daemon = Command::new(host.dist().join("bin/forkyardd"));
        daemon.envs(host.variables()).stdin(Stdio::null());
        let output = host.within(move || daemon.output()).expect("started");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    }

    /// Kills a host's daemon alone; its VMs run on.
    #[track_caller]
    pub fn kill_daemon(&mut self, number: usize) {
        let mut daemon = self.daemons[number].take().expect("one runs");
        daemon.kill().expect("ours");
        daemon.wait().expect("reaped");
    }

    /// Ends all that runs on a host at once, as a loss of power does.
    #[track_caller]
    pub fn die(&mut self, number: usize) {
        let host = &self.hosts[number];
        Process::kill_all(&host.all_processes());
        if let Some(mut daemon) = self.daemons[number].take() {
            daemon.wait().expect("reaped");
        }
        let host = &self.hosts[number];
        crate::eventually("a host's end", || host.all_processes().is_empty());
    }

    /// Cuts a host off from the others.
    pub fn cut(&self, number: usize) {
        self.switch.turn(number, Turned::Off);
    }

    /// Connects it again.
    pub fn mend(&self, number: usize) {
        self.switch.turn(number, Turned::On);
    }

    /// From now on so many of a hundred packets of pages are lost on their way, by chance.
    pub fn lose(&self, percent: u8) {
        // Packets to a group have that port at both ends, and are drawn for once.
        let rules = format!(
            "table bridge loss\n\
             delete table bridge loss\n\
             table bridge loss {{\n\
             chain drawn {{\n\
             numgen random mod 100 < {percent} drop\n\
             }}\n\
             chain lost {{\n\
             type filter hook forward priority 0\n\
             ether type ip udp sport {PAGES} goto drawn\n\
             ether type ip udp dport {PAGES} goto drawn\n\
             }}\n\
             }}\n"
        );
        // What is given to the kernel at once is lost one by one, as on a wire.
        let apart = ["link", "set", "dev", UPLINK, "gso_max_segs", "1"];
        for host in &self.hosts {
            host.within(move || run("ip", &apart));
        }
        self.switch.within(move || {
            let mut nft = Command::new("nft");
            nft.args(["-f", "-"]).stdin(Stdio::piped());
            let mut nft = nft.spawn().expect("nft");
            let mut stdin = nft.stdin.take().expect("a pipe");
            stdin.write_all(rules.as_bytes()).expect("told");
            drop(stdin);
            assert!(nft.wait().expect("a child of ours").success());
        });
    }

    /// From now on nothing goes from or to a host faster than so many Mbit/s.
    pub fn limit(&self, mbit: u32) {
        for (number, host) in self.hosts.iter().enumerate() {
            host.within(move || limit(UPLINK, mbit));
            self.switch.within(move || limit(&port(number), mbit));
        }
    }

    /// Removes every VM, of the first host first; after that there must be nothing
    /// on any.
    #[track_caller]
    pub fn end(mut self) {
        for host in &self.hosts {
            host.ok(["rm", "--all"]);
        }
        for daemon in self.daemons.iter_mut().filter_map(Option::take) {
            stop(daemon);
        }
        self.hosts.iter().for_each(Host::nothing_left);
    }

    /// Gives each a token of all the others.
    fn introduce(&self) {
        let grants: Vec<TokenGrant> = self
            .hosts
            .iter()
            .map(|host| host.json(["token", "create", "peers"]))
            .collect();
        for host in &self.hosts {
            let entries = (0u8..).zip(&grants).map(|(number, grant)| {
                let remote = grant.remote.as_ref().expect("it listens");
                format!(
                    "[peer.h{number}]\nurl = \"https://{}:{API}\"\ntoken = \"{}\"\ntrust = \"{}\"\n",
                    address(number),
                    grant.token.0,
                    remote.fingerprint
                )
            });
            let text: String = entries.collect();
            fs::write(host.folder().join("peers.toml"), text).expect("written");
        }
    }
}

/// Whether a link carries anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turned {
    On,
    Off,
}

impl Switch {
    fn new() -> Self {
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
                let bridge = LinkBridge::new(BRIDGE).forward_delay(0).build();
                netlink.link().add(bridge).execute().await.expect("made");
                up(&netlink, "lo", &[]).await;
                up(&netlink, BRIDGE, &[(HUB, 24)]).await;
            });
        });
        switch
    }

    /// Lays a cable from a host.
    fn connect(&self, host: &Host, number: u8) {
        let (thread, port) = (self.thread, port(number.into()));
        let end = port.clone();
        host.within(move || {
            netlink(async move |netlink| {
                let cable = LinkVeth::new(UPLINK, &end).build();
                netlink.link().add(cable).execute().await.expect("a cable");
                let far = LinkUnspec::new_with_name(&end).setns_by_pid(thread).build();
                netlink.link().set(far).execute().await.expect("laid");
                up(&netlink, "lo", &[]).await;
                up(&netlink, UPLINK, &[(address(number), 24)]).await;
            });
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

    fn turn(&self, number: usize, turned: Turned) {
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

    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            let _ = done.send(work());
        });
        self.work.send(work).expect("the thread lives");
        result.recv().expect("the work does not panic")
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number + 1)
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

fn run(program: &str, words: &[&str]) {
    let status = Command::new(program).args(words).status();
    let status = status.expect(program);
    assert!(status.success(), "{program} {words:?}: {status}");
}

fn port(number: usize) -> String {
    format!("port{number}")
}

/// Asks a daemon to end, and waits until it has.
fn stop(mut daemon: Child) {
    let pid = Pid::from_raw(i32::try_from(daemon.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("ours");
    daemon.wait().expect("reaped");
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut daemon in self.daemons.iter_mut().filter_map(Option::take) {
            // Its host ends what else is left.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
