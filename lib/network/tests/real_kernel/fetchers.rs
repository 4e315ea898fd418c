//! Programs of the host that fetch what strangers name.

use crate::guest::{PATIENCE, alone};
use forkyard_e2e::{
    Outside,
    outside::{HOST, PRIVATE, SERVER},
};
use forkyard_network::Closed;
use forkyard_types::{OUTSIDE_FETCHER_UID, Transport};
use nix::unistd::{Uid, setfsuid};
use std::{
    collections::BTreeSet,
    net::{
        IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket,
    },
};

const PORT: u16 = 5000;

/// A connection of a program that runs as this user.
fn connect(user: u32, to: SocketAddr) -> std::io::Result<TcpStream> {
    // A socket is of the user that its thread opens files as.
    setfsuid(Uid::from_raw(user));
    let connected = TcpStream::connect_timeout(&to, PATIENCE);
    setfsuid(Uid::from_raw(0));
    connected
}

#[test]
fn what_fetches_for_strangers_reaches_others_and_the_host_by_none_of_its_addresses() {
    alone(|networks| async move {
        let outside = Outside::join();
        let own = |ip: IpAddr| TcpListener::bind((ip, PORT)).expect("bound");
        let here: [IpAddr; 3] = [
            Ipv4Addr::LOCALHOST.into(),
            HOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        let _servers = here.map(own);
        let [server, etcd] = [SERVER, PRIVATE]
            .map(|ip| outside.within(move || TcpListener::bind((ip, PORT)).expect("bound")));
        for ip in here {
            let to = SocketAddr::new(ip, PORT);
            connect(OUTSIDE_FETCHER_UID, to).expect_err("the host itself");
            connect(OUTSIDE_FETCHER_UID + 1, to).expect("what root asks for");
        }
        for (listener, ip) in [(&server, SERVER), (&etcd, PRIVATE)] {
            connect(OUTSIDE_FETCHER_UID, (ip, PORT).into()).expect("a server");
            listener.accept().expect("connected");
        }
        let at = SocketAddrV4::new(PRIVATE, PORT);
        let closed = Closed {
            at,
            transport: Transport::Tcp,
        };
        networks
            .close(BTreeSet::from([closed]))
            .await
            .expect("closed");
        connect(OUTSIDE_FETCHER_UID, at.into()).expect_err("closed to strangers");
        connect(0, at.into()).expect("open to the host");
        // Names are looked up at the host's own resolver, if it has one.
        let resolver = UdpSocket::bind("127.0.0.1:53").expect("bound");
        resolver.set_read_timeout(Some(PATIENCE)).expect("set");
        setfsuid(Uid::from_raw(OUTSIDE_FETCHER_UID));
        let asking = UdpSocket::bind("127.0.0.1:0").expect("bound");
        setfsuid(Uid::from_raw(0));
        asking.send_to(b"name?", "127.0.0.1:53").expect("sent");
        resolver.recv_from(&mut [0; 16]).expect("heard");
    });
}
