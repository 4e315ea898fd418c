//! Limits on the number of clones of a family, and the places they take.
//!
//! A place is taken before a clone is made or promised, and given back when
//! the clone counts by itself, because it runs, or is not to be made any more.
//! So two that ask at once never get more than there is between them.

use crate::{Host, HostError};
use forkyard_types::{FamilyId, Member};
use forkyard_vm::lock;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// A family has as many clones as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("clone limit of the family reached: {limit} of {limit} alive or reserved")]
pub struct QuotaReached {
    /// Limit of the family.
    pub limit: u16,
}

/// Places taken in a family for clones that do not run yet.
#[derive(Debug, Default)]
struct Ahead {
    count: u16,
    members: BTreeSet<Member>,
}

type Taken = Arc<Mutex<BTreeMap<FamilyId, Ahead>>>;

/// Origin of a request for clones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A user of the API.
    Outside,
    /// A program in a guest.
    Guest,
}

/// The places taken for clones that do not run yet.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    taken: Taken,
}

/// Places for clones of one family, given back when dropped.
#[derive(Debug)]
pub(crate) struct Places {
    family: FamilyId,
    count: u16,
    limit: Option<u16>,
    /// Those that were chosen already.
    members: BTreeSet<Member>,
    taken: Taken,
}

impl Quotas {
    /// Takes as many of `want` places as there are; none is an error. `alive`
    /// tells how many clones of the family run, and is asked once no other request
    /// can take any.
    pub fn take(
        &self,
        family: FamilyId,
        want: u16,
        limit: Option<u16>,
        alive: impl FnOnce() -> u16,
    ) -> Result<Places, QuotaReached> {
        let mut taken = lock(&self.taken);
        let of_family = taken.entry(family).or_default();
        let count = match limit {
            None => want,
            Some(limit) => match room(limit, alive(), of_family.count).min(want) {
                0 => return Err(QuotaReached { limit }),
                count => count,
            },
        };
        of_family.count = of_family.count.saturating_add(count);
        Ok(Places {
            family,
            count,
            limit,
            members: BTreeSet::new(),
            taken: self.taken.clone(),
        })
    }

    /// Takes places whose members are known, whatever the limit.
    pub fn retake(&self, family: FamilyId, members: Vec<Member>) -> Places {
        let members: BTreeSet<_> = members.into_iter().collect();
        let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
        let mut taken = lock(&self.taken);
        let of_family = taken.entry(family).or_default();
        of_family.count = of_family.count.saturating_add(count);
        of_family.members.extend(&members);
        Places {
            family,
            count,
            limit: None,
            members,
            taken: self.taken.clone(),
        }
    }
}

impl Host {
    /// Takes places for clones in a family, as many of `want` as it has for
    /// whichever VM asks.
    pub(crate) fn places(
        &self,
        family: FamilyId,
        want: u16,
        asker: Asker,
    ) -> Result<Places, HostError> {
        let of_family = self
            .parts
            .store
            .family(family)?
            .and_then(|family| family.max_clones);
        let limit = match asker {
            Asker::Outside => of_family,
            Asker::Guest => {
                let most = self.parts.options.guests.clones;
                Some(of_family.map_or(most, |limit| limit.min(most)))
            }
        };
        let alive = || {
            let all = self.parts.registry().all();
            let clones = all.iter().filter(|vm| {
                let record = vm.record();
                record.family == family && record.birth.is_some() && vm.is_running()
            });
            let count = clones.count() + self.peers.remote_clones.of_family(family);
            u16::try_from(count).unwrap_or(u16::MAX)
        };
        Ok(self.families.quotas.take(family, want, limit, alive)?)
    }

    /// Takes a place in the family for each of them: the next that no VM has and
    /// no request was promised.
    pub(crate) fn take_members(
        &self,
        family: FamilyId,
        places: &mut Places,
    ) -> Result<Vec<Member>, HostError> {
        let limit = forkyard_network::Subnet::MEMBERS;
        let members = places
            .choose(|count, taken| self.parts.store.take_members(family, count, limit, taken))?;
        Ok(members)
    }

    /// Takes the places that an earlier daemon promised.
    pub(crate) fn places_of(&self, family: FamilyId, members: Vec<Member>) -> Places {
        self.families.quotas.retake(family, members)
    }
}

