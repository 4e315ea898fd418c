//! Tests of the network after another program has removed or changed the rules.

use crate::guest::{Guest, PATIENCE, alone, family};
use forkyard_network::{CommitWatch, Commits, Link, Networks};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use rtnetlink::{
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags},
    },
};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
};
use tokio::time::timeout;

/// RTNLGRP_LINK, as a bit.
const LINKS: u32 = 1;

fn nft(command: &str) {
    let ran = Command::new("nft").args(command.split(' ')).status();
    assert!(ran.expect("nft").success(), "{command}");
}

async fn next(watch: &mut CommitWatch) -> Commits {
    let told = timeout(PATIENCE, watch.next()).await;
    told.expect("a commit is told of").expect("read")
}

/// Puts the rules back once what another program did is known.
async fn mended(networks: &Networks, watch: &mut CommitWatch) {
    while !networks.mend(&next(watch).await).await.expect("mended") {}
}

/// A subscription to changes of interfaces.
fn links() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let protocol = SockProtocol::NetlinkRoute;
    let kernel = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).expect("netlink");
    bind(kernel.as_raw_fd(), &NetlinkAddr::new(0, LINKS)).expect("subscribed");
    kernel
}

/// Every state that an interface was in since then: true is up.
fn states(kernel: &OwnedFd, link: &str) -> Vec<bool> {
    let mut notice = vec![0; 64 << 10];
    let mut states = Vec::new();
    while let Ok(length) = recv(kernel.as_raw_fd(), &mut notice, MsgFlags::empty()) {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&notice[..length]);
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(change)) =
            message.expect("a message").payload
        else {
            continue;
        };
        let named = |it: &LinkAttribute| *it == LinkAttribute::IfName(link.to_owned());
        if change.attributes.iter().any(named) {
            states.push(change.header.flags.contains(LinkFlags::Up));
        }
    }
    states
}

/// Members hear each other, and no other family hears them.
fn is_sound(us: &[Guest; 2], them: &Guest) {
    let frame = us[0].packet_to(&us[1]);
    us[0].send(&frame);
    assert!(us[1].receives(&frame));
    let forged = us[0].packet_to(them);
    us[0].send(&forged);
    assert!(them.misses(&forged));
}

#[test]
fn rules_that_another_program_removes_are_put_back_and_bridges_are_down_meanwhile() {
    alone(|networks| async move {
        let mut watch = networks.watch().expect("not given out yet");
        let us = family::<2>(&networks, 0).await;
        let [them] = family(&networks, 1).await;
        let bridges = [us[0].family, them.family].map(|it| Link::Bridge(it).name());
        for command in [
            "flush ruleset",
            "delete table bridge forkyard",
            "flush chain bridge forkyard from_guests",
            "insert rule ip forkyard forward accept",
        ] {
            let before = networks.wall();
            let kernels = [links(), links()];
            nft(command);
            mended(&networks, &mut watch).await;
            for (kernel, bridge) in kernels.iter().zip(&bridges) {
                let states = states(kernel, bridge);
                assert!(states.contains(&false), "{command}: {bridge} stayed up");
                assert_eq!(states.last(), Some(&true), "{command}: {bridge}");
            }
            let wall = networks.wall();
            assert_eq!((wall.mended, wall.broken), (before.mended + 1, false));
            is_sound(&us, &them);
        }
    });
}

#[test]
fn what_we_change_ourselves_is_not_taken_for_another_program() {
    alone(|networks| async move {
        let mut watch = networks.watch().expect("not given out yet");
        let [guest, other] = family(&networks, 0).await;
        networks.forget(guest.vm).await.expect("forgotten");
        networks.forget(other.vm).await.expect("forgotten");
        nft("add table ip of_others");
        nft("insert rule ip forkyard forward accept");
        // All that came before it is told of before it.
        let mut foreign = false;
        while !foreign {
            let commits = next(&mut watch).await;
            foreign = networks.mend(&commits).await.expect("looked at");
            let wall = networks.wall().mended;
            assert_eq!(wall, u32::from(foreign));
        }
        // Nor is mending them an occasion to mend them again.
        nft("insert rule ip forkyard forward accept");
        mended(&networks, &mut watch).await;
        assert_eq!(networks.wall().mended, 2);
    });
}
