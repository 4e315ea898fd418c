//! Packets that the host has sent into families' networks, counted by the kernel: cheap enough to be looked at often.

use crate::{Link, NetworkError};
use forkyard_types::FamilyId;
use std::{collections::BTreeMap, fs};

/// Interfaces of this process's network namespace, which those of `/sys` need not be.
const INTERFACES: &str = "/proc/self/net/dev";
/// Place of the packets sent among an interface's counters.
const SENT: usize = 9;

/// Counts of packets that the host itself has sent into each family's network so far, or passed on to it
/// from elsewhere. What its members send each other is not among them.
pub fn packets_in() -> Result<BTreeMap<FamilyId, u64>, NetworkError> {
    let told =
        fs::read_to_string(INTERFACES).map_err(|source| NetworkError::Interfaces { source })?;
    Ok(counts(&told))
}

fn counts(told: &str) -> BTreeMap<FamilyId, u64> {
    let count = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let Link::Bridge(family) = Link::parse(name.trim())? else {
            return None;
        };
        let sent = counters.split_ascii_whitespace().nth(SENT)?;
        Some((family, sent.parse().ok()?))
    };
    told.lines().filter_map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::VmId;

    #[test]
    fn packets_sent_on_bridges_are_counted_by_family() {
        let (family, vm) = (FamilyId::random(), VmId::random());
        let told = format!(
            "Inter-|   Receive                            |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n\
             \x20   lo:  90 1 0 0 0 0 0 0 90 1 0 0 0 0 0 0\n\
             {}: 100 2 0 0 0 0 0 0 300 41 0 0 0 0 0 0\n\
             {}: 100 2 0 0 0 0 0 0 300 7 0 0 0 0 0 0\n",
            Link::Bridge(family).name(),
            Link::Tap(vm).name(),
        );
        assert_eq!(counts(&told), BTreeMap::from([(family, 41)]));
    }
}
