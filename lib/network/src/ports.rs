//! Ports of the host that are about to lead to a guest: taken as any program
//! would take them, so that no two can have the same, nor any later.

use crate::NetworkError;
use forkyard_types::{Publish, Transport};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, OwnedFd},
};

/// Ports taken. Nothing listens on them here: packets are led on before a
/// socket could see them. Dropped, they are free.
#[derive(Debug, Default)]
pub struct Ports {
    taken: Vec<(Publish, OwnedFd)>,
}

impl Ports {
    /// Takes all of these, or none.
    pub(crate) fn take(wanted: &[Publish]) -> Result<Self, NetworkError> {
        let twice =
            (0..wanted.len()).find(|n| wanted[..*n].iter().any(|other| other.overlaps(wanted[*n])));
        if let Some(n) = twice {
            let source = io::ErrorKind::AddrInUse.into();
            return Err(NetworkError::Port {
                port: wanted[n],
                source,
            });
        }
        let taken = wanted.iter().map(|port| match take(*port) {
            Ok(held) => Ok((*port, held)),
            Err(source) => Err(NetworkError::Port {
                port: *port,
                source,
            }),
        });
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

fn take(port: Publish) -> io::Result<OwnedFd> {
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
