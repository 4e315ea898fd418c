//! Clones that this host had others make: which there are, and whether they
//! still need pages of this one.
//!
//! ```text
//! Sent --answered, or given up--> Made --no VM there awaits a page--> Released
//!                                                                        |
//!                                              no clone is left: forgotten
//! ```
//!
//! What there is on another host is that host's to say: it is asked every now and
//! then, and what it said last is shown meanwhile.

use super::{
    Peer,
    keys::key_of,
    remote_share::{RemoteShare, Stage},
};
use crate::{Host, HostError, to_text};
use forkyard_records::RecordsError;
use forkyard_types::{ApiError, ErrorKind, FamilyId, ForkId, ImageId, Member, VmId, VmView};
use forkyard_vm::{VmError, lock};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// Between two looks at what others have.
const LOOK: Duration = Duration::from_secs(1);
/// Time another host may take to answer.
const ANSWERS: Duration = Duration::from_secs(5);

/// A VM that moved, or was to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Migrated {
    pub migration: ForkId,
    pub peer: String,
    pub vm: VmId,
    /// True once it is known to be there.
    pub is_there: bool,
}

/// Everything that other hosts made for this one.
#[derive(Debug, Default)]
pub(crate) struct RemoteClones(Mutex<BTreeMap<(ForkId, String), RemoteShare>>);

impl RemoteClones {
    /// Changes what is known of one fork at one host, and returns that.
    pub(super) fn change<T>(
        &self,
        (fork, peer): (ForkId, &str),
        change: impl FnOnce(&mut RemoteShare) -> T,
    ) -> Option<(T, RemoteShare)> {
        let mut all = lock(&self.0);
        let away = all.get_mut(&(fork, peer.to_owned()))?;
        Some((change(away), away.clone()))
    }

    /// Tells whether there is nothing.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// The clones there are, as they were seen last.
    pub fn views(&self) -> Vec<VmView> {
        lock(&self.0)
            .values()
            .flat_map(RemoteShare::views)
            .collect()
    }

    /// One of them by name or id.
    pub fn find(&self, word: &str) -> Option<VmView> {
        let mut views = self.views().into_iter();
        views.find(|vm| vm.name.as_str() == word || vm.id.as_str() == word)
    }

    /// Their places in a family.
    pub fn members(&self, family: FamilyId) -> BTreeSet<Member> {
        let all = lock(&self.0);
        let of_family = all.values().filter(|away| away.family == family);
        of_family
            .flat_map(|away| &away.clones)
            .map(|vm| vm.member)
            .collect()
    }

    /// Counts the clones of a family that exist, or are being made.
    pub fn of_family(&self, family: FamilyId) -> usize {
        let all = lock(&self.0);
        let of_family = all.values().filter(|away| away.family == family);
        of_family.map(|away| away.clones.len()).sum()
    }

    /// Tells whether a host has, or may yet make, any clone of a family.
    pub fn has(&self, family: FamilyId, peer: &str) -> bool {
        let all = lock(&self.0);
        let mut there = all.iter().filter(|((_, at), _)| at == peer);
        there.any(|(_, away)| away.family == family)
    }

    /// Places of a family whose VMs have moved, and to which hosts.
    pub(super) fn moved(&self, family: FamilyId) -> Vec<(String, Member)> {
        let all = lock(&self.0);
        let moved = all.iter().filter_map(|((_, peer), away)| {
            let (of, member) = away.moved()?;
            (of == family).then(|| (peer.clone(), member))
        });
        moved.collect()
    }

    /// VMs that moved, or were to, and to which hosts.
    pub(super) fn migrations(&self) -> Vec<Migrated> {
        let all = lock(&self.0);
        let moved = all.iter().filter_map(|((migration, peer), away)| {
            Some(Migrated {
                migration: *migration,
                peer: peer.clone(),
                vm: away.moved?,
                is_there: !away.clones.is_empty(),
            })
        });
        moved.collect()
    }

    fn peers(&self) -> BTreeSet<String> {
        lock(&self.0).keys().map(|(_, peer)| peer.clone()).collect()
    }

