//! Operations on a cluster: invite, drain, remove, set quotas.

use crate::{
    Cluster, ClusterError, Token,
    membership::{self, from_json, to_json},
    records::Placed,
    report::name_key,
};
use forkyard_etcd::{Compare, Keys, Op, Txn};
use forkyard_tls::Authority;
use forkyard_types::{JoinRequest, Joined, NodeName, QuotaView};
use std::{collections::BTreeSet, time::Duration};

/// Choice whether something is to be done in spite of objections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// In spite of it.
    Yes,
    /// Rather not.
    No,
}

impl Cluster {
    /// Invites a host to become a node, for so long. Only where the authority
    /// is kept.
    pub async fn invite(&self, length: Duration) -> Result<Token, ClusterError> {
        self.may_act()?;
        self.authority().await?;
        let shared = self.shared();
        let (id, secret) = membership::invite(&shared.etcd, &shared.book, length).await?;
        Ok(Token {
            api: shared.reach.api,
            certificate: shared.identity.fingerprint(),
            id,
            secret,
        })
    }

    /// Lets in a host that was invited.
    pub async fn admit(&self, request: JoinRequest) -> Result<Joined, ClusterError> {
        self.may_act()?;
        let authority = self.authority().await?;
        let shared = self.shared();
        membership::admit(&shared.etcd, &shared.book, &authority, request).await
    }

    async fn authority(&self) -> Result<Authority, ClusterError> {
        let shared = self.shared();
        if let Some(authority) = Authority::kept_in(&shared.folder)? {
            return Ok(authority);
        }
        let founded = membership::founded(&shared.etcd, &shared.book).await?;
        let keeper = founded.map_or_else(|| shared.name.clone(), |founded| founded.keeper);
        Err(ClusterError::NotKeeper { keeper })
    }

    /// Has a node take nothing new.
    pub async fn drain(&self, node: &NodeName) -> Result<(), ClusterError> {
        let shared = self.shared();
        let member = shared.book.key("nodes", node.as_str());
        let outcome = shared.etcd.txn(Txn {
            when: vec![Compare::Present(member)],
            then: vec![Op::Put(shared.book.draining(node), Vec::new(), None)],
            otherwise: Vec::new(),
        });
        match outcome.await?.held {
            true => Ok(()),
            false => Err(ClusterError::NoSuchNode { node: node.clone() }),
        }
    }

    /// Has a node take new work again.
    pub async fn activate(&self, node: &NodeName) -> Result<(), ClusterError> {
        let shared = self.shared();
        let member = shared.book.key("nodes", node.as_str());
        let outcome = shared.etcd.txn(Txn {
            when: vec![Compare::Present(member)],
            then: vec![Op::Delete(Keys::One(shared.book.draining(node)))],
            otherwise: Vec::new(),
        });
        match outcome.await?.held {
            true => Ok(()),
            false => Err(ClusterError::NoSuchNode { node: node.clone() }),
        }
    }

    /// Removes a node for good, and forgets its VMs, which are not ended. One that
    /// is alive and has VMs only by `force`.
    pub async fn remove(&self, node: &NodeName, force: Force) -> Result<(), ClusterError> {
        let shared = self.shared();
        shared.roll.refresh().await?;
        let nodes = shared.roll.nodes();
        let no_such = || ClusterError::NoSuchNode { node: node.clone() };
        nodes.state(node).ok_or_else(no_such)?;
        let vms = nodes.offers.get(node).map_or(0, |offer| offer.vms);
        if vms > 0 && force == Force::No {
            let node = node.clone();
            return Err(ClusterError::NotEmpty { node, vms });
        }
        shared
            .etcd
            .txn(Txn {
                then: [
                    shared.book.key("nodes", node.as_str()),
                    shared.book.offer(node),
                    shared.book.draining(node),
                ]
                .map(|key| Op::Delete(Keys::One(key)))
                .into(),
                ..Txn::default()
            })
            .await?;
        let range = shared.etcd.range(&shared.book.all("vms")).await?;
        for entry in range.entries {
            let placed: Placed = from_json(&entry)?;
            if placed.node == *node {
                let (name, id) = (placed.vm.name, placed.vm.id);
                let name = name_key(&shared.book, name.as_str(), id.as_str());
                let gone = [entry.key, name].map(|key| Op::Delete(Keys::One(key)));
                shared
                    .etcd
                    .txn(Txn {
                        then: gone.into(),
                        ..Txn::default()
                    })
                    .await?;
            }
        }
        shared.roll.refresh().await?;
        Ok(())
    }

    /// Lists users' consumption and limits, by name.
    pub async fn quotas(&self) -> Result<Vec<QuotaView>, ClusterError> {
        let picture = self.shared().rooms().picture().await?;
        let of_vms = picture.offers.values().flat_map(|offer| offer.users.keys());
        let of_grants = picture
            .grants
            .iter()
            .filter_map(|grant| grant.user.as_ref());
        let users: BTreeSet<_> = of_vms
            .chain(of_grants)
            .chain(picture.quotas.keys())
            .collect();
        let view = |user: &String| QuotaView {
            user: user.clone(),
            taken: picture.taken_by(user),
            vcpus: picture.quotas.get(user).copied(),
        };
        Ok(users.into_iter().map(view).collect())
    }

    /// Says how many vCPUs a user may have; any number if none is given.
    pub async fn set_quota(&self, user: &str, vcpus: Option<u32>) -> Result<(), ClusterError> {
        let shared = self.shared();
        let key = shared.book.quota(user);
        match vcpus {
            Some(vcpus) => {
                let value = to_json(&key, &vcpus)?;
                shared.etcd.put(&key, value, None).await?;
            }
            None => shared.etcd.delete(&Keys::One(key)).await?,
        }
        Ok(())
    }
}
