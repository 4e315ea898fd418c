//! Many requests to the kernel in a few system calls: a network that spans hosts has
//! thousands of entries, and asked for one by one they would take a tenth of a second.

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use rtnetlink::{
    packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::RouteNetlinkMessage,
};
use std::{io, os::fd::AsRawFd};

/// Requests in one call: some 20 KiB, a tenth of what a socket takes.
const AT_ONCE: usize = 256;
/// An answer is a header, a number, and the request that it is to.
const ANSWER: usize = 4096;

/// A request, and its flags beyond those that every request has.
pub(crate) type Request = (RouteNetlinkMessage, u16);

/// Carries them out in their order, in the network namespace of the calling thread.
/// Blocks for as long as the kernel takes. The first that is refused is the error; of
/// those after it some may have been carried out.
pub(crate) fn carry_out(requests: Vec<Request>) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let kernel = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkRoute,
    )?;
    let mut requests = requests.into_iter().peekable();
    let mut number = 0;
    while requests.peek().is_some() {
        let mut bytes = Vec::new();
        let batch: Vec<_> = requests.by_ref().take(AT_ONCE).collect();
        let last = batch.len() - 1;
        for (place, (request, flags)) in batch.into_iter().enumerate() {
            number += 1;
            let mut message = NetlinkMessage::from(request);
            message.header.sequence_number = number;
            message.header.flags = NLM_F_REQUEST | flags;
            if place == last {
                // What is refused is answered without.
                message.header.flags |= NLM_F_ACK;
            }
            message.finalize();
            let start = bytes.len();
            bytes.resize(start + message.buffer_len(), 0);
            message.serialize(&mut bytes[start..]);
        }
        send(kernel.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut answer = [0; ANSWER];
        loop {
            let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let said = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..length]);
            let said = said.map_err(io::Error::other)?;
            if let NetlinkPayload::Error(refused) = &said.payload
                && refused.code.is_some()
            {
                return Err(refused.to_io());
            }
            if said.header.sequence_number == number {
                break;
            }
        }
    }
    Ok(())
}
