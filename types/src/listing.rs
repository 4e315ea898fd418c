//! The query of `GET /v1/vms`: which VMs are listed, and in pages.

use crate::{FamilyId, InvalidId, Member, VmState, VmView};
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// Place of a VM in a list that is read in pages, the oldest first: `CREATED-FAMILY-MEMBER` as text. Places
/// of VMs that are gone are places still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ListPlace {
    created: u64,
    family: FamilyId,
    member: Member,
}

impl ListPlace {
    /// Returns the place of a VM.
    pub fn of(vm: &VmView) -> Self {
        Self {
            created: vm.created,
            family: vm.family,
            member: vm.member,
        }
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.created, self.family, self.member.0)
    }
}

impl FromStr for ListPlace {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parsed = || {
            let mut words = text.split('-');
            let place = Self {
                created: words.next()?.parse().ok()?,
                family: words.next()?.parse().ok()?,
                member: Member(words.next()?.parse().ok()?),
            };
            words.next().is_none().then_some(place)
        };
        parsed().ok_or_else(|| InvalidId {
            text: text.into(),
            what: "a place in the list of VMs: CREATED-FAMILY-MEMBER",
        })
    }
}

impl TryFrom<String> for ListPlace {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<ListPlace> for String {
    fn from(place: ListPlace) -> Self {
        place.to_string()
    }
}

/// States of VMs, with commas between them as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmStates(pub Vec<VmState>);

/// States in which a VM is listed, as the API names them.
const STATES: [(VmState, &str); 6] = [
    (VmState::Starting, "starting"),
    (VmState::Running, "running"),
    (VmState::Paused, "paused"),
    (VmState::Stopped, "stopped"),
    (VmState::Checkpoint, "checkpoint"),
    (VmState::Ending, "ending"),
];

impl TryFrom<String> for VmStates {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        let words = text.split(',').filter(|word| !word.is_empty());
        let state = |word: &str| {
            let found = STATES.iter().find(|(_, name)| *name == word);
            found.map(|(state, _)| *state).ok_or_else(|| InvalidId {
                text: word.into(),
                what: "a state of VMs: starting, running, paused, stopped, checkpoint or ending",
            })
        };
        words.map(state).collect::<Result<_, _>>().map(Self)
    }
}

impl From<VmStates> for String {
    fn from(states: VmStates) -> Self {
        let name = |state: &VmState| STATES.iter().find(|(it, _)| it == state);
        let names = states.0.iter().filter_map(name).map(|(_, name)| *name);
        names.collect::<Vec<_>>().join(",")
    }
}

/// `GET /v1/vms`: selection of VMs.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmsRequest {
    /// Those that have all these labels: `NAME=VALUE`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Those in one of these states, separated by commas: `starting`, `running`, `paused`, `stopped`,
    /// `checkpoint`, `ending`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<String>))]
    pub state: Option<VmStates>,
    /// Those that have one of these names or ids, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// True: answer once VMs that are being made at the host that is asked are there, or have
    /// failed. Those whose making begins later are not waited for.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(required = false))]
    pub made: bool,
    /// A page of at most so many, of the VMs of all nodes by age. The header `Link` has the address of the
    /// next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<u32>, minimum = 1, maximum = 4_294_967_295_u32))]
    pub limit: Option<NonZeroU32>,
    /// Those alone that follow this place: `CREATED-FAMILY-MEMBER` of the last VM of the page before, which
    /// may be gone meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<String>))]
    pub after: Option<ListPlace>,
}

impl VmsRequest {
    /// Tells whether a VM is wanted; the error is the part of the filter by labels that makes no sense.
    pub fn wants(&self, vm: &VmView) -> Result<bool, &str> {
        let named = |it: &str| it == vm.name.as_str() || it == vm.id.as_str();
        let is_named = { self.names.as_ref() }.is_none_or(|names| names.split(',').any(named));
        let is_so = { self.state.as_ref() }.is_none_or(|states| states.0.contains(&vm.state));
        let is_labelled = vm
            .labels
            .match_filter(self.labels.as_deref().unwrap_or_default())?;
        Ok(is_named && is_so && is_labelled)
    }

    /// Cuts a page out of a list, which gets sorted; returns the place that the next one follows.
    pub fn page<T>(&self, vms: &mut Vec<T>, view: impl Fn(&T) -> &VmView) -> Option<ListPlace> {
        if self.limit.is_none() && self.after.is_none() {
            return None;
        }
        vms.sort_by_key(|vm| ListPlace::of(view(vm)));
        if let Some(after) = self.after {
            vms.retain(|vm| ListPlace::of(view(vm)) > after);
        }
        let most = usize::try_from(self.limit?.get()).unwrap_or(usize::MAX);
        let is_more = vms.len() > most;
        vms.truncate(most);
        { vms.last() }
            .filter(|_| is_more)
            .map(|vm| ListPlace::of(view(vm)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_states_survive_their_text_and_other_words_are_refused() {
        let place = ListPlace {
            created: 1_795_842_537,
            family: FamilyId::random(),
            member: Member(3),
        };
        assert_eq!(place.to_string().parse(), Ok(place));
        let text = place.to_string();
        for bad in ["", "1-2-3", &format!("{text}-"), &text[1..text.len() - 2]] {
            assert!(bad.parse::<ListPlace>().is_err(), "{bad}");
        }
        let states = VmStates(STATES.map(|(state, _)| state).into());
        let text = String::from(states.clone());
        assert_eq!(VmStates::try_from(text), Ok(states));
        let warm = VmStates::try_from("running,warm".to_owned());
        assert_eq!(warm.expect_err("is never listed").text, "warm");
    }

    #[test]
    fn states_have_the_names_that_they_have_in_answers() {
        for (state, name) in STATES {
            assert_eq!(serde_json::to_value(state).expect("JSON"), name);
        }
    }
}
