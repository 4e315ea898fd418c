//! Room for substrates: which of them go when another is to be kept.
//!
//! A boot that the host has kept by itself goes by itself, the least recently used first, unless
//! something lies over it. What a user has docked never does: that there is no room for another is
//! then an error that names what could be removed.

/// A substrate that takes room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSubstrate {
    /// Name of the substrate.
    pub name: String,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Time of its last use, in seconds.
    pub used: u64,
    /// Kept by the host itself.
    pub boot: bool,
    /// A VM or another substrate lies over it.
    pub needed: bool,
}

/// Refusal of a substrate for which there is no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    /// Bytes that are short, if all went that goes by itself.
    pub short: u64,
    /// Names of substrates that could be removed, the least recently used first.
    pub could_go: Vec<String>,
}

/// Chooses which substrates go so that `bytes` more have room within a limit: none if they have it
/// already. Names, in the order in which they are to go.
pub fn make_room(held: &[HeldSubstrate], limit: u64, bytes: u64) -> Result<Vec<String>, Full> {
    let taken = held.iter().map(|it| it.bytes).fold(0, u64::saturating_add);
    let mut short = taken.saturating_add(bytes).saturating_sub(limit);
    let mut free: Vec<&HeldSubstrate> = held.iter().filter(|it| !it.needed).collect();
    free.sort_by_key(|it| (it.used, &it.name));
    let mut going = Vec::new();
    for it in free.iter().filter(|it| it.boot) {
        if short == 0 {
            break;
        }
        short = short.saturating_sub(it.bytes);
        going.push(it.name.clone());
    }
    if short == 0 {
        return Ok(going);
    }
    let could_go = free.iter().filter(|it| !it.boot);
    Err(Full {
        short,
        could_go: could_go.map(|it| it.name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held(name: &str, bytes: u64, used: u64, boot: bool, needed: bool) -> HeldSubstrate {
        HeldSubstrate {
            name: name.to_owned(),
            bytes,
            used,
            boot,
            needed,
        }
    }

    #[test]
    fn the_least_recently_used_boot_goes_first_and_no_more_than_must() {
        let all = [
            held("late", 4, 9, true, false),
            held("early", 4, 1, true, false),
            held("mine", 4, 0, false, false),
            held("woken", 4, 0, true, true),
        ];
        assert_eq!(make_room(&all, 20, 4), Ok(Vec::new()));
        assert_eq!(make_room(&all, 18, 4), Ok(vec!["early".to_owned()]));
        let two = vec!["early".to_owned(), "late".to_owned()];
        assert_eq!(make_room(&all, 13, 4), Ok(two));
    }

    #[test]
    fn a_full_pool_names_what_could_go() {
        let all = [
            held("b", 4, 2, false, false),
            held("a", 4, 3, false, false),
            held("under", 4, 0, false, true),
        ];
        let full = Full {
            short: 3,
            could_go: vec!["b".to_owned(), "a".to_owned()],
        };
        assert_eq!(make_room(&all, 12, 3), Err(full));
    }

    fn some() -> impl Strategy<Value = Vec<HeldSubstrate>> {
        let one = (0u64..9, 0u64..9, any::<bool>(), any::<bool>());
        prop::collection::vec(one, 0..8).prop_map(|all| {
            let named = all.into_iter().enumerate();
            let made = named.map(|(n, (bytes, used, boot, needed))| {
                held(&format!("s{n}"), bytes, used, boot, needed)
            });
            made.collect()
        })
    }

    proptest! {
        #[test]
        fn what_goes_is_free_and_enough(all in some(), limit in 0u64..60, bytes in 0u64..20) {
            let sum = |of: &dyn Fn(&HeldSubstrate) -> bool| all.iter().filter(|it| of(it)).map(|it| it.bytes).sum::<u64>();
            match make_room(&all, limit, bytes) {
                Ok(going) => {
                    let goes = |it: &HeldSubstrate| going.contains(&it.name);
                    prop_assert!(all.iter().filter(|it| goes(it)).all(|it| it.boot && !it.needed));
                    prop_assert!(sum(&|it| !goes(it)) + bytes <= limit);
                    // The last one had to.
                    let last = |it: &HeldSubstrate| going.last() == Some(&it.name);
                    prop_assert!(going.is_empty() || sum(&|it| !goes(it) || last(it)) + bytes > limit);
                }
                Err(full) => {
                    let stays = sum(&|it| !it.boot || it.needed);
                    prop_assert_eq!(full.short, stays + bytes - limit);
                }
            }
        }
    }
}
