//! Several hosts on one network, each with a daemon that knows the others: from
//! a file, or as nodes of one cluster, whose etcd is where the bridge is.
//!
//! ```text
//! host 0: up0 10.77.0.1 ---.
//! host 1: up0 10.77.0.2 ---+--- port0, port1, … on a bridge, in a namespace
//! ...                          of their own; etcd at 10.77.0.254
//! ```
//!
//! They take one slot together. Dropped, they are ended as any host is. What can
//! be done to their network is in `faults`.

mod introduce;

use crate::{
    Host, Process, Steps,
    host::woken,
    slot::Slot,
    switch::{HUB, Switch, address, run, tap},
};
use forkyard_etcd::server::Server;
use forkyard_placement::slurm::server as slurm;
use forkyard_testnet::{LinkFaults, TestSwitch};
use forkyard_types::VmView;
use nix::{
    mount::{MsFlags, mount, umount},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

/// Port at which daemons listen, and that of pagers.
pub(crate) const API: u16 = 7433;
pub(crate) const PAGES: u16 = 7434;
/// MiB of memory that Slurm believes each host to have.
const MIB: u64 = 8192;
/// Seconds after which a node that is silent is lost: tests do not wait long for it.
const LEASE: &str = "10";

/// Hosts that know each other: each calls the others `h0`, `h1`, ….
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order.
    pub(crate) daemons: Vec<Option<Child>>,
    /// Those whose power has failed.
    dark: Vec<bool>,
    /// Small disks that hosts have their state on.
    confined: Vec<(usize, PathBuf)>,
    pub(crate) hosts: Vec<Host>,
    etcd: Option<Server>,
    slurm: Option<slurm::SlurmServer>,
    pub(crate) switch: Switch,
    /// In place of the switch, if they are joined by a network in user space.
    link: Option<TestSwitch>,
}

impl Cluster {
    /// Waits until so many hosts may be had; on none a daemon runs.
    fn idle(count: u8) -> Self {
        Self::idle_in(count, Slot::wait())
    }

    fn idle_in(count: u8, slot: Slot) -> Self {
        let slot = Arc::new(slot);
        let switch = Switch::new();
        let connected = (0..count).map(|number| {
            let host = Host::on(slot.clone());
            switch.connect(&host, number);
            host
        });
        Self {
            hosts: connected.collect(),
            daemons: (0..count).map(|_| None).collect(),
            dark: vec![false; count.into()],
            confined: Vec::new(),
            etcd: None,
            slurm: None,
            switch,
            link: None,
        }
    }

    /// Nodes of one cluster. The first has founded it; the others are told to join
    /// by [`Cluster::join`].
    pub fn of_nodes(count: u8) -> Self {
        let mut cluster = Self::idle(count);
        cluster.found(&[]);
        cluster
    }

    /// Nodes like those of [`Cluster::of_nodes`] whose machines are made up (`lib/fake-engine`).
    pub fn of_fake_nodes(count: u8) -> Self {
        let mut cluster = Self::idle_fake(count);
        cluster.found(&[]);
        cluster
    }

    /// Hosts like those of [`Cluster::new`] whose machines are.
    pub fn fake(count: u8) -> Self {
        Self::idle_fake(count).acquainted(&[])
    }

    fn idle_fake(count: u8) -> Self {
        let mut cluster = Self::idle_in(count, Slot::wait_fake());
        for host in &mut cluster.hosts {
            host.dist = host.dist.with_file_name("fake");
        }
        cluster
    }

    /// Listens beyond all hosts, at the returned address, for as long as the tests run.
    pub fn listen_beyond(&self) -> SocketAddr {
        let listener = self
            .switch
            .within(|| TcpListener::bind((HUB, 0)).expect("bound"));
        let at = listener.local_addr().expect("bound");
        thread::spawn(move || listener.incoming().for_each(drop));
        at
    }

