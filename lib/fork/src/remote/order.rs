//! Order in which pages go to another host and its clones are let go: on demand, or all
//! pages first.
//!
//! A page that a clone touches before it has come costs a round trip, and its first
//! seconds touch most of them one after the other: what is read says where to read next.
//! All pages cost their size instead, whatever the round trip. Those that are as if drawn
//! (encrypted, or compressed already) go last, and clones do not wait for them: no program
//! runs from them.
//!
//! Pure: the caller measures, and knows which images there are.

use forkyard_host::SettleFirst;
use forkyard_types::{PAGE_SIZE, PageCount, PageOrder};
use std::time::Duration;

/// Pages that a clone of which nothing is known touches one after the other until it has
/// run its first command: 2,200 of a small Linux.
const DEPENDENT: u128 = 2000;
/// Bytes a second that a link is believed to carry, for none is measured before pages go:
/// 100 Mbit/s.
const RATE: u128 = 12_500_000;
/// Round trip from which on a link is long. Over a shorter one a fault costs little more than
/// its handling, and a busy host measures as much where there is no distance at all.
const LONG: Duration = Duration::from_millis(5);

/// Pages of an instant that hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub memory: PageCount,
    pub disk: PageCount,
}

/// Order of each image of an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    pub memory: PageOrder,
    pub disk: PageOrder,
}

/// Decides for one host. A link of which no round trip is known is taken for a short one.
/// Memory goes before the disk: a guest has in memory what it used last.
pub(crate) fn orders(choice: SettleFirst, round_trip: Option<Duration>, data: Data) -> Orders {
    let budget = match choice {
        SettleFirst::Always => u128::MAX,
        SettleFirst::Never => 0,
        SettleFirst::Auto => {
            let long = round_trip.filter(|time| *time >= LONG);
            let micros = long.unwrap_or_default().as_micros();
            micros * DEPENDENT * RATE / 1_000_000
        }
    };
    let order = |pages: u64| {
        let bytes = u128::from(pages) * PAGE_SIZE as u128;
        match budget > 0 && bytes <= budget {
            true => PageOrder::SettleFirst,
            false => PageOrder::OnDemand,
        }
    };
    Orders {
        memory: order(data.memory.0),
        disk: order(data.memory.0.saturating_add(data.disk.0)),
    }
}

/// Fewest pages of a working set for it to be worth waiting for it alone: a clone that takes its
/// identity touches more.
const LEAST: u64 = 512;

/// Returns true if a working set is known well enough for clones to be let go once it is there.
pub(crate) fn is_enough(pages: PageCount) -> bool {
    pages.0 >= LEAST
}

/// Part of those pages that come first which may still be away when clones are let go: it comes while
/// they load and take their identities. Were it more, a guest would often wait for what
/// was lost on the way.
const REST: u64 = 64;

/// Returns true if so little is away of the pages of an image that come first that clones need
/// not wait for it any longer.
pub(crate) fn is_nearly_here(first: PageCount, away: PageCount) -> bool {
    away.0 <= first.0 / REST
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_DEMAND: Orders = Orders {
        memory: PageOrder::OnDemand,
        disk: PageOrder::OnDemand,
    };
    const FIRST: Orders = Orders {
        memory: PageOrder::SettleFirst,
        disk: PageOrder::SettleFirst,
    };

    fn data(memory_mib: u64, disk_mib: u64) -> Data {
        let pages = |mib: u64| PageCount(mib * 256);
        Data {
            memory: pages(memory_mib),
            disk: pages(disk_mib),
        }
    }

    fn auto(millis: u64, data: Data) -> Orders {
        orders(SettleFirst::Auto, Some(Duration::from_millis(millis)), data)
    }

    #[test]
    fn small_memory_comes_first_over_a_long_link_and_on_demand_over_a_short_one() {
        assert_eq!(auto(80, data(64, 64)), FIRST);
        assert_eq!(auto(20, data(64, 64)), FIRST);
        assert_eq!(auto(1, data(64, 64)), ON_DEMAND);
        assert_eq!(orders(SettleFirst::Auto, None, data(64, 64)), ON_DEMAND);
    }

    #[test]
    fn what_takes_longer_to_send_than_to_ask_for_comes_on_demand() {
        let memory_alone = Orders {
            disk: PageOrder::OnDemand,
            ..FIRST
        };
        assert_eq!(auto(80, data(64, 1 << 20)), memory_alone);
        assert_eq!(auto(80, data(1 << 14, 0)), ON_DEMAND);
        assert_eq!(auto(20, data(1024, 0)), ON_DEMAND);
        assert_eq!(auto(80, data(1024, 0)), FIRST);
    }

    #[test]
    fn an_operators_choice_holds_whatever_the_link() {
        let far = Some(Duration::from_secs(1));
        assert_eq!(orders(SettleFirst::Never, far, data(1, 0)), ON_DEMAND);
        assert_eq!(
            orders(SettleFirst::Always, None, data(1 << 30, 1 << 30)),
            FIRST
        );
    }

    #[test]
    fn the_rest_of_an_image_is_not_waited_for() {
        assert!(is_nearly_here(PageCount(6400), PageCount(100)));
        assert!(!is_nearly_here(PageCount(6400), PageCount(101)));
        assert!(is_nearly_here(PageCount(3), PageCount(0)));
    }
}
