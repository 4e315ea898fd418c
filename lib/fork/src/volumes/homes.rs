//! Homes of volumes in a cluster: the authority says at which node a volume is at home, in which term.
//!
//! ```text
//! make            none       --> (here, 1)
//! move            (here, T)  --> (there, T+1)     by the node that it comes to
//!   that failed   (here, T)  --> (here, T+2)      by the node that it leaves: that one comes too late
//! promote         (lost, T)  --> (here, T+1)      by the node that has a copy
//! ```
//!
//! A home that cannot show its term to the authority opens no volume. What is open goes on: whether it
//! may when its node has lost its lease is the node's to say (`--fence`). Among hosts that are no nodes
//! there is no authority, and each host's own records decide.

use super::{VolumeError, known_name};
use crate::{Host, HostError, blocking};
use forkyard_blockd::Status;
use forkyard_records::{KnownTerm, VolumeCopy};
use forkyard_types::{ApiError, ByteCount, Term, VmName, VolumeView};
use futures::future::BoxFuture;
use std::fmt;

/// Place of a volume, as the authority has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// Name of the volume.
    pub name: VmName,
    /// Node.
    pub node: String,
    /// Term in which it is at home there.
    pub term: Term,
    /// Size of the disk.
    pub size: ByteCount,
}

/// Authority for the places of volumes. Volumes are named by their identities.
pub trait Homes: fmt::Debug + Send + Sync {
    /// Name of this node.
    fn own(&self) -> String;

    /// An error unless this node may act at this moment.
    fn may_act(&self) -> Result<(), ApiError>;

    /// Returns the place of a volume. Cancel-safe.
    fn find(&self, id: String) -> BoxFuture<'_, Result<Option<Home>, ApiError>>;

    /// Returns the places of all volumes. Cancel-safe.
    fn all(&self) -> BoxFuture<'_, Result<Vec<(String, Home)>, ApiError>>;

    /// Changes the place of a volume, if it is at this node in this term still; `None` for one that has no
    /// place. False: it is not. After an error it may have been changed all the same.
    fn change(
        &self,
        id: String,
        from: Option<(String, Term)>,
        to: Option<Home>,
    ) -> BoxFuture<'_, Result<bool, ApiError>>;
}

/// Consequence for a volume that is at home here by its own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The authority says the same.
    Shown,
    /// The authority does not know the volume yet.
    Enter,
    /// The volume came here, or stayed, in a later term than the authority knows.
    Later,
    /// The authority has it here in a later term than is known here.
    Learn(Term),
    /// The volume is at home at another node.
    Lost {
        /// Node.
        node: String,
        /// Term in which it is at home there.
        term: Term,
    },
}

impl Claim {
    /// Compares what the authority says with what is known at a node of a volume that is at home there.
    pub fn judge(said: Option<&Home>, own: &str, known: Term) -> Self {
        match said {
            None => Self::Enter,
            Some(said) if said.term < known => Self::Later,
            Some(said) if said.node != own => Self::Lost {
                node: said.node.clone(),
                term: said.term,
            },
            Some(said) if said.term == known => Self::Shown,
            Some(said) => Self::Learn(said.term),
        }
    }
}

/// Volume that is at home here.
#[derive(Clone, Debug)]
pub(super) struct AtHome {
    pub name: VmName,
    pub id: String,
    pub size: ByteCount,
}

impl AtHome {
    pub fn of(name: &VmName, status: &Status) -> Self {
        Self {
            name: name.clone(),
            id: status.id.clone(),
            size: ByteCount(status.size),
        }
    }
}

impl Host {
    pub(super) fn homes(&self) -> Option<&dyn Homes> {
        self.neighbours()?.homes()
    }

    /// Latest term of a volume that is known here.
    pub(crate) fn known_term(&self, volume: &VmName, id: &str) -> Result<Term, HostError> {
        let mut known = self.parts.store.volume_terms()?.into_iter();
        let known = known.find(|it| it.volume == *volume && it.id == id);
        Ok(known.map_or(Term::FIRST, |it| it.term))
    }

    /// Notes the latest term of a volume.
    pub(super) fn note_term(&self, volume: &VmName, id: &str, term: Term) -> Result<(), HostError> {
        Ok(self.parts.store.put_volume_term(&KnownTerm {
            volume: volume.clone(),
            id: id.to_owned(),
            term,
        })?)
    }