    /// Starts a cluster where Slurm hands out the room: so many processors on
    /// each.
    pub fn of_nodes_in_slurm(count: u8, cpus: u32) -> Self {
        let mut cluster = Self::idle(count);
        let slurm = cluster.switch.within(move || {
            let names: Vec<_> = (0..count).map(|number| format!("h{number}")).collect();
            let nodes: Vec<_> = names
                .iter()
                .map(|name| (name.as_str(), cpus, MIB))
                .collect();
            slurm::SlurmServer::start_on(HUB, &nodes)
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
            host.told.extend([
                ("FORKYARD_NODE", format!("h{number}").into()),
                ("FORKYARD_ADVERTISE", address(number).to_string().into()),
                ("FORKYARD_LEASE", LEASE.into()),
            ]);
            host.told.extend(more.iter().cloned());
            if number == 0 {
                let endpoint = etcd.endpoint().to_string();
                host.told.push(("FORKYARD_CLUSTER", endpoint.into()));
                host.told.push(("FORKYARD_ETCD_INSECURE", "true".into()));
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

    /// Returns the address of etcd.
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

    /// Hosts like those of [`Cluster::new`] that wake the smallest image instead of booting it.
    pub fn waking(count: u8) -> Self {
        Self::idle_waking(count).acquainted(&[])
    }

    /// Nodes like those of [`Cluster::of_nodes`] that do.
    pub fn of_waking_nodes(count: u8) -> Self {
        let mut cluster = Self::idle_waking(count);
        cluster.found(&[]);
        cluster
    }

    fn idle_waking(count: u8) -> Self {
        // Before it has a slot: another host takes its turn.
        woken::kept();
        let mut cluster = Self::idle(count);
        cluster.hosts.iter_mut().for_each(Host::wakes);
        cluster
    }

    /// Starts a cluster all of whose daemons have these variables, too.
    pub fn told(count: u8, variables: &[(&'static str, &str)]) -> Self {
        Self::idle(count).acquainted(variables)
    }

    /// Starts a cluster whose daemons can be killed at any step of theirs.
    pub fn with_steps(count: u8) -> Self {
        let mut cluster = Self::idle(count);
        for host in &mut cluster.hosts {
            host.steps = Some(Steps::new());
        }
        cluster.acquainted(&[])
    }

    /// Starts such a cluster whose machines are made up (`lib/fake-engine`).
    pub fn fake_with_steps(count: u8) -> Self {
        let mut cluster = Self::idle_fake(count);
        for host in &mut cluster.hosts {
            host.steps = Some(Steps::new());
        }
        cluster.acquainted(&[])
    }

    /// Nodes like those of [`Cluster::of_nodes`] whose machines are made up.
    pub fn fake_of_nodes(count: u8) -> Self {
        let mut cluster = Self::idle_in(count, Slot::wait_fake());
        for host in &mut cluster.hosts {
            host.dist = host.dist.with_file_name("fake");
            host.steps = Some(Steps::new());
        }
        cluster.found(&[]);
        cluster
    }

    /// Starts a cluster joined by a network in user space that delays, loses,
    /// doubles and reorders packets, as it is told.
    pub fn linked(count: u8, network: LinkFaults) -> Self {
        let slot = Arc::new(Slot::wait());
        let hosts: Vec<_> = (0..count).map(|_| Host::on(slot.clone())).collect();
        let taps = (0..).zip(&hosts).map(|(number, host)| tap(host, number));
        let link = TestSwitch::new(taps.collect(), network);
        let cluster = Self {
            daemons: hosts.iter().map(|_| None).collect(),
            dark: vec![false; hosts.len()],
            confined: Vec::new(),
            hosts,
            etcd: None,
            slurm: None,
            switch: Switch::new(),
            link: Some(link),
        };
        cluster.acquainted(&[])
    }

    /// The network in user space that joins them.
    #[track_caller]
    pub fn link(&self) -> &TestSwitch {
        self.link.as_ref().expect("a cluster that asked for it")
    }

    /// Has all daemons run and told of each other.
    fn acquainted(mut self, variables: &[(&'static str, &str)]) -> Self {
        for (number, host) in (0..).zip(&mut self.hosts) {
            let peers = host.folder().join("peers.toml");
            File::create(&peers)
                .and_then(|file| file.set_permissions(Permissions::from_mode(0o600)))
                .expect("a file of its own");
            host.told.extend([
                (
                    "FORKYARD_LISTEN",
                    format!("{}:{API}", address(number)).into(),
                ),
                (
                    "FORKYARD_PAGES",
                    format!("{}:{PAGES}", address(number)).into(),
                ),
                ("FORKYARD_PEERS", peers.into()),
            ]);
            let more = variables.iter();
            host.told
                .extend(more.map(|(name, value)| (*name, value.into())));
        }
        (0..self.hosts.len()).for_each(|number| self.start(number));
        self.introduce();
        self
    }

    /// One of the hosts.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// Returns a host's address on their network.
    pub fn address(&self, number: usize) -> Ipv4Addr {
        address(u8::try_from(number).expect("few hosts"))
    }

    /// Starts a host's daemon, and waits until it answers.
    #[track_caller]
    pub fn start(&mut self, number: usize) {
        if std::mem::take(&mut self.dark[number]) {
            self.mend(number);
        }
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
                let said = fs::read_to_string(run.join("daemon.log")).unwrap_or_default();
                let lines: Vec<_> = said.lines().collect();
                let last = lines[lines.len().saturating_sub(3)..].join("\n");
                panic!("the daemon of host {number} ended: {status}: {last}");
            }
            UnixStream::connect(&socket).is_ok()
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

    /// Sees to it that a host has a daemon: one that has ended is replaced, unless
    /// the client that asked it for something has done so.
    #[track_caller]
    pub fn replace_daemon(&mut self, number: usize) {
        let ended = |daemon: &mut Child| daemon.try_wait().expect("a child of ours").is_some();
        self.daemons[number].take_if(ended);
        let socket = self.hosts[number].folder().join("run/api.sock");
        if self.daemons[number].is_none() && UnixStream::connect(socket).is_err() {
            self.start(number);
        }
    }

    /// Ends all that runs on a host at once, as a loss of power does: no peer hears
    /// anything of it, not even that it is gone. Its cable stays cut until it
    /// is started.
    #[track_caller]
    pub fn die(&mut self, number: usize) {
        self.cut(number);
        self.dark[number] = true;
        let host = &self.hosts[number];
        Process::kill_all(&host.all_processes());
        if let Some(mut daemon) = self.daemons[number].take() {
            daemon.wait().expect("reaped");
        }
        let host = &self.hosts[number];
        crate::eventually("a host's end", || host.all_processes().is_empty());
    }

    /// Has a host's state lie on a disk of so many MiB from now on, with another daemon.
    /// Before it has VMs, which would have their files where they were.
    #[track_caller]
    pub fn confine(&mut self, number: usize, mib: u32) {
        self.kill_daemon(number);
        let state = self.hosts[number].folder().join("state");
        let at = state.clone();
        self.hosts[number].within(move || {
            let kept = at.with_file_name("kept");
            run("cp", &["-a", text(&at), text(&kept)]);
            let size = format!("size={mib}m,mode=711");
            let (source, kind) = (Some("state"), Some("tmpfs"));
            mount(source, &at, kind, MsFlags::empty(), Some(&*size)).expect("a small disk");
            run("cp", &["-a", &format!("{}/.", kept.display()), text(&at)]);
            fs::remove_dir_all(kept).expect("ours");
        });
        self.confined.push((number, state));
        self.start(number);
    }

    /// Removes every VM, of the first host first; after that there must be nothing
    /// on any.
    #[track_caller]
    pub fn end(mut self) {
        for (number, host) in self.hosts.iter().enumerate() {
            // A daemon that a command started ends with its host's last VM, and the others
            // hear of that a moment later.
            let gone: Vec<_> = (0..number).map(|number| format!("h{number}")).collect();
            let is_gone = |vm: &VmView| vm.host.as_ref().is_some_and(|at| gone.contains(at));
            crate::eventually("the others to have heard", || {
                !host.vms().iter().any(is_gone)
            });
            host.ok(["rm", "--all"]);
        }
        for daemon in self.daemons.iter_mut().filter_map(Option::take) {
            stop(daemon);
        }
        for (number, state) in self.confined.drain(..) {
            let host = &self.hosts[number];
            let disk = [format!("mount {}", state.display())];
            host.nothing_left_but(&disk);
            let unmounted = host.within(move || umount(&state));
            unmounted.expect("nobody uses it");
        }
        self.hosts.iter().for_each(Host::nothing_left);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
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
