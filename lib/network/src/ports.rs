//! Ports of the host that are about to lead to a guest: taken as any program
//! would take them, so that no two can have the same, nor any later. And addresses of
//! a guest's own.

use crate::{
    NetworkError,
    addresses::{Addresses, Lease},
};
use forkyard_types::{Publish, PublishedPort, Transport};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, OwnedFd},
};

/// Ports and addresses taken. Nothing listens on the ports here: packets are led on before a
/// socket could see them. Dropped, they are free.
#[derive(Debug, Default)]
pub struct Ports {
    taken: Vec<(Publish, Held)>,
}

/// Port or address that is free once this is dropped.
#[derive(Debug)]
enum Held {
    Port { _socket: OwnedFd },
    Address { _lease: Lease },
}

impl Ports {
    /// Takes all of these, or none.
    pub(crate) fn take(wanted: &[Publish], addresses: &Addresses) -> Result<Self, NetworkError> {
        let twice =
            (0..wanted.len()).find(|n| wanted[..*n].iter().any(|other| other.overlaps(wanted[*n])));
        if let Some(n) = twice {
            return Err(in_use(wanted[n]));
        }
        let hold = |publish: &Publish| match publish {
            Publish::Address(own) => {
                let _lease = addresses.take(*own)?;
                Ok((*publish, Held::Address { _lease }))
            }
            // The host has it for that VM.
            Publish::Port(port) if port.address.is_some_and(|ip| addresses.has(ip)) => {
                Err(in_use(*publish))
            }
            Publish::Port(port) => match take(*port) {
                Ok(_socket) => Ok((*publish, Held::Port { _socket })),
                Err(source) => Err(NetworkError::Port {
                    port: *publish,
                    source,
                }),
            },
        };
        let taken = wanted.iter().map(hold);
        Ok(Self {
            taken: taken.collect::<Result<_, _>>()?,
        })
    }

    /// Holds others as well.
    pub(crate) fn add(&mut self, others: Self) {
        self.taken.extend(others.taken);
    }

    /// Frees all but these.
    pub(crate) fn keep(&mut self, kept: &[Publish]) {
        self.taken.retain(|(port, _)| kept.contains(port));
    }
}

fn in_use(port: Publish) -> NetworkError {
    NetworkError::Port {
        port,
        source: io::ErrorKind::AddrInUse.into(),
    }
}

fn take(port: PublishedPort) -> io::Result<OwnedFd> {
    let kind = match port.transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let taken = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)?;
    let address = port.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let address = SockaddrIn::from(SocketAddrV4::new(address, port.port));
    bind(taken.as_raw_fd(), &address)?;
    Ok(taken)
}