    /// Shows that a volume is at home here, and in which term. An error if it is not, or if the authority
    /// cannot be asked.
    pub(super) async fn show_home(&self, volume: &AtHome) -> Result<Term, HostError> {
        let known = self.known_term(&volume.name, &volume.id)?;
        let Some(homes) = self.homes() else {
            return Ok(known);
        };
        let unsure = |source| -> HostError {
            VolumeError::NotShown {
                volume: volume.name.clone(),
                source,
            }
            .into()
        };
        homes.may_act().map_err(unsure)?;
        let own = homes.own();
        let said = homes.find(volume.id.clone()).await.map_err(unsure)?;
        let here = |term| Home {
            name: volume.name.clone(),
            node: own.clone(),
            term,
            size: volume.size,
        };
        let changed = || -> HostError {
            VolumeError::Crowded {
                volume: volume.name.clone(),
            }
            .into()
        };
        let from = said.as_ref().map(|it| (it.node.clone(), it.term));
        match Claim::judge(said.as_ref(), &own, known) {
            Claim::Shown => Ok(known),
            Claim::Enter | Claim::Later => {
                let entered = homes.change(volume.id.clone(), from, Some(here(known)));
                match entered.await.map_err(unsure)? {
                    true => Ok(known),
                    false => Err(changed()),
                }
            }
            Claim::Learn(term) => {
                self.note_term(&volume.name, &volume.id, term)?;
                Ok(term)
            }
            Claim::Lost { node, term } => {
                self.lose_home(volume, (&node, term)).await?;
                Err(VolumeError::Elsewhere {
                    volume: volume.name.clone(),
                    at: node,
                }
                .into())
            }
        }
    }

    /// Has the authority say that a volume of which a copy is here is at home here, in a term that is later
    /// than any before. Without an authority: the next term that is known here.
    pub(super) async fn claim_home(
        &self,
        volume: &VmName,
        status: &Status,
    ) -> Result<Term, HostError> {
        let known = self.known_term(volume, &status.id)?;
        let Some(homes) = self.homes() else {
            return Ok(known.there());
        };
        let unsure = |source| VolumeError::NotShown {
            volume: volume.clone(),
            source,
        };
        homes.may_act().map_err(unsure)?;
        let said = homes.find(status.id.clone()).await.map_err(unsure)?;
        let own = homes.own();
        if let Some(said) = &said
            && said.node == own
        {
            return Ok(said.term);
        }
        let home = Home {
            name: volume.clone(),
            node: own,
            term: said.as_ref().map_or(known, |it| it.term.max(known)).there(),
            size: ByteCount(status.size),
        };
        let (term, from) = (home.term, said.map(|it| (it.node, it.term)));
        let changed = homes.change(status.id.clone(), from, Some(home)).await;
        match changed.map_err(unsure)? {
            true => Ok(term),
            false => Err(VolumeError::Crowded {
                volume: volume.clone(),
            }
            .into()),
        }
    }

    /// A volume is at home elsewhere, in a later term: what is here is a copy, and its writer is fenced.
    pub(super) async fn lose_home(
        &self,
        volume: &AtHome,
        (node, term): (&str, Term),
    ) -> Result<(), HostError> {
        tracing::error!(volume = %volume.name, node, %term, "the volume is at home there now");
        let copy = VolumeCopy {
            volume: volume.name.clone(),
            id: Some(volume.id.clone()),
            at: node.to_owned(),
            arriving: None,
            is_new: false,
        };
        self.parts.store.put_copy(&copy)?;
        self.note_term(&volume.name, &volume.id, term)?;
        self.close_copy(&volume.name).await
    }

    /// Refuses to open a volume that is not at home here, or cannot be shown to be. The caller holds it,
    /// by its guard.
    pub(crate) async fn may_open(&self, volume: &VmName) -> Result<(), HostError> {
        self.refuse_copy(volume)?;
        if self.homes().is_none() {
            return Ok(());
        }
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        self.show_home(&AtHome::of(volume, &status)).await.map(drop)
    }