/// Clones there is room for.
fn room(limit: u16, alive: u16, taken: u16) -> u16 {
    limit.saturating_sub(alive).saturating_sub(taken)
}

impl Places {
    /// Returns the number of clones.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Gives back all but so many, before members are chosen.
    pub fn cut(&mut self, most: u16) {
        let less = self.count.saturating_sub(most);
        let mut taken = lock(&self.taken);
        if let Some(of_family) = taken.get_mut(&self.family) {
            of_family.count = of_family.count.saturating_sub(less);
        }
        self.count -= less;
    }

    /// Chooses members for all of them, at a moment at which no other request does;
    /// `choose` is told which are taken.
    pub fn choose<E>(
        &mut self,
        choose: impl FnOnce(u16, &BTreeSet<Member>) -> Result<Vec<Member>, E>,
    ) -> Result<Vec<Member>, E> {
        let mut taken = lock(&self.taken);
        let of_family = taken.entry(self.family).or_default();
        let chosen = choose(self.count, &of_family.members)?;
        of_family.members.extend(&chosen);
        self.members.extend(&chosen);
        Ok(chosen)
    }

    /// Returns why there are not more of them, if there is a limit.
    pub fn refusal(&self) -> Option<QuotaReached> {
        self.limit.map(|limit| QuotaReached { limit })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(of_family) = taken.get_mut(&self.family) {
            of_family.count = of_family.count.saturating_sub(self.count);
            of_family
                .members
                .retain(|member| !self.members.contains(member));
            if of_family.count == 0 && of_family.members.is_empty() {
                taken.remove(&self.family);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_are_granted_than_wanted_and_none_is_refused() {
        let (quotas, family) = (Quotas::default(), FamilyId::random());
        let take = |want, alive| quotas.take(family, want, Some(5), || alive);
        let first = take(3, 1).expect("room");
        assert_eq!(first.count(), 3);
        let second = take(3, 1).expect("room");
        assert_eq!(second.count(), 1);
        assert_eq!(take(1, 1).err(), Some(QuotaReached { limit: 5 }));
        drop(first);
        assert_eq!(take(9, 1).expect("room").count(), 3);
        assert_eq!(take(9, 4).err(), Some(QuotaReached { limit: 5 }));
    }

    #[test]
    fn what_is_cut_can_be_had_again() {
        let (quotas, family) = (Quotas::default(), FamilyId::random());
        let take = |want| quotas.take(family, want, Some(5), || 0);
        let mut first = take(5).expect("room");
        first.cut(9);
        assert_eq!(first.count(), 5);
        first.cut(3);
        assert_eq!(first.count(), 3);
        assert_eq!(take(9).expect("room").count(), 2);
        drop(first);
        assert_eq!(take(9).expect("room").count(), 5);
    }

    #[test]
    fn another_family_and_one_without_a_limit_have_room() {
        let (quotas, family) = (Quotas::default(), FamilyId::random());
        let _all = quotas.take(family, 5, Some(5), || 0).expect("room");
        let other = quotas.take(FamilyId::random(), 5, Some(5), || 0);
        assert_eq!(other.expect("room").count(), 5);
        let unlimited = quotas.take(family, 500, None, || 5);
        assert_eq!(unlimited.expect("room").count(), 500);
    }

    #[test]
    fn a_member_is_chosen_once_until_its_place_is_given_back() {
        let (quotas, family) = (Quotas::default(), FamilyId::random());
        let lowest = |count: u16, taken: &BTreeSet<Member>| {
            let free = (1..).map(Member).filter(|member| !taken.contains(member));
            Ok::<_, ()>(free.take(count.into()).collect::<Vec<_>>())
        };
        let take = |want| quotas.take(family, want, None, || 0).expect("room");
        let (mut first, mut second) = (take(2), take(1));
        assert_eq!(first.choose(lowest), Ok(vec![Member(1), Member(2)]));
        assert_eq!(second.choose(lowest), Ok(vec![Member(3)]));
        drop(first);
        let mut third = quotas.retake(family, vec![Member(1)]);
        assert_eq!(third.count(), 1);
        assert_eq!(third.choose(lowest), Ok(vec![Member(2)]));
    }
}