    fn forks_at(&self, peer: &str) -> Vec<ForkId> {
        let all = lock(&self.0);
        let at = all.keys().filter(|(_, at)| at == peer);
        at.map(|(fork, _)| *fork).collect()
    }

    /// Those of which what is listed there from now on tells everything. One that is being
    /// made meanwhile may be missing: were that taken for its end, the pages would be
    /// withdrawn that it is about to ask for.
    fn listed_at(&self, peer: &str) -> Vec<ForkId> {
        let all = lock(&self.0);
        let at = all.iter().filter(|((_, at), _)| at == peer);
        let made = at.filter(|(_, away)| away.stage != Stage::Sent);
        made.map(|((fork, _), _)| *fork).collect()
    }

    /// Returns a peer's answer to the question what it has, and the forks about which that
    /// answer is complete: those that were made before the question.
    async fn listed<T>(&self, peer: &str, asked: impl Future<Output = T>) -> (Vec<ForkId>, T) {
        let listed = self.listed_at(peer);
        (listed, asked.await)
    }
}

impl Host {
    /// Reads what an earlier daemon had others make.
    pub(crate) fn load_remote_clones(&self) -> Result<(), HostError> {
        for (fork, peer, entry) in self.parts.store.remote_clones()? {
            match serde_json::from_str::<RemoteShare>(&entry) {
                Ok(mut away) => {
                    // The request that waited for the answer has gone.
                    if away.stage == Stage::Sent {
                        away.stage = Stage::Made;
                        away.pending_removal = away.promised;
                    }
                    lock(&self.peers.remote_clones.0).insert((fork, peer), away);
                }
                Err(error) => {
                    tracing::error!(%fork, peer, %error, "what is there cannot be read");
                }
            }
        }
        Ok(())
    }

    /// Records what is sent to a peer.
    pub(super) fn note_remote_clones(
        &self,
        (fork, peer): (ForkId, &str),
        away: RemoteShare,
    ) -> Result<(), HostError> {
        let entry = to_text(&away)?;
        self.parts
            .store
            .put_remote_clones((fork, peer), away.family, &entry)?;
        lock(&self.peers.remote_clones.0).insert((fork, peer.to_owned()), away);
        Ok(())
    }

    /// A peer has answered, or, with nothing, is not waited for any more.
    pub(crate) fn answered(&self, key: (ForkId, &str), made: Vec<VmView>) {
        let learnt = self.peers.remote_clones.change(key, |away| {
            away.stage = Stage::Made;
            away.pending_removal = away.promised && made.is_empty();
            away.clones = made;
            away.silence = None;
        });
        if let Some(((), away)) = learnt {
            self.record_remote_clones(key, &away);
        }
    }

    /// These are no longer awaited: should their host ever be seen to have them, they
    /// are ended.
    pub(super) fn schedule_removal(&self, name: &str, vms: &[VmId]) {
        for fork in self.peers.remote_clones.forks_at(name) {
            let key = (fork, name);
            let pending_removal = self.peers.remote_clones.change(key, |away| {
                let is_one = |vm: &VmView| vms.contains(&vm.id);
                away.pending_removal |= away.clones.iter().any(is_one);
                away.pending_removal
            });
            if let Some((true, away)) = pending_removal {
                self.record_remote_clones(key, &away);
            }
        }
    }

    pub(super) fn record_remote_clones(&self, key: (ForkId, &str), away: &RemoteShare) {
        let recorded = to_text(away).and_then(|entry| {
            Ok(self
                .parts
                .store
                .put_remote_clones(key, away.family, &entry)?)
        });
        if let Err(error) = recorded {
            let (fork, peer) = key;
            tracing::warn!(%fork, peer, error = &error as &dyn std::error::Error, "not recorded");
        }
    }

