//! Notice of commits that touch our tables.
//!
//! The kernel tells of each commit to nftables: what was added and deleted, and then the
//! number of the generation it made. Commits of our own are known by that number
//! ([`Nft`](crate::nft::Nft) notes it), so that others can be told from them in any PID
//! namespace, whatever the other program is called.

use crate::{NetworkError, rules, tunnels};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
        setsockopt, socket, sockopt,
    },
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};
use tokio::net::UdpSocket;

/// NFNLGRP_NFTABLES, as a bit.
const GROUP: u32 = 1 << 6;
/// NFNL_SUBSYS_NFTABLES: the upper half of a message's type.
const SUBSYSTEM: u8 = 10;
/// NFT_MSG_NEWGEN: the end of a commit.
const NEW_GENERATION: u8 = 15;
/// NFT_MSG_GETGEN.
const GET_GENERATION: u8 = 16;
/// NFTA_GEN_ID; and, in any other message, the name of its table.
const FIRST_ATTRIBUTE: u16 = 1;
/// `struct nlmsghdr`, and `struct nfgenmsg` behind it.
const HEADER: usize = 16;
const HEADERS: usize = HEADER + 4;
/// Bytes of notices that may wait: a commit of thousands of elements must fit.
const WAITING: usize = 16 << 20;
/// Longest notice: the kernel joins several.
const NOTICE: usize = 64 << 10;

/// Commits that touched our tables, ours and others'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commits {
    /// Generations that they made.
    pub(crate) generations: Vec<u32>,
    /// Some were not told of, for there were too many.
    pub(crate) missed: bool,
}

/// A subscription to commits, of the network namespace in which it was opened.
#[derive(Debug)]
pub struct CommitWatch {
    /// The runtime reads any socket of datagrams by this type, netlink's too.
    kernel: UdpSocket,
    /// The commit that is being told of touches our tables.
    touched: bool,
}

impl CommitWatch {
    pub(crate) fn open() -> Result<Self, NetworkError> {
        let failed = |source| NetworkError::Netlink { source };
        let kernel = netfilter(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).map_err(failed)?;
        // As much as the host gives; what does not fit is told as missed.
        if let Err(error) = setsockopt(&kernel, sockopt::RcvBufForce, &WAITING) {
            tracing::debug!(%error, "notices of nftables have little room");
        }
        bind(kernel.as_raw_fd(), &NetlinkAddr::new(0, GROUP))
            .map_err(|errno| failed(errno.into()))?;
        let kernel = UdpSocket::from_std(kernel.into()).map_err(failed)?;
        Ok(Self {
            kernel,
            touched: false,
        })
    }

    /// Waits for commits that touch our tables. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Commits> {
        let mut commits = Commits::default();
        let mut notice = vec![0; NOTICE];
        loop {
            self.kernel.readable().await?;
            loop {
                match self.kernel.try_recv(&mut notice) {
                    Ok(length) => heed(&notice[..length], &mut self.touched, &mut commits),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                        commits.missed = true;
                    }
                    Err(error) => return Err(error),
                }
            }
            if commits != Commits::default() {
                return Ok(commits);
            }
        }
    }
}

/// Takes in what one notice says.
fn heed(notice: &[u8], touched: &mut bool, commits: &mut Commits) {
    for (kind, attribute) in messages(notice) {
        if kind != NEW_GENERATION {
            let name = attribute.strip_suffix(&[0]).unwrap_or(attribute);
            *touched |= [rules::TABLE, tunnels::TABLE]
                .map(str::as_bytes)
                .contains(&name);
        } else if std::mem::take(touched)
            && let Ok(number) = attribute.try_into()
        {
            commits.generations.push(u32::from_be_bytes(number));
        }
    }
}

/// The messages of nftables in a notice: what kind each is, and its first attribute.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let next = move || {
        let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let message = bytes.get(..length).filter(|_| length >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    };
    std::iter::from_fn(next).filter_map(|message| {
        let [kind, subsystem] = u16::from_ne_bytes([message[4], message[5]]).to_le_bytes();
        let mut attributes = message.get(HEADERS..)?;
        while let [a, b, c, d, ..] = *attributes {
            let length = usize::from(u16::from_ne_bytes([a, b]));
            if u16::from_ne_bytes([c, d]) == FIRST_ATTRIBUTE {
                let value = attributes.get(4..length)?;
                return (subsystem == SUBSYSTEM).then_some((kind, value));
            }
            attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
        }
        None
    })
}

/// The generation that the last commit made, in the network namespace of the calling
/// thread.
pub(crate) fn generation() -> io::Result<u32> {
    let kernel = netfilter(SockFlag::SOCK_CLOEXEC)?;
    let mut question = Vec::with_capacity(HEADERS);
    question.extend(u32::try_from(HEADERS).unwrap_or_default().to_ne_bytes());
    question.extend(u16::from_le_bytes([GET_GENERATION, SUBSYSTEM]).to_ne_bytes());
    // NLM_F_REQUEST; number and port of the sender, version and family are all 0.
    question.extend(1u16.to_ne_bytes());
    question.resize(HEADERS, 0);
    send(kernel.as_raw_fd(), &question, MsgFlags::empty())?;
    let mut answer = [0; 512];
    let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let mut messages = messages(&answer[..length]);
    let told = messages.find(|(kind, _)| *kind == NEW_GENERATION);
    let number = told.and_then(|(_, number)| number.try_into().ok());
    number
        .map(u32::from_be_bytes)
        .ok_or_else(|| io::Error::other("nftables does not tell its generation"))
}

fn netfilter(flags: SockFlag) -> io::Result<OwnedFd> {
    let protocol = SockProtocol::NetlinkNetFilter;
    Ok(socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        protocol,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u8, attribute: &[u8]) -> Vec<u8> {
        let length = HEADERS + 4 + attribute.len();
        let mut bytes = u32::try_from(length).expect("short").to_ne_bytes().to_vec();
        bytes.extend(u16::from_le_bytes([kind, SUBSYSTEM]).to_ne_bytes());
        bytes.resize(HEADERS, 0);
        let short = u16::try_from(4 + attribute.len()).expect("short");
        bytes.extend(short.to_ne_bytes());
        bytes.extend(FIRST_ATTRIBUTE.to_ne_bytes());
        bytes.extend(attribute);
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }

    fn end(number: u32) -> Vec<u8> {
        message(NEW_GENERATION, &number.to_be_bytes())
    }

    #[test]
    fn commits_to_our_tables_are_told_and_those_to_others_are_not() {
        let (mut touched, mut commits) = (false, Commits::default());
        let notices = [
            [message(2, b"filter\0"), end(7)].concat(),
            [message(2, b"forkyard\0"), message(2, b"filter\0")].concat(),
            end(8),
            [message(8, b"forkyard_tunnels\0"), end(9)].concat(),
            [message(6, b"forkyard_of_others\0"), end(10)].concat(),
        ];
        for notice in notices {
            heed(&notice, &mut touched, &mut commits);
        }
        assert_eq!(commits.generations, [8, 9]);
    }

    proptest! {
        #[test]
        fn no_bytes_are_taken_for_more_than_they_are(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER);
        }
    }
}
