//! Moves of which it is not known how they ended: settled by asking the authority or the other host,
//! until one of them says.
//!
//! A daemon may die at any step, and an answer may be lost. What is recorded says that it is open; until it
//! is settled nothing opens the volume. Only what cannot change any more is taken for an answer: the host
//! that leaves has the authority's record changed to a later term, or has the other host give the move up,
//! before it goes on; and a host that asked for the record asks again, so that either answer is final.

use super::super::homes::Home;
use crate::{Host, HostError, blocking, volumes::VolumeError};
use forkyard_records::{KnownTerm, VolumeMove};
use forkyard_types::{ByteCount, PeerVolumeAnswer, PeerVolumeEnd, PeerVolumeStep, Term};

/// Attempts to change a record that others change, too.
const TRIES: usize = 4;

/// Result of a move, for the host that the volume was to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// At home elsewhere, in this term.
    Left(Term),
    /// At home here.
    Stays,
}

/// Meaning of the authority's record for a volume that may have left.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leaving {
    /// There is none: the other host is asked.
    AskOther,
    /// At home at another node.
    Left(String, Term),
    /// Here yet: it goes on in a later term, once the record says so.
    TakeBack,
    /// Taken back already.
    Stays(Term),
}

impl Leaving {
    fn judge(said: Option<&Home>, own: &str, left: Term) -> Self {
        match said {
            None => Self::AskOther,
            Some(said) if said.term <= left => Self::TakeBack,
            Some(said) if said.node == own => Self::Stays(said.term),
            Some(said) => Self::Left(said.node.clone(), said.term),
        }
    }
}

/// Meaning of the authority's record for a volume that may be at home here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Landing {
    /// At home here, in this term.
    Here(Term),
    /// At home here once the record says so.
    Take,
    /// At home elsewhere.
    Gone,
}

impl Landing {
    fn judge(said: Option<&Home>, own: &str, left: Term) -> Self {
        match said {
            None => Self::Take,
            Some(said) if said.term <= left => Self::Take,
            Some(said) if said.node == own => Self::Here(said.term),
            Some(_) => Self::Gone,
        }
    }
}

impl Host {
    /// Holds volumes that a daemon before began to hand over.
    pub(crate) fn hold_leaving(&self) -> Result<(), HostError> {
        for leaving in self.parts.store.volumes_leaving()? {
            self.volumes.guards.hold(&leaving.volume, &leaving.peer);
        }
        Ok(())
    }

    /// Settles moves of volumes, as far as the authority or the other hosts say how they ended.
    pub(crate) async fn settle_volume_moves(&self) {
        for leaving in self.parts.store.volumes_leaving().unwrap_or_default() {
            // One that is under way is its task's.
            if !self.volumes.guards.is_unsettled(&leaving.volume) {
                continue;
            }
            match self.settle_leaving(&leaving).await {
                Ok(outcome) => {
                    self.volumes.guards.settled(&leaving.volume);
                    tracing::info!(volume = %leaving.volume, peer = leaving.peer, ?outcome, "settled");
                }
                Err(error) => {
                    tracing::debug!(volume = %leaving.volume, error = &error as &dyn std::error::Error, "not known yet where it is");
                }
            }
        }
        for landing in self.parts.store.volumes_landing().unwrap_or_default() {
            let _turn = self.volumes.moves.landing.lock().await;
            match self.settle_landing(&landing).await {
                Ok(outcome) => {
                    tracing::info!(volume = %landing.volume, peer = landing.peer, ?outcome, "settled");
                }
                Err(error) => {
                    tracing::debug!(volume = %landing.volume, error = &error as &dyn std::error::Error, "not known yet whether it is here");
                }
            }
        }
    }

    /// Finds out whether another host has a volume, and records it. Nothing opens it before.
    pub(super) async fn settle_leaving(&self, record: &VolumeMove) -> Result<Outcome, HostError> {
        for _ in 0..TRIES {
            let Some(homes) = self.homes() else { break };
            let unsure = |source| VolumeError::NotShown {
                volume: record.volume.clone(),
                source,
            };
            let own = homes.own();
            let said = homes.find(record.id.clone()).await.map_err(unsure)?;
            match Leaving::judge(said.as_ref(), &own, record.term) {
                Leaving::AskOther => break,
                Leaving::Left(node, term) => {
                    let record = VolumeMove {
                        peer: node,
                        ..record.clone()
                    };
                    self.volume_is_there(&record, term)?;
                    return Ok(Outcome::Left(term));
                }
                Leaving::Stays(term) => return self.volume_stays_here(record, term),
                Leaving::TakeBack => {
                    let Some(said) = said else { break };
                    let back = Home {
                        node: own,
                        term: record.term.back(),
                        ..said.clone()
                    };
                    let term = back.term;
                    let from = Some((said.node, said.term));
                    let taken = homes.change(record.id.clone(), from, Some(back)).await;
                    if taken.map_err(unsure)? {
                        return self.volume_stays_here(record, term);
                    }
                }
            }
        }
        let end = PeerVolumeStep::End(PeerVolumeEnd {
            migration: record.migration,
            name: record.volume.clone(),
        });
        let peer = self.peer(&record.peer)?;
        match self.volume_step(&*peer, end).await? {
            PeerVolumeAnswer::Landed(term) => {
                self.volume_is_there(record, term)?;
                Ok(Outcome::Left(term))
            }
            PeerVolumeAnswer::Ended => self.volume_stays_here(record, record.term.back()),
            PeerVolumeAnswer::Prepared(_)
            | PeerVolumeAnswer::Awaits(_)
            | PeerVolumeAnswer::Given(_) => Err(crate::remote::untold(
                peer.name(),
                "whether it has the volume",
            )),
        }
    }