    /// Nothing of it is there any more.
    pub(crate) fn forget_remote_clones(&self, (fork, peer): (ForkId, &str)) -> Option<FamilyId> {
        let gone = lock(&self.peers.remote_clones.0).remove(&(fork, peer.to_owned()));
        let forgotten: Result<(), RecordsError> =
            self.parts.store.remove_remote_clones((fork, peer));
        if let Err(error) = forgotten {
            tracing::warn!(%fork, peer, error = &error as &dyn std::error::Error, "still recorded");
        }
        gone.map(|away| away.family)
    }

    /// Ends a clone on another host, by name or id. One that cannot be asked is
    /// forgotten if it could not be asked before.
    pub(crate) async fn remove_elsewhere(&self, word: &str) -> Result<VmView, HostError> {
        let found = self.peers.remote_clones.find(word);
        let vm = found.ok_or_else(|| {
            HostError::Vm(VmError::Unknown {
                name: word.to_owned(),
            })
        })?;
        let name = vm.host.clone().unwrap_or_default();
        let peer = match self.peer(&name) {
            Err(error) if vm.silence.is_none() => return Err(error),
            found => found,
        };
        let patience = self.parts.options.patience;
        let asked = match &peer {
            Ok(peer) => timeout(patience, peer.remove(vm.id)).await,
            Err(error) => Ok(Err(error.to_api())),
        };
        match asked.unwrap_or_else(|_| Err(late(patience))) {
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::NotFound || vm.silence.is_some() => {
                tracing::warn!(vm = %vm.name, peer = name, %error, "forgotten");
            }
            Err(source) => return Err(HostError::Peer { peer: name, source }),
        }
        for fork in self.peers.remote_clones.forks_at(&name) {
            let key = (fork, name.as_str());
            let removed = self.peers.remote_clones.change(key, |away| {
                let before = away.clones.len();
                away.clones.retain(|clone| clone.id != vm.id);
                before != away.clones.len()
            });
            let Some((true, away)) = removed else {
                continue;
            };
            self.record_remote_clones(key, &away);
            if vm.silence.is_some() && away.clones.is_empty() {
                self.release(&away).await;
                self.forget_lost(key).await;
                if !self.peers.remote_clones.has(away.family, &name) {
                    self.forget_borrower(away.family, &name).await;
                }
            }
        }
        if let Ok(peer) = peer {
            self.look_at(&name, &*peer).await;
        }
        Ok(vm)
    }

