//! Users and groups of the host that Forkyard gives to VMs.

use std::ops::Range;

/// Users that QEMUs run as: one a VM, so that no VM can touch another's process or files. Far
/// from any that a distribution gives out.
pub const VM_UIDS: Range<u32> = 1_900_000_000..1_900_060_000;

/// The first of the groups that share disk slices: one a family.
pub const FIRST_FAMILY_GID: u32 = VM_UIDS.end;

/// Users and groups of the host that those of a container image are mapped to while it is built.
/// Nothing else uses them.
pub const BUILD_IDS: Range<u32> = 1_900_200_000..1_900_265_536;
