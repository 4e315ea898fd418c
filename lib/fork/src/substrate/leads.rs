//! Ports and addresses of the VMs of one activation: which of them each is given.

use super::activate::Founders;
use crate::{Host, HostError};
use forkyard_types::{Publish, VmId, VmName};

/// A VM that is to be made.
#[derive(Clone, Debug)]
pub(super) struct Founder {
    pub name: VmName,
    /// Id that it was given elsewhere.
    pub id: Option<VmId>,
    /// Ports of the host that are to lead to it, and its own addresses.
    pub leads: Vec<Publish>,
}

/// Leads of all VMs of one activation, in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leads<'a> {
    all: &'a [Publish],
    count: u16,
}

impl<'a> Leads<'a> {
    /// Those that were asked for, as `check` lets them be.
    pub fn of(founders: &'a Founders) -> Self {
        Self {
            all: &founders.network.publish,
            count: founders.count,
        }
    }

    /// Those of so many VMs, from the nth on: all if one alone is made, else an address of each.
    pub fn of_several(self, nth: usize, several: usize) -> Vec<Publish> {
        match self.count {
            1 => self.all.to_vec(),
            _ => self.all.iter().copied().skip(nth).take(several).collect(),
        }
    }

    /// VMs of these names, and of these ids if they have one already, with theirs.
    pub fn founders(self, of: impl Iterator<Item = (VmName, Option<VmId>)>) -> Vec<Founder> {
        let founders = of.enumerate().map(|(nth, (name, id))| Founder {
            name,
            id,
            leads: self.of_several(nth, 1),
        });
        founders.collect()
    }
}

/// Refuses what cannot be given to so many VMs.
pub(super) fn check(all: &[Publish], count: u16) -> Result<(), HostError> {
    if count <= 1 || all.is_empty() {
        return Ok(());
    }
    if all.iter().any(|lead| lead.own_address().is_none()) {
        return Err(HostError::Invalid(
            "a port of the host leads to one VM: activate one, or publish none".into(),
        ));
    }
    match all.len() == usize::from(count) {
        true => Ok(()),
        false => Err(HostError::Invalid(format!(
            "{} addresses for {count} VMs: each has one of its own, so give {count}",
            all.len()
        ))),
    }
}

impl Host {
    /// Refuses what this host cannot give, before any VM is made. Cancel-safe.
    pub(super) async fn check_leads(&self, leads: &[Publish]) -> Result<(), HostError> {
        drop(self.parts.network.take_new_ports(leads).await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::NetworkPolicy;

    fn leads(words: &[&str]) -> Vec<Publish> {
        let lead = |word: &&str| word.parse().expect("a lead");
        words.iter().map(lead).collect()
    }

    #[test]
    fn several_vms_have_an_address_each_and_one_has_all_that_leads_to_it() {
        let all = leads(&["192.0.2.7/routed", "192.0.2.8/routed"]);
        let founders = |count| Founders {
            count,
            network: NetworkPolicy {
                publish: all.clone(),
                ..NetworkPolicy::default()
            },
            ..Founders::default()
        };
        let (one, two) = (founders(1), founders(2));
        assert_eq!(Leads::of(&one).of_several(0, 1), all);
        assert_eq!(Leads::of(&two).of_several(0, 1), all[..1]);
        assert_eq!(Leads::of(&two).of_several(1, 1), all[1..]);
        assert_eq!(Leads::of(&two).of_several(0, 2), all);
        assert_eq!(Leads::of(&two).of_several(2, 1), []);
    }

    #[test]
    fn what_does_not_suffice_or_leads_to_one_alone_is_refused() {
        let of = |words: &[&str], count| check(&leads(words), count);
        assert!(of(&["80:80", "192.0.2.7/routed"], 1).is_ok());
        assert!(of(&[], 8).is_ok());
        assert!(of(&["192.0.2.7/routed", "192.0.2.8/bridge"], 2).is_ok());
        assert!(of(&["192.0.2.7/routed"], 2).is_err());
        assert!(of(&["192.0.2.7/routed", "80:80"], 2).is_err());
    }
}
