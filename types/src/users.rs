//! Users and groups of the host that Forkyard gives to VMs.

use std::ops::Range;

/// Users that QEMUs run as: one a VM, so that no VM can touch another's process or files. Far
/// from any that a distribution gives out.
pub const VM_UIDS: Range<u32> = 1_900_000_000..1_900_060_000;

/// The user of programs that fetch what a stranger named: the host's firewall keeps it from the host
/// itself. The two users below those of VMs are of programs that the firewall does not look at.
pub const OUTSIDE_FETCHER_UID: u32 = VM_UIDS.start - 3;

/// The first of the groups that share disk slices: one a family.
pub const FIRST_FAMILY_GID: u32 = VM_UIDS.end;

/// Users and groups of the host that those of a container image are mapped to while it is built.
/// Nothing else uses them.
pub const BUILD_IDS: Range<u32> = 1_900_200_000..1_900_265_536;
