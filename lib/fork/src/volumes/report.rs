//! Report of this node's volumes to the authority.
//!
//! Only a complete report says that a volume is no more: where one volume cannot be looked at, or the server
//! of volumes does not answer, what was not seen stays on record. What is here as a copy, or on its way here,
//! is seen as well.

use super::{
    VolumeError,
    homes::{AtHome, Claim, Home},
    is_private,
};
use crate::{Host, HostError, blocking};
use forkyard_blockd::Held;
use forkyard_types::{Term, VmName};
use std::collections::{BTreeMap, BTreeSet};

/// Volumes of this node, as far as they could be looked at.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Those that are at home here by its records, and their terms.
    homes: Vec<(AtHome, Term)>,
    /// Identities of copies, and of what comes; with the name, of copies that are held for another node.
    others: BTreeMap<String, Option<VmName>>,
    /// Every volume was looked at.
    is_complete: bool,
}

/// Something that is to be told, or to be learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Act {
    /// Compare the places of a volume, and take the later.
    Compare(String),
    /// Tell its size.
    Resize(String),
    /// A volume is no more.
    Forget(String, Term),
    /// A copy is at home here by the authority: its promotion was cut short.
    Promote(VmName),
}

impl Seen {
    /// Compares it with what the authority had said before it was looked.
    fn acts(&self, said: &[(String, Home)], own: &str) -> Vec<Act> {
        let mut acts = Vec::new();
        let mut ids = BTreeSet::new();
        for (volume, known) in &self.homes {
            ids.insert(&volume.id);
            let said = said.iter().find(|(id, _)| *id == volume.id);
            let said = said.map(|(_, home)| home);
            match Claim::judge(said, own, *known) {
                Claim::Shown if said.is_none_or(|it| it.size == volume.size) => {}
                Claim::Shown => acts.push(Act::Resize(volume.id.clone())),
                Claim::Enter | Claim::Later | Claim::Learn(_) | Claim::Lost { .. } => {
                    acts.push(Act::Compare(volume.id.clone()));
                }
            }
        }
        for (id, home) in said.iter().filter(|(_, home)| home.node == own) {
            match self.others.get(id) {
                Some(Some(name)) => acts.push(Act::Promote(name.clone())),
                Some(None) => {}
                None if ids.contains(id) || !self.is_complete => {}
                None => acts.push(Act::Forget(id.clone(), home.term)),
            }
        }
        acts
    }
}

impl Host {
    /// Tells the authority of the volumes that are at home here, and learns of those that are not any more. Not
    /// cancel-safe: run it to its end.
    pub async fn report_volumes(&self) -> Result<(), HostError> {
        let Some(homes) = self.homes() else {
            return Ok(());
        };
        let told = |source| HostError::Peer {
            peer: "the cluster".into(),
            source,
        };
        homes.may_act().map_err(told)?;
        // In this order: what is made or comes in between is not taken for gone.
        let said = homes.all().await.map_err(told)?;
        let seen = self.see_volumes().await?;
        let own = homes.own();
        for act in seen.acts(&said, &own) {
            if let Err(error) = self.act_on_volume(&act, &seen).await {
                tracing::debug!(?act, error = &error as &dyn std::error::Error, "told later");
            }
        }
        Ok(())
    }

    /// Does so on a task of its own, in a cluster.
    pub(super) fn report_volumes_soon(&self) {
        if self.homes().is_none() {
            return;
        }
        let host = self.handle();
        tokio::spawn(async move {
            if let Some(host) = host.upgrade()
                && let Err(error) = host.report_volumes().await
            {
                tracing::debug!(error = &error as &dyn std::error::Error, "told later");
            }
        });
    }

    async fn act_on_volume(&self, act: &Act, seen: &Seen) -> Result<(), HostError> {
        let homes = self.homes().ok_or(HostError::NoPeers)?;
        let told = |source| HostError::Peer {
            peer: "the cluster".into(),
            source,
        };
        let of = |id: &String| seen.homes.iter().find(|(it, _)| it.id == *id);
        match act {
            Act::Compare(id) => {
                let Some((volume, _)) = of(id) else {
                    return Ok(());
                };
                // One that is being handed over is its task's.
                let _used = self.volumes.guards.take([&volume.name])?;
                self.refuse_copy(&volume.name)?;
                self.show_home(volume).await.map(drop)
            }
            Act::Resize(id) => {
                let Some((volume, term)) = of(id) else {
                    return Ok(());
                };
                let home = Home {
                    name: volume.name.clone(),
                    node: homes.own(),
                    term: *term,
                    size: volume.size,
                };
                let from = Some((homes.own(), *term));
                let changed = homes.change(id.clone(), from, Some(home)).await;
                changed.map(drop).map_err(told)
            }
            Act::Forget(id, term) => {
                tracing::info!(volume = id, "no more here: the cluster is told");
                let from = Some((homes.own(), *term));
                let changed = homes.change(id.clone(), from, None).await;
                changed.map(drop).map_err(told)
            }
            Act::Promote(name) => {
                let _used = self.volumes.guards.take([name])?;
                self.promote(name).await
            }
        }
    }

