//! The memory that ready VMs may take.

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bound of those of one kind together.
    pub limit: u64,
    /// Taken by one of them, as far as is known.
    pub each: u64,
    /// Left on the host.
    pub available: u64,
    /// To be left on the host for everything else.
    pub floor: u64,
}

/// Bounds how many are wanted where so many are held: within their limit, and so that the host has
/// its floor left. Where it has less, as many go as bring it back there.
pub fn bounded(wanted: u16, held: u16, memory: Memory) -> u16 {
    let each = memory.each.max(1);
    let within = memory.limit / each;
    let fits = match memory.available.checked_sub(memory.floor) {
        Some(spare) => u64::from(held).saturating_add(spare / each),
        None => u64::from(held).saturating_sub((memory.floor - memory.available).div_ceil(each)),
    };
    let most = within.min(fits);
    wanted.min(u16::try_from(most).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLENTY: Memory = Memory {
        limit: 100,
        each: 10,
        available: 1000,
        floor: 100,
    };

    #[test]
    fn no_more_are_held_than_the_limit_has_room_for() {
        assert_eq!(bounded(4, 0, PLENTY), 4);
        assert_eq!(bounded(40, 0, PLENTY), 10);
        let none = Memory { limit: 9, ..PLENTY };
        assert_eq!(bounded(40, 0, none), 0);
    }

    #[test]
    fn some_go_when_the_host_needs_the_memory() {
        let scarce = |available| Memory {
            available,
            ..PLENTY
        };
        assert_eq!(bounded(8, 8, scarce(100)), 8);
        assert_eq!(bounded(8, 8, scarce(99)), 7);
        assert_eq!(bounded(8, 8, scarce(75)), 5);
        assert_eq!(bounded(8, 2, scarce(0)), 0);
        assert_eq!(bounded(8, 2, scarce(125)), 4);
    }

    proptest! {
        #[test]
        fn what_is_held_then_is_within_all_bounds(
            wanted in 0u16..300, held in 0u16..300, limit in 0u64..5000, each in 1u64..50,
            available in 0u64..5000, floor in 0u64..5000,
        ) {
            let now = bounded(wanted, held, Memory { limit, each, available, floor });
            prop_assert!(now <= wanted && u64::from(now) * each <= limit);
            let freed = (i64::from(held) - i64::from(now)) * i64::try_from(each).expect("small");
            let left = i64::try_from(available).expect("small") + freed;
            // Below the floor only with none left.
            prop_assert!(now == 0 || left >= i64::try_from(floor).expect("small"));
        }
    }
}
