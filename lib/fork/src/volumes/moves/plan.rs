//! Choice of the snapshots of a volume that have to be sent. Decides, and does nothing.
//!
//! Snapshots do not change, and are listed in the order in which they were taken. A move takes those of
//! the user along, and ends with one of its own, `sent-all-…`. So one of the user's that is listed
//! before the same `sent-all-…` at both hosts is the same at both. Of any other the name says nothing: it
//! may have been removed and taken anew, or have stayed when a VM took the volume along (`sent-…`).
//!
//! At the host that a volume comes to it was a copy, of which no snapshots are taken: what is listed
//! there behind the last that both have came by a move that failed.

use crate::volumes::{FORK, MIRRORED, SENT, SENT_ALL};
use forkyard_types::ForkId;

/// Way of a volume's snapshots to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Snapshot that both hosts have, of which the difference is enough.
    pub since: Option<String>,
    /// Snapshots of the user that are the same at both.
    pub same: Vec<String>,
    /// Snapshots at the host that it comes to which were removed where it is at home, or did not come in
    /// whole.
    pub stale: Vec<String>,
    /// Snapshots of one name at both that are not the same.
    pub clash: Vec<String>,
}

impl Plan {
    /// Plans the way from a host with some snapshots to one with others.
    pub fn of(there: &[String], here: &[String]) -> Self {
        let common = |beginning: &str| {
            let mut ours = here.iter();
            ours.rfind(|it| it.starts_with(beginning) && there.contains(it))
        };
        let place = |all: &[String], of: Option<&String>| {
            of.and_then(|of| all.iter().position(|it| it == of))
        };
        let (since, all) = (common(SENT), common(SENT_ALL));
        let vouched = |list: &[String]| list[..place(list, all).unwrap_or(0)].to_vec();
        let (ours, theirs) = (vouched(here), vouched(there));
        let came = place(here, since).map_or(here.len(), |at| at + 1);
        let mut plan = Self {
            since: since.cloned(),
            ..Self::default()
        };
        for (at, name) in here.iter().enumerate().filter(|(_, it)| is_users(it)) {
            let is_vouched = ours.contains(name);
            let list = if is_vouched && theirs.contains(name) {
                &mut plan.same
            } else if is_vouched || at >= came {
                &mut plan.stale
            } else if there.contains(name) {
                &mut plan.clash
            } else {
                // It stayed here when a VM took the volume along.
                continue;
            };
            list.push(name.clone());
        }
        plan
    }
}

/// Tells whether a snapshot is one that a user took.
pub(super) fn is_users(snapshot: &str) -> bool {
    let ours = [FORK, SENT, MIRRORED];
    !ours.iter().any(|beginning| snapshot.starts_with(beginning))
}

/// Name of the snapshot that a move ends with.
pub(super) fn last_of(migration: ForkId) -> String {
    format!("{SENT_ALL}{migration}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Snapshot in common, and the names that are the same, stale and in each other's way.
    fn plan(there: &str, here: &str) -> (String, [String; 3]) {
        let Plan {
            since,
            same,
            stale,
            clash,
        } = Plan::of(&names(there), &names(here));
        let lists = [same, stale, clash].map(|list| list.join(" "));
        (since.unwrap_or_default(), lists)
    }

    fn planned(since: &str, same: &str, stale: &str, clash: &str) -> (String, [String; 3]) {
        let lists = [same, stale, clash].map(str::to_owned);
        (since.to_owned(), lists)
    }

    #[test]
    fn to_a_host_that_has_nothing_all_goes() {
        assert_eq!(plan("monday sent-all-1", ""), planned("", "", "", ""));
    }

    #[test]
    fn on_the_way_back_only_what_is_new_goes() {
        let there = "fork-x monday sent-all-1 tuesday mirror-b-1";
        let here = "sent-0 monday fork-y sent-all-1";
        assert_eq!(plan(there, here), planned("sent-all-1", "monday", "", ""));
    }

    #[test]
    fn one_that_was_taken_anew_under_its_name_goes_and_the_former_is_dropped() {
        let planned = planned("sent-all-1", "", "monday", "");
        assert_eq!(plan("sent-all-1 monday", "monday sent-all-1"), planned);
    }

    #[test]
    fn one_that_was_removed_there_goes_here_too() {
        let planned = planned("sent-all-1", "tuesday", "monday", "");
        assert_eq!(
            plan("tuesday sent-all-1", "monday tuesday sent-all-1"),
            planned
        );
    }

    #[test]
    fn one_that_stayed_when_a_vm_took_the_volume_along_stays() {
        let back = plan("sent-2", "monday sent-2");
        assert_eq!(back, planned("sent-2", "", "", ""));
        let other = plan("sent-1 monday sent-2", "monday sent-1 sent-2");
        assert_eq!(other, planned("sent-2", "", "", "monday"));
    }

    #[test]
    fn without_a_snapshot_in_common_names_say_nothing() {
        let planned = planned("", "", "", "monday");
        assert_eq!(plan("monday sent-all-2", "monday sent-all-1"), planned);
    }

    #[test]
    fn what_a_move_left_that_failed_is_sent_anew() {
        let there = "sent-all-1 monday tuesday";
        assert_eq!(
            plan(there, "sent-all-1 monday"),
            planned("sent-all-1", "", "monday", "")
        );
        // Unless its last came, too.
        let there = "sent-all-1 monday sent-all-2 tuesday";
        assert_eq!(
            plan(there, "sent-all-1 monday sent-all-2"),
            planned("sent-all-2", "monday", "", "")
        );
    }
}
