//! How many clones a family may have.
//!
//! A place is taken before a clone is made or promised, and given back when
//! the clone counts by itself, because it runs, or is not to be made any more.
//! So two that ask at once never get more than there is between them.

use crate::{
    Host, HostError,
    vm::{Vm, lock},
};
use forkyard_types::FamilyId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// A family has as many clones as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the family has as many clones as it may, {limit}, alive or promised")]
pub struct QuotaReached {
    /// Its limit.
    pub limit: u16,
}

type Taken = Arc<Mutex<BTreeMap<FamilyId, u16>>>;

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
    taken: Taken,
}

impl Quotas {
    /// Takes as many of `want` places as there are; none is an error. `alive`
    /// tells how many clones of the family run, and is asked once nobody else
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
            Some(limit) => match room(limit, alive(), *of_family).min(want) {
                0 => return Err(QuotaReached { limit }),
                count => count,
            },
        };
        *of_family = of_family.saturating_add(count);
        Ok(Places {
            family,
            count,
            limit,
            taken: self.taken.clone(),
        })
    }
}

impl Host {
    /// Takes places for clones of a VM, as many of `want` as its family has.
    pub(crate) fn places(&self, parent: &Vm, want: u16) -> Result<Places, HostError> {
        let family = parent.record().family;
        let limit = self
            .store
            .family(family)?
            .and_then(|family| family.max_clones);
        let alive = || {
            let all = self.registry().all();
            let clones = all.iter().filter(|vm| {
                let record = vm.record();
                record.family == family && record.birth.is_some() && vm.is_running()
            });
            u16::try_from(clones.count()).unwrap_or(u16::MAX)
        };
        Ok(self.quotas.take(family, want, limit, alive)?)
    }
}

/// Clones there is room for.
fn room(limit: u16, alive: u16, taken: u16) -> u16 {
    limit.saturating_sub(alive).saturating_sub(taken)
}

impl Places {
    /// How many.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Why there are not more of them, if there is a limit.
    pub fn refusal(&self) -> Option<QuotaReached> {
        self.limit.map(|limit| QuotaReached { limit })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(of_family) = taken.get_mut(&self.family) {
            *of_family = of_family.saturating_sub(self.count);
            if *of_family == 0 {
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
    fn another_family_and_one_without_a_limit_have_room() {
        let (quotas, family) = (Quotas::default(), FamilyId::random());
        let _all = quotas.take(family, 5, Some(5), || 0).expect("room");
        let other = quotas.take(FamilyId::random(), 5, Some(5), || 0);
        assert_eq!(other.expect("room").count(), 5);
        let unlimited = quotas.take(family, 500, None, || 5);
        assert_eq!(unlimited.expect("room").count(), 500);
    }
}
