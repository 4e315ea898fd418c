//! VMs that join a family's network beside its founder and their clones: each has a system of its
//! own, is booted or woken of a substrate, and boots again by itself.

use crate::{Host, HostError, quota::Places};
use forkyard_network::{Ports, Subnet};
use forkyard_records::{FamilyRecord, VmRecord};
use forkyard_types::{FamilyId, Member, NetworkPolicy, Publish};
use forkyard_vm::VmError;
use std::net::Ipv4Addr;

/// Refuses rights for one that joins: they are its family's.
pub(crate) fn check(network: &NetworkPolicy, max_clones: Option<u16>) -> Result<(), HostError> {
    let own = NetworkPolicy {
        publish: network.publish.clone(),
        ..NetworkPolicy::default()
    };
    if *network != own || max_clones.is_some() {
        return Err(HostError::Invalid(
            "a VM that joins a family has that family's rights on the network and its limit of clones: \
             ask for neither"
                .into(),
        ));
    }
    Ok(())
}

impl Host {
    /// Finds the family of a VM of this host that another is to join.
    pub(crate) fn family_to_join(&self, member: &str) -> Result<FamilyRecord, HostError> {
        let vm = self.vm(member)?;
        let family = self.parts.store.family(vm.record().family)?;
        family.ok_or_else(|| {
            HostError::Vm(VmError::Unknown {
                name: member.to_owned(),
            })
        })
    }

    /// Takes the next place of a family for its founder, or one that joins, that no fork under way
    /// has. The second is held until the VM is recorded.
    pub(crate) fn take_place(&self, family: FamilyId) -> Result<(Member, Places), HostError> {
        // It is no clone: no limit applies.
        let mut place = self.families.quotas.take(family, 1, None, || 0)?;
        let members = self.take_members(family, &mut place)?;
        let no_place = || HostError::Broken("no place in the family was taken".into());
        Ok((members.into_iter().next().ok_or_else(no_place)?, place))
    }

    /// Has ports of the host lead to a VM that joins.
    pub(crate) async fn publish_joined(
        &self,
        record: &VmRecord,
        network: Subnet,
        ports: Ports,
    ) -> Result<(), HostError> {
        let to = forkyard_vm::address(network, record).ip;
        self.open_ports(record.family, to, &record.publish, ports)
            .await
    }

    /// Has ports of the host lead to an address of a family, if there are any.
    pub(crate) async fn open_ports(
        &self,
        family: FamilyId,
        to: Ipv4Addr,
        ports: &[Publish],
        taken: Ports,
    ) -> Result<(), HostError> {
        if ports.is_empty() {
            return Ok(());
        }
        Ok(self.parts.network.publish(family, to, ports, taken).await?)
    }
}