    /// Finds the place of a volume of this name in the cluster. None where there is no cluster, or no such
    /// volume. An error if there are several.
    pub(super) async fn home_of(&self, name: &VmName) -> Result<Option<(String, Home)>, HostError> {
        let Some(homes) = self.homes() else {
            return Ok(None);
        };
        let all = homes.all().await.map_err(|source| VolumeError::NotShown {
            volume: name.clone(),
            source,
        })?;
        let mut named: Vec<_> = { all.into_iter() }
            .filter(|(_, home)| home.name == *name)
            .collect();
        if named.len() > 1 {
            let mut nodes: Vec<_> = named.into_iter().map(|(_, home)| home.node).collect();
            nodes.sort();
            return Err(VolumeError::Ambiguous {
                volume: name.clone(),
                nodes,
            }
            .into());
        }
        Ok(named.pop())
    }

    /// Refuses a name for a new volume that a volume at another node has.
    pub(super) async fn refuse_named_elsewhere(&self, name: &VmName) -> Result<(), HostError> {
        match self.home_of(name).await? {
            Some((_, home)) => Err(VolumeError::Elsewhere {
                volume: home.name,
                at: home.node,
            }
            .into()),
            None => Ok(()),
        }
    }

    /// Tells the authority that a volume is no more. What it does not hear of now it hears by the next report.
    pub(super) async fn forget_home(&self, gone: &VolumeView) {
        if let (Some(homes), Some(id), Some(term)) = (self.homes(), &gone.id, gone.term) {
            let from = Some((homes.own(), term));
            if let Err(error) = homes.change(id.clone(), from, None).await {
                tracing::debug!(volume = %gone.name, ?error, "the cluster is told later");
            }
        }
    }

    /// Tells whether a copy of a volume is here.
    pub fn has_copy(&self, name: &str) -> Result<bool, HostError> {
        let copy = self.copy_of(&known_name(name)?)?;
        Ok(copy.is_some_and(|copy| copy.arriving.is_none()))
    }

    /// Node at which a volume is at home, if that is another one. An error if several nodes have one of
    /// this name, and this one has none. Cancel-safe.
    pub async fn volume_elsewhere(&self, name: &str) -> Result<Option<String>, HostError> {
        let Some(homes) = self.homes() else {
            return Ok(None);
        };
        let name = known_name(name)?;
        let is_here = self.parts.folders.volumes().join(name.as_str()).is_dir();
        if is_here && self.copy_of(&name)?.is_none() {
            return Ok(None);
        }
        let own = homes.own();
        let home = self.home_of(&name).await?;
        Ok(home.map(|(_, home)| home.node).filter(|node| *node != own))
    }
}

/// Home of a volume `d`, for tests.
#[cfg(test)]
pub(super) fn home(node: &str, term: u64) -> Home {
    Home {
        name: "d".parse().expect("a name"),
        node: node.into(),
        term: Term(term),
        size: ByteCount(4096),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(said: Option<Home>, known: u64) -> Claim {
        Claim::judge(said.as_ref(), "a", Term(known))
    }

    #[test]
    fn a_home_is_shown_only_by_the_term_that_the_authority_has() {
        assert_eq!(judge(Some(home("a", 3)), 3), Claim::Shown);
        assert_eq!(judge(None, 1), Claim::Enter);
        for term in [3, 4] {
            let lost = Claim::Lost {
                node: "b".into(),
                term: Term(term),
            };
            assert_eq!(judge(Some(home("b", term)), 3), lost);
        }
    }

    #[test]
    fn of_two_terms_the_later_one_counts() {
        // A VM brought it here, or it was taken back from a host that is in no cluster.
        assert_eq!(judge(Some(home("b", 2)), 3), Claim::Later);
        assert_eq!(judge(Some(home("a", 2)), 4), Claim::Later);
        // A daemon died before it had noted that it took the volume back.
        assert_eq!(judge(Some(home("a", 5)), 3), Claim::Learn(Term(5)));
    }

    #[test]
    fn a_move_that_failed_leaves_a_term_that_the_other_host_cannot_reach() {
        assert!(Term(3).there() < Term(3).back());
        assert_eq!(judge(Some(home("a", 5)), 4), Claim::Learn(Term(5)));
        assert!(matches!(
            Claim::judge(Some(&home("a", 5)), "b", Term(4)),
            Claim::Lost { .. }
        ));
    }
}
