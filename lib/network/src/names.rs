//! Names of interfaces. They follow from ids that are never used twice, so no
//! two VMs ever race for one, and a program that finds one knows whose it was.

use forkyard_types::{FamilyId, VmId};

const BRIDGE: &str = "fyb";
/// Any family's bridge, as rules name it.
pub(crate) const ANY_BRIDGE: &str = "fyb*";
const TAP: &str = "fyt";
const TUNNEL: &str = "fyv";
const PARKED: &str = "fyp";

/// A network interface of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A family's bridge.
    Bridge(FamilyId),
    /// A VM's tap.
    Tap(VmId),
    /// A family's way to its members on other hosts.
    Tunnel(FamilyId),
    /// Frames for a VM that is about to come.
    Parked(VmId),
}

impl Link {
    /// Parses an interface's name; none if it is not one of Forkyard's.
    pub fn parse(name: &str) -> Option<Self> {
        let bridge = || Some(Self::Bridge(name.strip_prefix(BRIDGE)?.parse().ok()?));
        let tap = || Some(Self::Tap(name.strip_prefix(TAP)?.parse().ok()?));
        let tunnel = || Some(Self::Tunnel(name.strip_prefix(TUNNEL)?.parse().ok()?));
        let parked = || Some(Self::Parked(name.strip_prefix(PARKED)?.parse().ok()?));
        bridge().or_else(tap).or_else(tunnel).or_else(parked)
    }

    /// Gives the interface's name.
    pub fn name(self) -> String {
        match self {
            Self::Bridge(family) => format!("{BRIDGE}{family}"),
            Self::Tap(vm) => format!("{TAP}{vm}"),
            Self::Tunnel(family) => format!("{TUNNEL}{family}"),
            Self::Parked(vm) => format!("{PARKED}{vm}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_sys_host::tap::NAME_MAX;

    #[test]
    fn a_name_fits_the_kernel_and_says_whose_it_is() {
        let family = FamilyId::random();
        for link in [
            Link::Bridge(family),
            Link::Tap(VmId::random()),
            Link::Tunnel(family),
        ] {
            assert!(link.name().len() <= NAME_MAX);
            assert_eq!(Link::parse(&link.name()), Some(link));
        }
    }

    #[test]
    fn interfaces_of_others_are_not_ours() {
        for name in [
            "",
            "eth0",
            "fyb",
            "fybr0",
            "fyt-mine",
            "fyv0",
            "tap22222222222",
        ] {
            assert_eq!(Link::parse(name), None, "{name}");
        }
    }
}
