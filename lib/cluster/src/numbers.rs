//! Families' numbers: each is one family's in the whole cluster, for the network
//! that follows from it is on every node that has VMs of the family.

use crate::{
    Cluster, ClusterError,
    cluster::Shared,
    membership::{from_json, to_json},
    records::{Numbered, Placed},
};
use forkyard_etcd::{Compare, Keys, Op, Revision, Txn};
use forkyard_types::FamilyId;
use std::collections::BTreeSet;

/// A number that was taken, as it was then: not one that was given again since.
pub(crate) type Taken = (String, Revision);

impl Cluster {
    /// Takes a number for a family that is founded here. False: another family
    /// has it. It is given back some time after the family's last VM has gone.
    /// Cancel-safe: one that was taken for nothing is given back, too.
    pub async fn number(&self, number: u16, family: FamilyId) -> Result<bool, ClusterError> {
        self.may_act()?;
        let shared = self.shared();
        let key = shared.book.key("families", &number.to_string());
        let mine = Numbered {
            node: shared.name.clone(),
            family,
        };
        let outcome = shared.etcd.txn(Txn {
            when: vec![Compare::Absent(Keys::One(key.clone()))],
            then: vec![Op::Put(key.clone(), to_json(&key, &mine)?, None)],
            otherwise: Vec::new(),
        });
        Ok(outcome.await?.held)
    }
}

impl Shared {
    /// Gives back the numbers that this node took, or one that was removed since,
    /// for families of which no node has a VM, now and the last time: one that was
    /// just taken has none yet.
    pub(crate) async fn release_numbers(
        &self,
        unused: &mut BTreeSet<Taken>,
    ) -> Result<(), ClusterError> {
        let numbers = self.etcd.range(&self.book.all("families")).await?;
        let vms = self.etcd.range(&self.book.all("vms")).await?;
        let mut families = BTreeSet::new();
        for entry in &vms.entries {
            families.insert(from_json::<Placed>(entry)?.vm.family);
        }
        let nodes = self.roll.nodes();
        let mut now = BTreeSet::new();
        for entry in numbers.entries {
            let taken: Numbered = from_json(&entry)?;
            let ours = taken.node == self.name || !nodes.members.contains_key(&taken.node);
            if ours && !families.contains(&taken.family) {
                now.insert((entry.key, entry.changed));
            }
        }
        for (key, changed) in now.intersection(unused) {
            let gone = self.etcd.txn(Txn {
                when: vec![Compare::Unchanged(key.clone(), *changed)],
                then: vec![Op::Delete(Keys::One(key.clone()))],
                otherwise: Vec::new(),
            });
            gone.await?;
        }
        *unused = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::founded;
    use forkyard_etcd::server::Server;

    #[tokio::test]
    async fn a_number_is_one_familys_until_nobody_has_had_a_vm_of_it_for_a_while() {
        let server = Server::start().expect("etcd");
        let folder = tempfile::tempdir().expect("a folder");
        let cluster = founded(&server, folder.path()).await;
        let [one, other] = [(); 2].map(|()| FamilyId::random());
        let take = async |number, family| cluster.number(number, family).await.expect("asked");
        assert!(take(3, one).await);
        assert!(!take(3, other).await);
        assert!(take(4, other).await);
        let mut unused = BTreeSet::new();
        let sweep = async |unused: &mut BTreeSet<Taken>| {
            let swept = cluster.shared().release_numbers(unused).await;
            swept.expect("swept");
        };
        sweep(&mut unused).await;
        assert_eq!(unused.len(), 2);
        assert!(!take(3, other).await, "it may have a VM soon");
        // Taken again since it was last seen: it is not the one that was unused.
        unused.retain(|(key, _)| key.ends_with("/3"));
        sweep(&mut unused).await;
        assert!(take(3, other).await);
        assert!(!take(4, one).await);
    }
}
