//! Networks that no way out leads to unless they are named.

use std::net::Ipv4Addr;

/// Networks that have no place on the internet: the host's own, those of its
/// neighbours, the cloud's metadata, groups.
pub(crate) const PRIVATE: [(Ipv4Addr, u8); 9] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// True for an address of one of them.
pub(crate) fn is_private(address: Ipv4Addr) -> bool {
    PRIVATE.iter().any(|(network, length)| {
        let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
        u32::from(address) & mask == u32::from(*network)
    })
}
