//! Any users, and anything that fails.

use super::*;
use proptest::prelude::*;

fn faults() -> impl Strategy<Value = Faults> {
    let rarely = || prop::option::weighted(0.05, 0_usize..64);
    (
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
        rarely(),
        rarely(),
    )
        .prop_map(|(fork_fails, removal_fails, turns, dies)| Faults {
            fork_fails,
            removal_fails,
            turns,
            dies,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // The world checks itself in every tick: never more VMs than at most, one fork at a time that no
    // more than doubles, no VM removed with open requests but a sick one, the original never.
    #[test]
    fn limits_hold_whatever_users_do_and_whatever_fails(
        least in 1_u16..4, more in 0_u16..12,
        fork_takes in 0_u64..20,
        trace in prop::collection::vec((0_u32..2000, 1_usize..40, faults()), 1..40),
    ) {
        let config = ScalerConfig { least, most: least + more, shrink_after: seconds(5), ..ScalerConfig::default() };
        let mut world = World::new(config);
        world.fork_takes = seconds(fork_takes);
        for (users, ticks, faults) in trace {
            world.tick(users, faults);
            let quiet = Faults { turns: None, dies: None, ..faults };
            (0..ticks).for_each(|_| world.tick(users, quiet));
        }
    }
}
