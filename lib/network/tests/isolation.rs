//! What passes and what does not, on real bridges and taps in a network
//! namespace of the test's own. The guests are the other ends of the taps.
//! Takes root.

use forkyard_network::{Link, NetworkError, Networks, Subnet};
use forkyard_types::{Address, FamilyId, Mac, Member, VmId};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    unistd,
};
use std::{
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

/// The virtio-net header before each frame; all zeros ask for nothing.
const HEADER: usize = 10;
const BROADCAST: Mac = Mac([0xff; 6]);
/// Long enough for a frame that passes; all that do not are waited for so long.
const WAIT: Duration = Duration::from_millis(300);

/// A tap's far end, and who it should say it is.
struct Guest {
    vm: VmId,
    family: FamilyId,
    address: Address,
    tap: OwnedFd,
}

impl Guest {
    async fn new(networks: &Networks, family: FamilyId, number: u16, member: u16) -> Self {
        let address = Subnet::of(number)
            .and_then(|s| s.address(Member(member)))
            .expect("room");
        let vm = VmId::random();
        let tap = networks.create_tap(vm).expect("a tap");
        networks.admit(&[(vm, address)]).await.expect("admitted");
        Self {
            vm,
            family,
            address,
            tap,
        }
    }

    async fn open(self, networks: &Networks) -> Self {
        networks
            .open_port(self.family, self.vm)
            .await
            .expect("open");
        self
    }

    fn send(&self, frame: &[u8]) {
        let mut bytes = vec![0; HEADER];
        bytes.extend_from_slice(frame);
        // A tap that is down refuses; that, too, is not passing.
        let _ = unistd::write(&self.tap, &bytes);
    }

    /// Whether this very frame arrives within the time that frames take.
    fn receives(&self, frame: &[u8]) -> bool {
        let mut bytes = [0; 2048];
        let timeout = PollTimeout::try_from(WAIT).expect("short");
        loop {
            let mut fds = [PollFd::new(self.tap.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, timeout).expect("poll") == 0 {
                return false;
            }
            match unistd::read(&self.tap, &mut bytes) {
                Ok(n) if n >= HEADER && &bytes[HEADER..n] == frame => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0[..], &kind.to_be_bytes()[..], payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(to: Mac, from: Mac, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    // As long as the shortest frame, or the bridge would cut the padding off.
    let mut packet = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let sum: u32 = packet
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let sum = !(u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded"));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    ethernet(to, from, 0x0800, &packet)
}

fn arp(from: Mac, says: Mac, source: Ipv4Addr, asks: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    let payload = [
        &head[..],
        &says.0[..],
        &source.octets()[..],
        &[0; 6][..],
        &asks.octets()[..],
    ]
    .concat();
    ethernet(BROADCAST, from, 0x0806, &payload)
}

/// Runs `test` in a network namespace of its own, on a thread of its own.
fn alone<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (this test takes root)");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn members_of_a_family_hear_each_other_once_their_ports_are_open() {
    alone(|| async {
        let networks = Networks::open().await.expect("networks");
        let family = FamilyId::random();
        networks.create_family(family).await.expect("bridge");
        let a = Guest::new(&networks, family, 0, 0)
            .await
            .open(&networks)
            .await;
        let b = Guest::new(&networks, family, 0, 1).await;
        let frame = ipv4(b.address.mac, a.address.mac, a.address.ip, b.address.ip);
        a.send(&frame);
        assert!(!b.receives(&frame), "its port is shut");
        let b = b.open(&networks).await;
        a.send(&frame);
        assert!(b.receives(&frame));
        let question = arp(b.address.mac, b.address.mac, b.address.ip, a.address.ip);
        b.send(&question);
        assert!(a.receives(&question));
    });
}

#[test]
fn nothing_passes_between_families_however_forged() {
    alone(|| async {
        let networks = Networks::open().await.expect("networks");
        let (ours, theirs) = (FamilyId::random(), FamilyId::random());
        networks.create_family(ours).await.expect("bridge");
        networks.create_family(theirs).await.expect("bridge");
        let us = Guest::new(&networks, ours, 0, 0)
            .await
            .open(&networks)
            .await;
        let them = Guest::new(&networks, theirs, 1, 0)
            .await
            .open(&networks)
            .await;
        let peer = Guest::new(&networks, theirs, 1, 1)
            .await
            .open(&networks)
            .await;
        for frame in [
            ipv4(
                them.address.mac,
                us.address.mac,
                us.address.ip,
                them.address.ip,
            ),
            ipv4(BROADCAST, us.address.mac, us.address.ip, them.address.ip),
            ipv4(
                them.address.mac,
                peer.address.mac,
                peer.address.ip,
                them.address.ip,
            ),
            arp(
                us.address.mac,
                us.address.mac,
                us.address.ip,
                them.address.ip,
            ),
        ] {
            us.send(&frame);
            assert!(!them.receives(&frame));
        }
    });
}

#[test]
fn a_member_speaks_as_itself_or_not_at_all() {
    alone(|| async {
        let networks = Networks::open().await.expect("networks");
        let family = FamilyId::random();
        networks.create_family(family).await.expect("bridge");
        let a = Guest::new(&networks, family, 0, 0)
            .await
            .open(&networks)
            .await;
        let b = Guest::new(&networks, family, 0, 1)
            .await
            .open(&networks)
            .await;
        let c = Guest::new(&networks, family, 0, 2)
            .await
            .open(&networks)
            .await;
        let honest = ipv4(b.address.mac, a.address.mac, a.address.ip, b.address.ip);
        a.send(&honest);
        assert!(b.receives(&honest), "or this test proves nothing");
        for forged in [
            ipv4(b.address.mac, c.address.mac, c.address.ip, b.address.ip),
            ipv4(b.address.mac, c.address.mac, a.address.ip, b.address.ip),
            ipv4(b.address.mac, a.address.mac, c.address.ip, b.address.ip),
            arp(a.address.mac, a.address.mac, c.address.ip, b.address.ip),
            arp(a.address.mac, c.address.mac, a.address.ip, b.address.ip),
            arp(c.address.mac, c.address.mac, c.address.ip, b.address.ip),
            ethernet(b.address.mac, a.address.mac, 0x86dd, &[0x60; 40]),
            ethernet(b.address.mac, a.address.mac, 0x88b5, &[1; 46]),
        ] {
            a.send(&forged);
            assert!(!b.receives(&forged), "{forged:02x?}");
        }
        networks.forget(a.vm).await.expect("forgotten");
        a.send(&honest);
        assert!(!b.receives(&honest), "whoever is forgotten is not heard");
    });
}

#[test]
fn taps_go_with_their_descriptors_and_bridges_with_their_families() {
    alone(|| async {
        let networks = Networks::open().await.expect("networks");
        let family = FamilyId::random();
        networks.create_family(family).await.expect("bridge");
        let guest = Guest::new(&networks, family, 0, 0)
            .await
            .open(&networks)
            .await;
        let (bridge, tap) = (Link::Bridge(family), Link::Tap(guest.vm));
        let mut links = networks.links().await.expect("listed");
        links.sort_by_key(|link| link.name());
        assert_eq!(links, [bridge, tap]);
        drop(guest);
        assert_eq!(networks.links().await.expect("listed"), [bridge]);
        networks.remove_family(family).await.expect("removed");
        networks
            .remove_family(family)
            .await
            .expect("removing nothing is no error");
        assert_eq!(networks.links().await.expect("listed"), []);
    });
}

#[test]
fn a_namespace_has_one_owner() {
    alone(|| async {
        let first = Networks::open().await.expect("networks");
        assert!(matches!(
            Networks::open().await,
            Err(NetworkError::Taken { .. })
        ));
        drop(first);
        Networks::open().await.expect("free again");
    });
}

#[test]
fn a_port_of_a_family_without_a_bridge_is_refused() {
    alone(|| async {
        let networks = Networks::open().await.expect("networks");
        let vm = VmId::random();
        let _tap = networks.create_tap(vm).expect("tap");
        let refused = networks.open_port(FamilyId::random(), vm).await;
        assert!(matches!(refused, Err(NetworkError::NoLink { .. })));
    });
}
