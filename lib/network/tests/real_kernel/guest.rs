//! Guests as the network knows them: the far ends of taps, and the frames they
//! write into them.

use forkyard_network::{Networks, Subnet};
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

pub const BROADCAST: Mac = Mac([0xff; 6]);
/// The virtio-net header before each frame; all zeros ask for nothing.
const HEADER: usize = 10;
/// Far longer than a frame takes that passes.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long to listen for a frame that must not come. If this is too short, a
/// test passes that should not; it never fails one that should pass.
pub const SILENCE: Duration = Duration::from_millis(300);

/// A tap's far end, and who it should say it is.
pub struct Guest {
    pub vm: VmId,
    pub family: FamilyId,
    pub address: Address,
    tap: OwnedFd,
}

/// The first members of a new family, their ports open.
pub async fn family<const N: usize>(networks: &Networks, number: u16) -> [Guest; N] {
    let family = FamilyId::random();
    networks.create_family(family).await.expect("bridge");
    let mut guests = Vec::new();
    for member in (0..).take(N) {
        let guest = Guest::new(networks, family, number, member).await;
        guest.open(networks).await;
        guests.push(guest);
    }
    guests.try_into().ok().expect("as many as were made")
}

impl Guest {
    /// Admitted, its port shut.
    pub async fn new(networks: &Networks, family: FamilyId, number: u16, member: u16) -> Self {
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

    pub async fn open(&self, networks: &Networks) {
        let opened = networks.open_port(self.family, self.vm).await;
        opened.expect("open");
    }

    pub fn send(&self, frame: &[u8]) {
        send(&self.tap, frame);
    }

    pub fn receives(&self, frame: &[u8]) -> bool {
        self.waits(PATIENCE, |got| got == frame)
    }

    pub fn misses(&self, frame: &[u8]) -> bool {
        !self.waits(SILENCE, |got| got == frame)
    }

    /// Whether such a frame arrives.
    pub fn waits(&self, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> bool {
        arrives(&self.tap, within, wanted)
    }

    /// A packet of its own to another.
    pub fn packet_to(&self, to: &Self) -> Vec<u8> {
        ipv4(
            to.address.mac,
            self.address.mac,
            self.address.ip,
            to.address.ip,
        )
    }
}

pub fn send(tap: &OwnedFd, frame: &[u8]) {
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(frame);
    // A tap that is down refuses; that, too, is not passing.
    let _ = unistd::write(tap, &bytes);
}

/// Whether such a frame arrives before there is nothing for so long.
pub fn arrives(tap: &OwnedFd, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> bool {
    let mut bytes = [0; 2048];
    let timeout = PollTimeout::try_from(within).expect("short");
    loop {
        let mut fds = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).expect("poll") == 0 {
            return false;
        }
        match unistd::read(tap, &mut bytes) {
            Ok(n) if n >= HEADER && wanted(&bytes[HEADER..n]) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

pub fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0[..], &kind.to_be_bytes()[..], payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A UDP packet to port 9, of nothing.
pub fn ipv4(to: Mac, from: Mac, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
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
    // Ports, length, and a checksum left out.
    packet.extend([0, 9, 0, 9, 0, 26, 0, 0]);
    ethernet(to, from, 0x0800, &packet)
}

pub fn arp(from: Mac, says: Mac, source: Ipv4Addr, asks: Ipv4Addr) -> Vec<u8> {
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

/// The same frame, tagged as one of VLAN 1.
pub fn tagged(frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    [addresses, &[0x81, 0, 0, 1], rest].concat()
}

/// Runs `test` in a network namespace of its own, on a thread of its own.
pub fn alone<F: Future<Output = ()>>(test: impl FnOnce(Networks) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (this test takes root)");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async { test(Networks::open().await.expect("networks")).await });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for what takes effect once a descriptor is closed for good: a test
/// that starts a program holds a copy of every descriptor of this process for
/// the moment until its child executes it.
pub async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let patience = Duration::from_secs(30);
    let held = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let outcome = tokio::time::timeout(patience, held).await;
    outcome.expect("nothing changes any more");
}
