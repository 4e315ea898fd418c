//! Choice of the target that a new connection or request goes to.

use crate::{Health, VmStanding};

/// A target, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// By its hosts' answers.
    pub standing: VmStanding,
    /// By its own.
    pub health: Health,
    /// Connections and requests that it has.
    pub open: usize,
}

/// Reason why no target is chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    /// One begins to run, or its host does not answer: it may be otherwise in a moment.
    #[error("no host that has it answers")]
    NotNow,
    /// Those that run do not answer.
    #[error("its server does not answer")]
    Sick,
    /// Those that there are do not run.
    #[error("it does not run: it is {state}")]
    Still {
        /// State of one.
        state: String,
    },
    /// There is none.
    #[error("no host has it")]
    Gone,
}

/// Chooses the target with least to do among those that answer, the first if there are several. If
/// there is none, the reason that is soonest over counts.
pub fn choose(candidates: &[Candidate]) -> Result<usize, NoTarget> {
    let there =
        { candidates.iter().enumerate() }.filter(|(_, it)| it.standing == VmStanding::There);
    let well = there.clone().filter(|(_, it)| it.health.may_be_chosen());
    if let Some((index, _)) = well.min_by_key(|(_, it)| it.open) {
        return Ok(index);
    }
    let now = |it: &Candidate| matches!(it.standing, VmStanding::Starts | VmStanding::Unknown);
    if candidates.iter().any(now) {
        return Err(NoTarget::NotNow);
    }
    if there.count() > 0 {
        return Err(NoTarget::Sick);
    }
    let still = candidates.iter().find_map(|it| match &it.standing {
        VmStanding::Still { state } => Some(state.clone()),
        VmStanding::There | VmStanding::Starts | VmStanding::Unknown | VmStanding::Gone => None,
    });
    Err(still.map_or(NoTarget::Gone, |state| NoTarget::Still { state }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(standing: VmStanding, health: Health, open: usize) -> Candidate {
        Candidate {
            standing,
            health,
            open,
        }
    }

    #[test]
    fn the_one_with_least_to_do_is_chosen_and_one_that_is_sick_never() {
        let all = [
            of(VmStanding::There, Health::Well, 3),
            of(VmStanding::There, Health::Sick, 0),
            of(VmStanding::Gone, Health::Well, 0),
            of(VmStanding::There, Health::Unknown, 1),
            of(VmStanding::There, Health::Well, 1),
        ];
        assert_eq!(choose(&all), Ok(3));
        assert_eq!(choose(&all[..2]), Ok(0));
        assert_eq!(choose(&all[1..3]), Err(NoTarget::Sick));
        assert_eq!(choose(&[]), Err(NoTarget::Gone));
    }

    #[test]
    fn what_may_be_otherwise_in_a_moment_is_waited_for() {
        let still = || VmStanding::Still {
            state: "paused".to_owned(),
        };
        let all = [
            of(still(), Health::Well, 0),
            of(VmStanding::There, Health::Sick, 0),
            of(VmStanding::Unknown, Health::Well, 0),
        ];
        assert_eq!(choose(&all), Err(NoTarget::NotNow));
        assert_eq!(choose(&all[..2]), Err(NoTarget::Sick));
        assert!(matches!(choose(&all[..1]), Err(NoTarget::Still { .. })));
    }

    fn any_candidate() -> impl Strategy<Value = Candidate> {
        let standing = prop_oneof![
            Just(VmStanding::There),
            Just(VmStanding::Starts),
            Just(VmStanding::Unknown),
            Just(VmStanding::Gone),
            Just(VmStanding::Still {
                state: String::new()
            }),
        ];
        let health = prop_oneof![
            Just(Health::Unknown),
            Just(Health::Well),
            Just(Health::Failing { times: 1 }),
            Just(Health::Sick),
        ];
        let candidate = (standing, health, 0usize..5);
        candidate.prop_map(|(standing, health, open)| of(standing, health, open))
    }

    proptest! {
        #[test]
        fn one_is_chosen_exactly_if_one_runs_and_is_not_sick(
            all in prop::collection::vec(any_candidate(), 0..6),
        ) {
            let fit = |it: &Candidate| it.standing == VmStanding::There && it.health != Health::Sick;
            match choose(&all) {
                Ok(index) => {
                    prop_assert!(fit(&all[index]));
                    let least = { all.iter() }.filter(|it| fit(it)).map(|it| it.open).min();
                    prop_assert_eq!(Some(all[index].open), least);
                }
                Err(_) => prop_assert!(!all.iter().any(fit)),
            }
        }
    }
}
