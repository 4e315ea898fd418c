//! Questions to the kernel over netlink, one at a time.

use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use std::io;

/// The kernel, as one netlink family shows it.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
}

impl Kernel {
    /// Connects to the part of the kernel that speaks this protocol.
    pub fn connect(protocol: isize) -> io::Result<Self> {
        let socket = Socket::new(protocol)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// Asks, and waits for the whole answer. `flags` must have the kernel end
    /// it: `NLM_F_DUMP`, or `NLM_F_ACK`.
    pub fn ask<Q: NetlinkSerializable, A: NetlinkDeserializable>(
        &self,
        question: Q,
        flags: u16,
    ) -> io::Result<Vec<A>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<A>::deserialize(rest).map_err(io::Error::other)?;
                // What else there is says nothing about the answer.
                if let NetlinkPayload::InnerMessage(answer) = message.payload {
                    answers.push(answer);
                } else if let NetlinkPayload::Done(_) = message.payload {
                    return Ok(answers);
                } else if let NetlinkPayload::Error(error) = message.payload {
                    return match error.code {
                        Some(_) => Err(error.to_io()),
                        None => Ok(answers),
                    };
                }
                // Messages begin at multiples of four bytes.
                let length = usize::try_from(message.header.length).map_err(io::Error::other)?;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}
