//! The rest of the world, as far as a host is concerned: a network namespace at
//! the other end of a cable.
//!
//! ```text
//! host's namespace                 outside
//!   up0 192.0.2.1/24 ------------- in0 192.0.2.2/24
//!   default route: outside         lo  SERVER   on the internet
//!                                      PRIVATE  in another private network
//!                                      RESOLVER
//! ```
//!
//! Outside knows no way to the families' networks: a guest that is answered there
//! has come in disguise. It lasts as long as this value or a socket in it.

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto,
            setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
    unistd::gettid,
};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Longer than an answer takes that comes.
const SOON: Duration = Duration::from_secs(20);

/// The host's end of the cable.
pub const UPLINK: &str = "up0";
/// The host as it is seen from outside.
pub const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Outside as the host's neighbour.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// A server of no private network.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// A server of a private one.
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
/// One that answers questions about names.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 53);

type Work = Box<dyn FnOnce() + Send>;

/// A namespace, and the thread in it.
#[derive(Debug)]
pub struct Outside {
    work: mpsc::Sender<Work>,
}

impl Outside {
    /// Lays the cable from the namespace of the calling thread. Panics without
    /// root.
    pub fn join() -> Self {
        let (work, inbox) = mpsc::channel::<Work>();
        let (born, thread) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            let _ = born.send(gettid().as_raw());
            inbox.iter().for_each(|work| work());
        });
        let thread = thread.recv().expect("the thread enters its namespace");
        let thread = u32::try_from(thread).expect("a process id");
        netlink(async move |netlink| {
            let cable = LinkVeth::new(UPLINK, "in0").build();
            netlink.link().add(cable).execute().await.expect("a cable");
            let end = LinkUnspec::new_with_name("in0")
                .setns_by_pid(thread)
                .build();
            netlink.link().set(end).execute().await.expect("laid");
            up(&netlink, "lo", &[]).await;
            up(&netlink, UPLINK, &[(HOST, 24)]).await;
            route(&netlink, Ipv4Addr::UNSPECIFIED, 0, NEIGHBOUR).await;
        });
        let outside = Self { work };
        outside.within(|| {
            netlink(async |netlink| {
                up(&netlink, "in0", &[(NEIGHBOUR, 24)]).await;
                up(
                    &netlink,
                    "lo",
                    &[(SERVER, 32), (PRIVATE, 32), (RESOLVER, 32)],
                )
                .await;
            });
        });
        outside
    }

    /// Tells outside that this network is reached by the host.
    pub fn learn_route(&self, network: Ipv4Addr, prefix: u8) {
        self.within(move || {
            netlink(async move |netlink| route(&netlink, network, prefix, HOST).await)
        });
    }

    /// Greets clients that connect to this address, by the one that it has here.
    pub fn greet(&self, address: Ipv4Addr, port: u16) {
        let listener = self.within(move || TcpListener::bind((address, port)).expect("bound"));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let peer = stream.peer_addr().map(|peer| peer.ip());
                // A client that hangs up early wants no greeting.
                let _ =
                    peer.and_then(|peer| (&stream).write_all(format!("hello {peer}\n").as_bytes()));
            }
        });
    }

    /// All that is said by the server that is reached at this address of the host.
    pub fn ask(&self, address: Ipv4Addr, port: u16) -> io::Result<String> {
        self.within(move || ask(address, port))
    }

    /// Tells whether an address answers an ICMP echo request that is sent from here.
    pub fn pings(&self, address: Ipv4Addr) -> bool {
        self.within(move || is_echoed(address).expect("a raw socket"))
    }

    /// Does something outside and waits for it. A socket made there stays there.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            let _ = done.send(work());
        });
        self.work.send(work).expect("the thread lives");
        result.recv().expect("the work does not panic")
    }
}

/// All that is said at an address, as seen from where the calling thread is.
pub fn ask(address: Ipv4Addr, port: u16) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut said = String::new();
    (&stream).read_to_string(&mut said)?;
    Ok(said.trim_end().to_owned())
}

fn is_echoed(address: Ipv4Addr) -> io::Result<bool> {
    // Of another connection each time: what is known of one stays for a while.
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let (domain, kind) = (AddressFamily::Inet, SockType::Raw);
    let socket = socket(domain, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(5))?;
    // Echo request, and its checksum over the words 0x0800, id and 1.
    let sum = !(0x0800 + u16::from_be_bytes(id) + 1);
    let request = [&[8, 0][..], &sum.to_be_bytes(), &id, &[0, 1]].concat();
    let to = SockaddrIn::from(SocketAddrV4::new(address, 0));
    sendto(socket.as_raw_fd(), &request, &to, MsgFlags::empty())?;
    let mut packet = [0; 256];
    loop {
        match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Ok(length) => {
                let is_reply = packet[20] == 0 && packet[24..26] == id;
                if length >= 28 && is_reply && packet[12..16] == address.octets() {
                    return Ok(true);
                }
            }
            Err(Errno::EAGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Speaks netlink in the namespace of the calling thread, whether or not that
/// one is about something asynchronous already.
pub(crate) fn netlink<F: Future<Output = ()>>(work: impl FnOnce(Handle) -> F + Send) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let (connection, netlink, _) = rtnetlink::new_connection().expect("netlink");
            tokio::spawn(connection);
            work(netlink).await;
        });
    };
    thread::scope(|scope| scope.spawn(run).join()).expect("netlink");
}

pub(crate) async fn up(netlink: &Handle, link: &str, addresses: &[(Ipv4Addr, u8)]) {
    let index = nix::net::if_::if_nametoindex(link).expect("there");
    for (address, prefix) in addresses {
        let added = netlink.address().add(index, IpAddr::V4(*address), *prefix);
        added.execute().await.expect("an address");
    }
    let up = LinkUnspec::new_with_name(link).up().build();
    netlink.link().set(up).execute().await.expect("up");
}

async fn route(netlink: &Handle, network: Ipv4Addr, prefix: u8, by: Ipv4Addr) {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(network, prefix)
        .gateway(by)
        .build();
    netlink.route().add(route).execute().await.expect("a route");
}