    async fn see_volumes(&self) -> Result<Seen, HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        let found = blocking(move || {
            let names = blockd.names()?.into_iter();
            let seen = names.map(|name| (blockd.inspect(&name), name));
            Ok::<_, VolumeError>(seen.collect::<Vec<_>>())
        });
        let found = found.await?;
        // Read after what they are to speak of.
        let (records, known) = (self.parts.store.vms()?, self.known()?);
        let mut seen = Seen {
            is_complete: true,
            ..Seen::default()
        };
        for (status, name) in found {
            let status = match status {
                Ok(status) => status,
                // Removed meanwhile.
                Err(error) if error.is_missing() => continue,
                Err(_) => {
                    seen.is_complete = false;
                    continue;
                }
            };
            if status.base.is_some() || is_private(&records, &name) {
                continue;
            }
            if let Held::For(_) = status.held {
                seen.others.insert(status.id, Some(name));
            } else if known.is_copy(&name) {
                seen.others.insert(status.id, None);
            } else {
                let term = known.term(&name, &status.id);
                seen.homes.push((AtHome::of(&name, &status), term));
            }
        }
        // What comes may have nothing here yet.
        let coming = self
            .parts
            .store
            .copies()?
            .into_iter()
            .filter_map(|copy| copy.id);
        for id in coming {
            seen.others.entry(id).or_default();
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::ByteCount;

    fn at_home(id: &str) -> AtHome {
        AtHome {
            name: "d".parse().expect("a name"),
            id: id.into(),
            size: ByteCount(4096),
        }
    }

    fn home(node: &str, term: u64) -> Home {
        Home {
            name: "d".parse().expect("a name"),
            node: node.into(),
            term: Term(term),
            size: ByteCount(4096),
        }
    }

    fn said(all: &[(&str, &str, u64)]) -> Vec<(String, Home)> {
        let all = all.iter();
        all.map(|(id, node, term)| ((*id).to_owned(), home(node, *term)))
            .collect()
    }

    #[test]
    fn only_a_complete_report_says_that_a_volume_is_no_more() {
        let said = said(&[("1", "a", 1), ("2", "a", 3), ("3", "b", 1)]);
        let mut seen = Seen {
            homes: vec![(at_home("1"), Term(1))],
            ..Seen::default()
        };
        assert_eq!(seen.acts(&said, "a"), [], "one could not be looked at");
        seen.is_complete = true;
        assert_eq!(seen.acts(&said, "a"), [Act::Forget("2".into(), Term(3))]);
        // Nor is one that comes, or is a copy here, no more.
        seen.others.insert("2".into(), None);
        assert_eq!(seen.acts(&said, "a"), []);
    }

    #[test]
    fn a_volume_that_is_new_or_has_another_place_or_size_is_told_of() {
        let mut seen = Seen {
            homes: ["1", "2", "3", "4"].map(|id| (at_home(id), Term(2))).into(),
            is_complete: true,
            ..Seen::default()
        };
        seen.homes[3].0.size = ByteCount(8192);
        let said = said(&[("1", "a", 2), ("2", "b", 5), ("4", "a", 2)]);
        let acts = ["2", "3"].map(|id| Act::Compare(id.into()));
        assert_eq!(
            seen.acts(&said, "a"),
            [&acts[..], &[Act::Resize("4".into())]].concat()
        );
    }

    #[test]
    fn a_promotion_that_was_cut_short_is_ended() {
        let name: VmName = "d".parse().expect("a name");
        let seen = Seen {
            others: [("1".to_owned(), Some(name.clone()))].into(),
            is_complete: true,
            ..Seen::default()
        };
        assert_eq!(seen.acts(&said(&[("1", "b", 1)]), "a"), []);
        let acts = seen.acts(&said(&[("1", "a", 2)]), "a");
        assert_eq!(acts, [Act::Promote(name)]);
    }
}
