//! Guests as the network knows them: the far ends of taps, and the frames they
//! write into them.

use forkyard_network::{Networks, Subnet};
use forkyard_types::{Address, FamilyId, Mac, Member, NetworkPolicy, VmId};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    unistd,
};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

pub const BROADCAST: Mac = Mac([0xff; 6]);
/// The virtio-net header before each frame; all zeros ask for nothing.
const HEADER: usize = 10;
/// Far longer than a frame takes that passes.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Number of times a guest asks before it gives up.
pub const TRIES: u32 = 20;
/// Time to listen for a frame that must not come. If this is too short, a test
/// passes that should not; it never fails one that should pass.
pub const SILENCE: Duration = Duration::from_millis(300);

/// A tap's far end, and the identity it should claim.
pub struct Guest {
    pub vm: VmId,
    pub family: FamilyId,
    pub address: Address,
    tap: OwnedFd,
}

/// The first members of a new family that is shut in, their ports open.
pub async fn family<const N: usize>(networks: &Networks, number: u16) -> [Guest; N] {
    family_with(networks, number, NetworkPolicy::default()).await
}

/// Makes a family with wider rights.
pub async fn family_with<const N: usize>(
    networks: &Networks,
    number: u16,
    policy: NetworkPolicy,
) -> [Guest; N] {
    let family = FamilyId::random();
    let subnet = Subnet::of(number).expect("room");
    let ports = networks.take_ports(&policy.publish).expect("free ports");
    let made = networks
        .create_family(family, subnet, &policy, Some(ports))
        .await;
    made.expect("a family");
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
        Self::of(vm, family, address, tap)
    }

    /// Of a tap made and admitted elsewhere.
    pub fn of(vm: VmId, family: FamilyId, address: Address, tap: OwnedFd) -> Self {
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

    /// The MAC of the family's gateway, asked for as a guest would.
    pub fn gateway(&self) -> (Mac, Ipv4Addr) {
        let Address { ip, prefix, mac } = self.address;
        let network = u32::from(ip) & u32::MAX << (32 - prefix);
        let gateway = Ipv4Addr::from(network + 1);
        let mut found = None;
        // As a guest would: one that is over its rate is not heard the first time.
        for _ in 0..TRIES {
            self.send(&arp(mac, mac, ip, gateway));
            self.waits(PATIENCE / TRIES, |frame| {
                let answers = frame.get(12..22) == Some(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2])
                    && frame.get(28..32) == Some(&gateway.octets());
                if answers {
                    found = frame[22..28].try_into().ok().map(Mac);
                }
                answers
            });
            if found.is_some() {
                break;
            }
        }
        (found.expect("the gateway answers"), gateway)
    }

    /// Sends a datagram by way of the gateway.
    pub fn sends_out(&self, from_port: u16, to: SocketAddrV4, payload: &[u8]) {
        let (mac, _) = self.gateway();
        let from = SocketAddrV4::new(self.address.ip, from_port);
        self.send(&datagram(mac, self.address.mac, from, to, payload));
    }

    /// The next datagram to a port of this guest: its sender, and its content.
    pub fn hears(&self, port: u16, within: Duration) -> Option<(SocketAddrV4, Vec<u8>)> {
        let mut heard = None;
        self.waits(within, |frame| {
            heard = parse_datagram(frame, SocketAddrV4::new(self.address.ip, port));
            heard.is_some()
        });
        heard
    }

    pub fn receives(&self, frame: &[u8]) -> bool {
        self.waits(PATIENCE, |got| got == frame)
    }

    pub fn misses(&self, frame: &[u8]) -> bool {
        !self.waits(SILENCE, |got| got == frame)
    }

    /// Tells whether such a frame arrives.
    pub fn waits(&self, within: Duration, wanted: impl FnMut(&[u8]) -> bool) -> bool {
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

/// Tells whether such a frame arrives before there is nothing for so long.
pub fn arrives(tap: &OwnedFd, within: Duration, mut wanted: impl FnMut(&[u8]) -> bool) -> bool {
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
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Ports, length, and a checksum left out.
    packet.extend([0, 9, 0, 9, 0, 26, 0, 0]);
    ethernet(to, from, 0x0800, &packet)
}

/// A UDP packet, its checksum left out.
pub fn datagram(
    to_mac: Mac,
    from_mac: Mac,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 8).expect("short");
    let mut packet = vec![0x45, 0];
    packet.extend((length + 20).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    for half in [from.port(), to.port(), length, 0] {
        packet.extend(half.to_be_bytes());
    }
    packet.extend(payload);
    ethernet(to_mac, from_mac, 0x0800, &packet)
}

/// Parses a UDP packet to `to`: its source, and its payload.
fn parse_datagram(frame: &[u8], to: SocketAddrV4) -> Option<(SocketAddrV4, Vec<u8>)> {
    let packet = frame.get(14..)?;
    let half = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    let address = |at: usize| {
        Some(Ipv4Addr::from(
            <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?,
        ))
    };
    (frame.get(12..14)? == [8, 0] && *packet.first()? == 0x45 && *packet.get(9)? == 17)
        .then_some(())?;
    (SocketAddrV4::new(address(16)?, half(22)?) == to).then_some(())?;
    let end = usize::from(half(2)?);
    Some((
        SocketAddrV4::new(address(12)?, half(20)?),
        packet.get(28..end)?.to_vec(),
    ))
}

pub fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    !(u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded"))
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

/// Tags the frame as one of VLAN 1.
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
        runtime.block_on(async {
            test(Networks::open(Default::default()).await.expect("networks")).await
        });
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
