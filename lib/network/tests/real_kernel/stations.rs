//! Several hosts on one network: a namespace each, a thread in it, and a cable to a
//! bridge in another.

use crate::guest::Guest;
use forkyard_network::{Networks, Span, Subnet};
use forkyard_types::{Address, FamilyHost, FamilyId, Member, NetworkPolicy};
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth};
use std::{
    net::{Ipv4Addr, UdpSocket},
    rc::Rc,
    sync::mpsc,
    thread,
};
use tokio::runtime::Runtime;

/// Places that each host but the first is lent.
const LENT: u16 = 128;

type Work = Box<dyn FnOnce(&Runtime, &mut Option<Rc<Networks>>) + Send>;

/// A namespace, and the thread in it.
struct Station {
    work: mpsc::Sender<Work>,
    thread: u32,
}

/// Hosts 0, 1, 2, …, whose addresses are 10.77.0.1 and so on.
pub struct Stations {
    hosts: Vec<Station>,
    _switch: Station,
}

pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(host).expect("few") + 1)
}

/// The place that a host gives first.
pub fn first_place(host: usize) -> u16 {
    u16::try_from(host).expect("few") * LENT
}

/// Lists the places these hosts give of a family; the first of all has lent the
/// others theirs.
pub fn span(of: usize, hosts: &[usize]) -> Span {
    let host = |host: &usize| FamilyHost {
        tunnel: address(*host),
        first: Member(first_place(*host)),
        places: if *host == 0 { Subnet::MEMBERS } else { LENT },
    };
    Span {
        tunnel: address(of),
        hosts: hosts.iter().map(host).collect(),
        seen: Default::default(),
        parts: Default::default(),
    }
}

impl Station {
    fn new() -> Self {
        let (work, inbox) = mpsc::channel::<Work>();
        let (born, thread) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (this test takes root)");
            let _ = born.send(gettid().as_raw());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime");
            let mut networks = None;
            inbox.iter().for_each(|work| work(&runtime, &mut networks));
        });
        let thread = thread.recv().expect("the thread enters its namespace");
        let thread = u32::try_from(thread).expect("a process id");
        Self { work, thread }
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Runtime, &mut Option<Rc<Networks>>) -> T + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(
            move |runtime: &Runtime, networks: &mut Option<Rc<Networks>>| {
                let _ = done.send(work(runtime, networks));
            },
        );
        self.work.send(work).expect("the thread lives");
        result.recv().expect("the work does not panic")
    }

    fn netlink<F: Future<Output = ()>>(&self, work: impl FnOnce(Handle) -> F + Send + 'static) {
        self.run(move |runtime, _| {
            runtime.block_on(async {
                let (connection, netlink, _) = rtnetlink::new_connection().expect("netlink");
                let connection = tokio::spawn(connection);
                work(netlink).await;
                connection.abort();
            });
        });
    }
}

impl Stations {
    pub fn new(count: usize) -> Self {
        let switch = Station::new();
        switch.netlink(async |netlink| {
            let bridge = LinkBridge::new("switch").forward_delay(0).build();
            netlink.link().add(bridge).execute().await.expect("made");
        });
        let hosts = (0..count).map(|host| {
            let station = Station::new();
            let (port, thread) = (format!("port{host}"), switch.thread);
            let end = port.clone();
            station.netlink(async move |netlink| {
                let links = netlink.link();
                let cable = LinkVeth::new("up0", &end).build();
                links.add(cable).execute().await.expect("a cable");
                let far = LinkUnspec::new_with_name(&end).setns_by_pid(thread).build();
                links.set(far).execute().await.expect("laid");
                let index = if_nametoindex("up0").expect("there");
                let own = netlink.address().add(index, address(host).into(), 24);
                own.execute().await.expect("an address");
                for link in ["lo", "up0"] {
                    let up = LinkUnspec::new_with_name(link).up().build();
                    links.set(up).execute().await.expect("up");
                }
            });
            switch.netlink(async move |netlink| {
                let bridge = if_nametoindex("switch").expect("there");
                let plug = LinkUnspec::new_with_name(&port).controller(bridge).up();
                let plugged = netlink.link().set(plug.build()).execute().await;
                plugged.expect("plugged in");
            });
            station
        });
        let hosts = hosts.collect();
        let all = Self {
            hosts,
            _switch: switch,
        };
        (0..count).for_each(|host| all.restart(host));
        all
    }

    /// A daemon goes, and the next one comes.
    pub fn restart(&self, host: usize) {
        self.hosts[host].run(|runtime, networks| {
            drop(networks.take());
            let opened = runtime.block_on(crate::lifecycle::opened());
            *networks = Some(Rc::new(opened));
        });
    }

    /// Does something on a host.
    pub fn on<T: Send + 'static, F: Future<Output = T>>(
        &self,
        host: usize,
        work: impl FnOnce(Rc<Networks>) -> F + Send + 'static,
    ) -> T {
        self.hosts[host].run(move |runtime, networks| {
            let networks = networks.clone().expect("opened");
            runtime.block_on(work(networks))
        })
    }

    /// A family that is on these hosts, and they know of each other.
    pub fn family(&self, number: u16, hosts: &[usize]) -> FamilyId {
        let family = FamilyId::random();
        for host in hosts {
            self.on(*host, async move |networks| {
                let subnet = Subnet::of(number).expect("room");
                let policy = NetworkPolicy::default();
                let made = networks.create_family(family, subnet, &policy, None);
                made.await.expect("a family");
            });
            self.stretch(*host, family, number, span(*host, hosts));
        }
        family
    }

    pub fn stretch(&self, host: usize, family: FamilyId, number: u16, span: Span) {
        self.on(host, async move |networks| {
            let subnet = Subnet::of(number).expect("room");
            let stretched = networks.stretch(family, subnet, &span).await;
            stretched.expect("stretched");
        });
    }

    /// A member, its port open.
    pub fn guest(&self, host: usize, family: FamilyId, number: u16, member: u16) -> Guest {
        self.on(host, async move |networks| {
            let guest = Guest::new(&networks, family, number, member).await;
            guest.open(&networks).await;
            guest
        })
    }

    /// Has a program on one host send another a frame as a tunnel would.
    pub fn forge(&self, from: usize, to: usize, number: u16, frame: &[u8]) {
        let [high, low] = (0x5000 + number).to_be_bytes();
        let packet = [&[8, 0, 0, 0, 0x46, high, low, 0], frame].concat();
        self.on(from, async move |_| {
            let socket = UdpSocket::bind((address(from), 0)).expect("bound");
            socket.send_to(&packet, (address(to), 4789)).expect("sent");
        });
    }
}

/// Returns the holder of that place of a family.
pub fn place(number: u16, member: u16) -> Address {
    let subnet = Subnet::of(number).expect("room");
    subnet.address(Member(member)).expect("room")
}
