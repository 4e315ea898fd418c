//! Traffic between this host and others, by link.
//!
//! The pager counts, from when it began; it may be another than at the last look.

use forkyard_fork::{CountedLink, LinkUse};
use metrics::{counter, describe_counter};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Counter of a link, with its name and help text.
struct Count {
    name: &'static str,
    what: &'static str,
    of: fn(&LinkUse) -> u64,
}

/// Number of counters of a link. Said here and not taken from the table: of a
/// type that is asked whether it can be sent, the compiler does not always find
/// it.
const KINDS: usize = 11;

const COUNTS: [Count; KINDS] = [
    count(
        "forkyard_link_pages_asked_total",
        "Pages (4096 bytes) the other host asked this one for, each time",
        |link| link.sent.asked,
    ),
    count(
        "forkyard_link_pages_suppressed_total",
        "Of these, those that were on their way already: clones run in lockstep",
        |link| link.sent.lockstep,
    ),
    count(
        "forkyard_link_pages_sent_total",
        "Pages sent; those that go to a group count once, for the group",
        |link| link.sent.pages,
    ),
    count(
        "forkyard_link_pages_resent_total",
        "Of these, those sent before",
        |link| link.sent.again,
    ),
    count(
        "forkyard_link_pages_pushed_total",
        "Of these, those that were not asked for",
        |link| link.sent.pushed,
    ),
    count(
        "forkyard_link_bytes_sent_total",
        "Bytes sent, without the headers of IP and UDP",
        |link| link.sent.bytes,
    ),
    count(
        "forkyard_link_pages_wanted_total",
        "Pages this host asked the other for, each time",
        |link| link.got.received.asked,
    ),
    count(
        "forkyard_link_pages_waited_total",
        "Pages that came from the other while a guest waited for them",
        |link| link.got.received.waited,
    ),
    count(
        "forkyard_link_pages_ahead_total",
        "Pages that came from the other before that",
        |link| link.got.received.ahead,
    ),
    count(
        "forkyard_link_pages_used_total",
        "Pages that had come when they were first read, of images not all here",
        |link| link.got.used,
    ),
    count(
        "forkyard_link_pages_twice_total",
        "Pages that came from the other and were here",
        |link| link.got.received.twice,
    ),
];

const fn count(name: &'static str, what: &'static str, of: fn(&LinkUse) -> u64) -> Count {
    Count { name, what, of }
}

/// Counts at the last look.
#[derive(Debug, Default)]
pub struct Links(Mutex<BTreeMap<CountedLink, [u64; KINDS]>>);

impl Links {
    /// Takes note of what the pager has counted.
    pub fn count(&self, links: &[LinkUse]) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for link in links {
            let label = match link.link {
                CountedLink::Group => "group".to_owned(),
                CountedLink::Host(host) => host.to_string(),
            };
            let before = seen.entry(link.link).or_default();
            for (count, before) in COUNTS.iter().zip(before) {
                let now = (count.of)(link);
                let more = grown(*before, now);
                *before = now;
                counter!(count.name, "peer" => label.clone()).increment(more);
            }
        }
    }
}

/// Returns the increase since the last look. What is less than before was
/// counted by another pager, from nothing.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Says what they are.
pub fn describe() {
    for count in &COUNTS {
        describe_counter!(count.name, count.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_pager_counts_is_added() {
        let counted = [3, 5, 2, 2].into_iter().scan(0, |before, now| {
            let more = grown(*before, now);
            *before = now;
            Some(more)
        });
        assert_eq!(counted.collect::<Vec<_>>(), [3, 2, 2, 0]);
    }
}
