//! Connections that a clone has of its parent.
//!
//! The other end talks to the parent, and the clone has another address: what
//! user code still did with such a connection would hang, or disturb the
//! parent's. Each is ended here, and a program that waits on it is told at once
//! (`ECONNABORTED`). Done while the host lets nothing pass from here, so that the
//! kernel's own farewell (a reset) goes nowhere. Connections over the loopback have
//! both their ends in the clone and live on.

use crate::agent::netlink::Kernel;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_sock_diag::{
    SockDiagDestroy, SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, TCP_ESTABLISHED},
    inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::errno::Errno;
use std::{io, net::IpAddr};

/// Result of closing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// They are no more: so many were ended.
    All(usize),
    /// This kernel cannot end what programs hold open.
    Unsupported,
}

/// Ends every connection to anywhere but this very machine.
pub fn close_foreign() -> io::Result<Closed> {
    let kernel = Kernel::connect(NETLINK_SOCK_DIAG)?;
    let mut ended = 0;
    for family in [AF_INET, AF_INET6] {
        for (protocol, states) in [
            (IPPROTO_TCP, tcp_states()),
            // One of UDP that was connected counts as established.
            (IPPROTO_UDP, StateFlags::ESTABLISHED),
        ] {
            let all = question(family, protocol, states, anyone(family));
            let sockets = match kernel.ask(SockDiagMessage::InetRequest(all), NLM_F_DUMP) {
                Ok(sockets) => sockets,
                Err(error) if is_unknown(&error) => return Ok(Closed::Unsupported),
                Err(error) => return Err(error),
            };
            for socket in sockets {
                let SockDiagMessage::InetResponse(socket) = socket else {
                    continue;
                };
                if !is_foreign(socket.header.socket_id.destination_address) {
                    continue;
                }
                match end(&kernel, protocol, &socket.header) {
                    Ok(()) => ended += 1,
                    Err(error) if is_over(&socket.header, &error) => {}
                    Err(error) if is_unknown(&error) => return Ok(Closed::Unsupported),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(Closed::All(ended))
}

/// Every state in which there is another end.
fn tcp_states() -> StateFlags {
    StateFlags::all() - (StateFlags::LISTEN | StateFlags::CLOSE | StateFlags::TIME_WAIT)
}

fn is_foreign(other_end: IpAddr) -> bool {
    let other_end = other_end.to_canonical();
    !other_end.is_loopback() && !other_end.is_unspecified()
}

fn end(kernel: &Kernel, protocol: u8, socket: &InetResponseHeader) -> io::Result<()> {
    let this = question(
        socket.family,
        protocol,
        StateFlags::all(),
        socket.socket_id.clone(),
    );
    let order = SockDiagDestroy::new(SockDiagMessage::InetRequest(this));
    kernel.ask::<_, SockDiagMessage>(order, NLM_F_ACK).map(drop)
}

/// Tells whether it had ended by itself, or no program holds it any more.
fn is_over(socket: &InetResponseHeader, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || socket.state != TCP_ESTABLISHED
}

/// A kernel without the code for it answers so.
fn is_unknown(error: &io::Error) -> bool {
    let known = [Errno::ENOENT, Errno::EOPNOTSUPP, Errno::EINVAL].map(|errno| errno as i32);
    error
        .raw_os_error()
        .is_some_and(|code| known.contains(&code))
}

fn anyone(family: u8) -> SocketId {
    match family {
        AF_INET6 => SocketId::new_v6(),
        _ => SocketId::new_v4(),
    }
}

fn question(family: u8, protocol: u8, states: StateFlags, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol,
        extensions: ExtensionFlags::empty(),
        states,
        socket_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_out_of_the_machine_is_foreign() {
        for (address, foreign) in [
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("10.128.0.2", true),
            ("::ffff:10.128.0.2", true),
            ("fe80::1", true),
        ] {
            assert_eq!(
                is_foreign(address.parse().expect("an address")),
                foreign,
                "{address}"
            );
        }
    }
}
