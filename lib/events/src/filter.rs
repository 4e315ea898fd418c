//! Selection of events for a reader.

use forkyard_types::{EventKind, FamilyId, HostEvent, Occurrence};
use std::collections::BTreeSet;

/// Conditions on events, all of which must hold. `lagged` passes always: it is about the
/// reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Kinds wanted; all if empty.
    pub kinds: BTreeSet<EventKind>,
    /// The VM wanted, by name or id: its own events, and those of its forks and tickets.
    pub vm: Option<String>,
    /// The family wanted.
    pub family: Option<FamilyId>,
}

impl Selection {
    /// Tests an event.
    pub fn matches(&self, event: &HostEvent) -> bool {
        if matches!(event.what, Occurrence::Lagged(_)) {
            return true;
        }
        let vm = event.subject.vm.as_ref();
        let is_vm =
            |word: &String| vm.is_some_and(|vm| vm.name.as_str() == word || vm.id.as_str() == word);
        (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self.vm.as_ref().is_none_or(is_vm)
            && self
                .family
                .is_none_or(|family| vm.is_some_and(|vm| vm.family == Some(family)))
    }
}