    /// Looks at what other hosts have, for as long as this one lives.
    pub(super) fn watch_remote_clones(&self) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                // One that does not answer does not delay the news of the others.
                tokio::join!(
                    host.poll_remote_clones(),
                    host.tell_borrowers(),
                    host.settle_moving(),
                    host.settle_volume_moves(),
                    host.repeat_news()
                );
            }
        });
    }

    /// Asks every host that may have something of this one's what it has.
    pub(crate) async fn poll_remote_clones(&self) {
        let looks = self
            .peers
            .remote_clones
            .peers()
            .into_iter()
            .map(|name| async move {
                match self.peer(&name) {
                    Ok(peer) => self.look_at(&name, &*peer).await,
                    Err(_) if self.is_gone(&name) => self.lose(&name).await,
                    Err(error) => self.silent(&name, &error.to_api()),
                }
            });
        join_all(looks).await;
    }

    /// A host is no more, and what it had of this one's.
    async fn lose(&self, name: &str) {
        for fork in self.peers.remote_clones.forks_at(name) {
            let key = (fork, name);
            let lost = self.peers.remote_clones.change(key, |away| {
                away.stage = Stage::Released;
                away.clones.clear();
            });
            if let Some(((), away)) = lost {
                tracing::warn!(%fork, peer = name, "its clones are lost with their host");
                self.release(&away).await;
                self.forget_lost(key).await;
            }
        }
    }

    /// A VM is here, and not on its way elsewhere.
    fn has_here(&self, vm: VmId) -> bool {
        let found = self.parts.registry().get(vm);
        found.is_some_and(|vm| lock(&vm.moving).is_none())
    }

    async fn look_at(&self, name: &str, peer: &dyn Peer) {
        let asked = timeout(ANSWERS, peer.vms());
        let (listed, answer) = self.peers.remote_clones.listed(name, asked).await;
        let vms = match answer {
            Ok(Ok(vms)) => without_echoes(vms, |vm| self.has_here(vm)),
            Ok(Err(error)) => return self.silent(name, &error),
            Err(_) => {
                return self.silent(name, &late(ANSWERS));
            }
        };
        for fork in listed {
            let key = (fork, name);
            let before = lock(&self.peers.remote_clones.0)
                .get(&(fork, name.to_owned()))
                .cloned();
            let learnt = self
                .peers
                .remote_clones
                .change(key, |away| away.learn(fork, name, &vms));
            let (Some(before), Some((released, away))) = (before, learnt) else {
                continue;
            };
            if released || before.clones.len() != away.clones.len() {
                self.record_remote_clones(key, &away);
            }
            if released {
                self.release(&away).await;
            }
            if away.pending_removal {
                self.remove_pending(away.clones.iter().map(|vm| vm.id).collect());
            }
            if away.is_over() {
                self.forget_lost(key).await;
            }
        }
    }

    /// That host's clones keep what they have; it needs no page of this one,
    /// unless another does.
    pub(super) async fn release(&self, away: &RemoteShare) {
        let needed: BTreeSet<ImageId> = {
            let all = lock(&self.peers.remote_clones.0);
            let others = all
                .values()
                .filter(|other| other.stage != Stage::Released && other.key == away.key);
            others.flat_map(|other| other.images.clone()).collect()
        };
        let mut unneeded = away.images.clone();
        unneeded.retain(|image| !needed.contains(image));
        if let Ok(key) = key_of(&away.key) {
            self.withdraw(&unneeded, key).await;
        }
    }

    async fn forget_lost(&self, key: (ForkId, &str)) {
        if let Some(family) = self.forget_remote_clones(key) {
            self.end_family_if_empty(family).await;
        }
    }

    fn silent(&self, name: &str, error: &ApiError) {
        let why = format!("host {name} cannot be asked: {}", error.message);
        for away in lock(&self.peers.remote_clones.0)
            .iter_mut()
            .filter(|((_, peer), _)| peer == name)
            .map(|(_, away)| away)
        {
            away.silence = Some(why.clone());
        }
    }

    /// Builds the error for a VM that is not here: names its host, if that is
    /// known.
    pub(crate) fn elsewhere(&self, word: &str) -> Option<HostError> {
        let vm = self.peers.remote_clones.find(word)?;
        Some(HostError::Elsewhere {
            vm: vm.name,
            host: vm.host.unwrap_or_default(),
        })
    }
}

pub(crate) fn late(after: Duration) -> ApiError {
    ApiError {
        kind: ErrorKind::Timeout,
        message: format!("no answer within {} s", after.as_secs()),
        hint: None,
    }
}

/// The error of a host whose answer is none to what it was asked.
pub(crate) fn untold(peer: &str, what: &str) -> HostError {
    HostError::Peer {
        peer: peer.to_owned(),
        source: no_answer(what),
    }
}

/// As [`untold`], where another error names the host.
pub(crate) fn no_answer(what: &str) -> ApiError {
    ApiError {
        kind: ErrorKind::Host,
        message: format!("it did not say {what}"),
        hint: Some("both hosts must run one version of Forkyard".into()),
    }
}

/// As a list of VMs is ordered.
pub(crate) fn order(vms: &mut [VmView]) {
    vms.sort_by_key(|vm| (vm.created, vm.family, vm.member));
}

/// Removes from another host's list what it has from this one's: VMs that are here, and more than
/// one entry of each of the others. Two hosts that list what each lists of the other would never find
/// out that a VM is not there, and list it more often each time.
fn without_echoes(mut vms: Vec<VmView>, is_here: impl Fn(VmId) -> bool) -> Vec<VmView> {
    // What is there itself comes first.
    vms.sort_by_key(|vm| vm.host.is_some());
    let mut seen = BTreeSet::new();
    vms.retain(|vm| !is_here(vm.id) && seen.insert(vm.id));
    vms
}

#[cfg(test)]
mod tests;