    fn volume_stays_here(&self, record: &VolumeMove, term: Term) -> Result<Outcome, HostError> {
        self.parts.store.volume_stays(&KnownTerm {
            volume: record.volume.clone(),
            id: record.id.clone(),
            term,
        })?;
        Ok(Outcome::Stays)
    }

    /// Has the authority say that a volume is at home here, or learns that it is not; the term in which it
    /// is. All of it is here. The caller holds the turn of landings.
    pub(super) async fn settle_landing(
        &self,
        record: &VolumeMove,
    ) -> Result<Option<Term>, HostError> {
        let homes = self.homes().ok_or(HostError::NoPeers)?;
        let unsure = |source| VolumeError::NotShown {
            volume: record.volume.clone(),
            source,
        };
        let own = homes.own();
        let (blockd, name) = (self.volumes.disks.blockd.clone(), record.volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        for _ in 0..TRIES {
            let said = homes.find(record.id.clone()).await.map_err(unsure)?;
            match Landing::judge(said.as_ref(), &own, record.term) {
                Landing::Here(term) => {
                    self.landed(record, term)?;
                    return Ok(Some(term));
                }
                Landing::Take => {
                    let here = Home {
                        name: record.volume.clone(),
                        node: own.clone(),
                        term: record.term.there(),
                        size: ByteCount(status.size),
                    };
                    let from = said.map(|it| (it.node, it.term));
                    let term = here.term;
                    let taken = homes.change(record.id.clone(), from, Some(here)).await;
                    if taken.map_err(unsure)? {
                        self.landed(record, term)?;
                        return Ok(Some(term));
                    }
                }
                Landing::Gone => {
                    self.parts.store.remove_volume_landing(&record.volume)?;
                    self.give_up_volumes(record.migration).await;
                    return Ok(None);
                }
            }
        }
        let volume = record.volume.clone();
        Err(VolumeError::Crowded { volume }.into())
    }

    /// Records that it is at home here.
    pub(super) fn landed(&self, record: &VolumeMove, term: Term) -> Result<(), HostError> {
        let known = KnownTerm {
            volume: record.volume.clone(),
            id: record.id.clone(),
            term,
        };
        self.parts.store.volume_landed(record.migration, &known)?;
        self.incoming.volumes.forget(record.migration);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::homes::home, *};

    /// Steps that may come in any order: each host looks at the record, and changes it if it still says
    /// what was seen.
    #[test]
    fn whichever_host_changes_the_record_first_has_the_volume_and_the_other_learns_it() {
        let left = Term(3);
        let take = |said: &Home, own: &str| Landing::judge(Some(said), own, left);
        let back = |said: &Home, own: &str| Leaving::judge(Some(said), own, left);
        let before = home("a", 3);
        assert_eq!(take(&before, "b"), Landing::Take);
        assert_eq!(back(&before, "a"), Leaving::TakeBack);
        // b was first.
        let landed = home("b", left.there().0);
        assert_eq!(take(&landed, "b"), Landing::Here(left.there()));
        assert_eq!(back(&landed, "a"), Leaving::Left("b".into(), left.there()));
        // a was first.
        let stayed = home("a", left.back().0);
        assert_eq!(take(&stayed, "b"), Landing::Gone);
        assert_eq!(back(&stayed, "a"), Leaving::Stays(left.back()));
        // b has moved it on, or c has promoted a copy, before a asked.
        let on = home("c", 9);
        assert_eq!(take(&on, "b"), Landing::Gone);
        assert_eq!(back(&on, "a"), Leaving::Left("c".into(), Term(9)));
    }

    #[test]
    fn where_the_authority_knows_nothing_the_other_host_is_asked() {
        assert_eq!(Leaving::judge(None, "a", Term(3)), Leaving::AskOther);
        assert_eq!(Landing::judge(None, "b", Term(3)), Landing::Take);
    }
}
