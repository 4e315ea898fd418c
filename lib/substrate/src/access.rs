//! Access to substrates.
//!
//! | | see and activate | remove |
//! |---|---|---|
//! | public, restricted | all users | its owner |
//! | private | its owner | its owner |
//!
//! The host's operator may do everything.

use forkyard_types::SubstrateKind;

/// Operation on a substrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// List it, inspect it, or make VMs of it.
    Open,
    /// Remove it.
    Remove,
}

/// Refusal of an operation on a substrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the substrate is another user's")]
pub struct SubstrateDenied;

/// Decides whether an asker may do something with a substrate of this kind and owner. No user:
/// the host's operator.
pub fn may(
    act: Act,
    kind: SubstrateKind,
    owner: Option<&str>,
    asker: Option<&str>,
) -> Result<(), SubstrateDenied> {
    let owns = asker.is_none() || asker == owner;
    let open = match kind {
        SubstrateKind::Public | SubstrateKind::Restricted => true,
        SubstrateKind::Private => owns,
    };
    let allowed = match act {
        Act::Open => open,
        Act::Remove => owns,
    };
    match allowed {
        true => Ok(()),
        false => Err(SubstrateDenied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_substrate_opens_for_its_owner_and_the_operator_alone() {
        let open = |asker| may(Act::Open, SubstrateKind::Private, Some("ann"), asker);
        assert_eq!(open(Some("ann")), Ok(()));
        assert_eq!(open(None), Ok(()));
        assert_eq!(open(Some("bob")), Err(SubstrateDenied));
        // The operator's own is closed to all users.
        let own = may(Act::Open, SubstrateKind::Private, None, Some("ann"));
        assert_eq!(own, Err(SubstrateDenied));
    }

    #[test]
    fn users_open_what_others_share_and_do_not_remove_it() {
        for kind in [SubstrateKind::Public, SubstrateKind::Restricted] {
            assert_eq!(may(Act::Open, kind, Some("ann"), Some("bob")), Ok(()));
            assert_eq!(
                may(Act::Remove, kind, Some("ann"), Some("bob")),
                Err(SubstrateDenied)
            );
            assert_eq!(may(Act::Remove, kind, Some("ann"), Some("ann")), Ok(()));
            assert_eq!(may(Act::Remove, kind, None, None), Ok(()));
        }
    }
}
